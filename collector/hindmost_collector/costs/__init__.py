"""What a verdict costs and a repair would save: lateness replayed through what joins the ranks."""
