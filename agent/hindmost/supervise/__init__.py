"""What ``hindmost run`` does around a job: where it records, who it starts, how the job runs in the foreground."""
