"""Pure functions from a run to findings, one file each."""
