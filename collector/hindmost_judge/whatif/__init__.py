"""What a job would have taken with other work: the one replay of its graph."""
