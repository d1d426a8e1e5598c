"""Publish without Spark: batches of events from any Python program, each whole and once.

    with Producer("https://shop.example/orders", "shop") as producer, producer.batch() as batch:
        batch.add({"id": 1}, key="1")

This module holds the names that users import, from `client`. It runs in services.
"""

from __future__ import annotations

from zeh_spark.client.batch_line import ProducerProgress
from zeh_spark.client.buffered_producer import BufferedProducer, PublishedEvent
from zeh_spark.client.http.publish_client import PublishedRange, Receipt
from zeh_spark.client.open_batch import AddedEvent, OpenBatch
from zeh_spark.client.producer import Producer, PublishedNumbers

__all__ = [
    "AddedEvent", "BufferedProducer", "OpenBatch", "Producer", "ProducerProgress",
    "PublishedEvent", "PublishedNumbers", "PublishedRange", "Receipt",
]  # fmt: skip
