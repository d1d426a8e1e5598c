"""HTTP, as readers and producers of a feed speak it.

`transport` sends one request and retries it, `responses` judges an answer, `discovery` asks for a
feed's partitions and identity. `feed_client` reads pages; `publish_client` uploads and commits one
batch, and `batch_attempt` brings a batch to a known end. Runs on the driver, in tasks and in the
command line. Needs neither Spark nor the publisher.
"""
