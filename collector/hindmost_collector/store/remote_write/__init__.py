"""Prometheus remote write, as a second sink."""
