"""The scale-out store."""
