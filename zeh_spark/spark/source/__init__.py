"""Read a feed into Spark.

`offsets` and `planning` decide, and are pure. `prefetch`, `staging`, `stream` and `batch` do the
I/O. `polling` follows cursors, `decoding` makes columns of what comes.
"""
