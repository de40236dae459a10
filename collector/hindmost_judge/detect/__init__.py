"""What of a job is not as it should be. No finding here is a verdict yet."""
