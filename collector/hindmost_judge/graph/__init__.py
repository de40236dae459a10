"""The dependency graph of a job: lanes of hosts and GPUs, their own work, and where one waits for another."""
