"""Clients of a feed, for readers, producers and operators: options, HTTP, pages, batches.

`options` declares what users can set, `http` asks a publisher, `polling` follows cursors page by
page, and `decoding` makes columns of what comes. `reader` reads a feed without Spark. `producer`
publishes batches, each an `open_batch` whose number `batch_line` knows; `dead_letter_replay`
publishes dead letters that were repaired. They know bytes and Python's values, and run on Spark's
driver, on executors and in any other program.

Rule for editors: a client imports `wire`, and neither Spark nor the service.
"""
