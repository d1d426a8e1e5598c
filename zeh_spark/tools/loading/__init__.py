"""Files into a feed: NDJSON, CSV and Parquet; one load is one batch."""
