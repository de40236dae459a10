"""NVIDIA's management library: opened once, its events, its field values."""
