"""What a verdict costs and a fix would save: delays replayed through the dependencies of the ranks."""
