"""Readers of recordings, one file a format: ``FORMATS`` in ``recordings.py`` lists them."""
