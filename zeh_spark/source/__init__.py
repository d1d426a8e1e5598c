"""Read a feed into Spark.

`offsets`, `planning` and `end_detection` decide, and are pure. `prefetch`, `staging`, `stream` and
`batch` do the I/O.
"""
