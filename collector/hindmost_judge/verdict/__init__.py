"""Makes verdicts from findings, causes and costs, and words their evidence."""
