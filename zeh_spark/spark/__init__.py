"""Feeds in Spark: source, sink, tables of Delta, ordered sessions and deduplication.

`datasource` registers source and sink with Spark, and `worker_python` looks at the Python of its
workers. `source` reads a feed, `sink` publishes a DataFrame, `delta` keeps feeds in tables,
`sessions` puts events in order, `stateful` keeps rows in Spark's state, and `frames` has columns
that all share.

Rule for editors: nothing here imports the service. Runs on the driver, and on executors.
"""
