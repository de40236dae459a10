"""From findings to a report: verdicts, what they clear and leave open, and the words that say so."""
