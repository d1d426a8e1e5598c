"""Files into a feed: NDJSON, CSV and Parquet, one load as one batch."""
