"""The default store: Parquet segments in plain directories."""
