"""Producers without Spark, for tests."""

from __future__ import annotations

import pytest

from tests.fix_publisher import Publisher
from zeh_spark.errors import PublishError
from zeh_spark.publish import Producer, Receipt


@pytest.fixture
def till(publisher: Publisher) -> Producer:
    return Producer(publisher.url, "till-7")


def published(producer: Producer, *events: object, name: str | None = None) -> Receipt:
    with producer.batch(name) as batch:
        for event in events:
            batch.add(event)
    return batch.receipt


def refusal(producer: Producer, *events: object, name: str | None = None) -> str | None:
    with pytest.raises(PublishError) as raised:
        published(producer, *events, name=name)
    return raised.value.problem
