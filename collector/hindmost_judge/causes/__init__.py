"""Causes: what a measured feature explains of a delay."""
