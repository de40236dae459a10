"""Readers of foreign recordings, one file a format."""
