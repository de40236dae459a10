"""Readers of recordings, one file a format."""
