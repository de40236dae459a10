"""The page: one for a running job and its report, live from the collector or as one file with its data inside."""
