"""The dependency graph of a job: lanes of hosts and GPUs, their self time, and where one waits for another."""
