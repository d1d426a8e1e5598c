"""Read a feed into Spark.

`stream` is what Spark calls, `stream_dispatcher` has one of two sources of batches answer, and
`batch_source` is the contract of both: `paged_source` follows the cursors of any publisher, and
`planned_source` has what ours plans, which tasks fetch. `batch` reads without a stream. `offsets`
and `segments` decide, and are pure. `older_spark` has what Spark 4.0 and 4.1 lack.
"""
