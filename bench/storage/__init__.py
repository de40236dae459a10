"""What a sample, a step and a collective take on disk, here and elsewhere, and how long questions take."""
