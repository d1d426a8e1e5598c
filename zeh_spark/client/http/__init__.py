"""The HTTP client of readers and producers of a feed.

`transport` sends one request, over `connections` that the process shares. `responses` judges an
answer, `retry` repeats requests, and `discovery` asks for a feed's partitions and identity.
`feed_client` reads pages. `publish_client` uploads and commits one batch, and `batch_attempt`
brings a batch to a known end.

Rule for editors: this needs neither Spark nor the publisher's code. Runs on the driver, in tasks,
in services and in the command line.
"""
