"""The documentation, and what generates the pages of its reference."""
