"""The ClickHouse store against the real engine."""
