"""Receives, aligns, judges, stores and shows."""
