"""Recordings of any format, and what several files, or recordings, of one job say together."""
