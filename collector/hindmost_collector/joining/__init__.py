"""What several files, or several recordings, of one job say together."""
