"""Findings, causes and costs to verdicts, and their sentences."""
