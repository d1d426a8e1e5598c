"""Producers without Spark, for tests."""

from __future__ import annotations

import json
import os

import pytest

from tests.fix_middlemen import Fate, Gateway, passed
from tests.fix_publisher import Publisher
from tests.fix_raw_server import Answer, Request
from zeh_spark.errors import PublishError
from zeh_spark.publish import Producer, Receipt


@pytest.fixture
def till(publisher: Publisher) -> Producer:
    return Producer(publisher.url, "till-7")


@pytest.fixture
def far(gateway: Gateway) -> Producer:
    """Return a producer that publishes through the gateway, without retries."""
    producer = Producer(f"{gateway.address}/orders", "till-7", retryTimeout="1ms")
    assert -1 == producer.last.batch
    return producer


def published(producer: Producer, *events: object, name: str | None = None) -> Receipt:
    with producer.batch(name) as batch:
        for event in events:
            batch.add(event)
    return batch.receipt


def refusal(producer: Producer, *events: object, name: str | None = None) -> str | None:
    with pytest.raises(PublishError) as raised:
        published(producer, *events, name=name)
    return raised.value.problem


def served(publisher: Publisher) -> dict[object, tuple[int, int]]:
    """Partition and sequence number of each event, as readers see them. Fails if one is doubled."""
    query = "n=2&cursor0=_first&cursor1=_first&headers=_all&pagesizehint=100000"
    events = [each for each in publisher.get(query).lines if "data" in each]
    found = {
        each["data"]: (each["partition"], int(each["headers"]["zeh-sequence"])) for each in events
    }
    assert len(found) == len(events)
    return found


def large(count: int) -> list[str]:
    """Events that hardly compress, of 60 kB: of 150 there are several uploads."""
    return [json.dumps(os.urandom(30_000).hex()) for _ in range(count)]


def by_method(**fates: Fate) -> Fate:
    """A fate for each method, POST for commits and PUT for uploads; the rest passes."""

    def fate(gateway: Gateway, request: Request) -> Answer:
        return fates.get(request.method, passed)(gateway, request)

    return fate
