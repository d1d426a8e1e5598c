"""How many requests a batch costs, of a real publisher: none is made only to learn what is told."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import parse_qs

import pytest

from tests.fix_batch import batch_reader
from tests.fix_publisher import Publisher
from tests.integration.test_stream_identity import HEADERS, feeds, first_batch, next_batch
from tests.patience import eventually
from zeh_spark.client.http.tail import follow
from zeh_spark.publisher import create_app
from zeh_spark.testing import running_publisher


@dataclass
class Counted:
    """A publisher, and what it was asked for: `page`, `discovery`, or the last part of a path."""

    publisher: Publisher
    url: str
    asked: list[str] = field(default_factory=list)

    def others(self) -> list[str]:
        """What was asked for besides pages since the last call."""
        asked, self.asked[:] = list(self.asked), []
        return [each for each in asked if each != "page"]


@pytest.fixture
def counted(publisher: Publisher) -> Iterator[Counted]:
    """The publisher, at an address that counts."""
    app = create_app(publisher.store)

    async def counting(scope, receive, send):
        if scope["type"] == "http":
            last = scope["path"].rpartition("/")[2]
            is_page = "n" in parse_qs(scope["query_string"].decode())
            asked.append(last if last != "orders" else "page" if is_page else "discovery")
        await app(scope, receive, send)

    asked: list[str] = []
    with running_publisher(publisher.store, counting) as base:
        yield Counted(publisher, f"{base}/orders", asked)


def test_a_stream_whose_driver_fetches_asks_for_nothing_but_pages(counted, start):
    """Once it knows which feed it reads. The lag and the feed of each event come with the pages."""
    counted.publisher.publish(1, 2, 3)
    reader = start(url=counted.url, fetch="driver", decoder=HEADERS).reader
    begin, end = first_batch(reader)
    assert ["discovery"] == counted.others()
    assert 0 == reader.reportLatestOffset()["eventsBehind"]["total"]

    for number in range(3):
        counted.publisher.publish(number)
        begin, end = end, next_batch(reader, end)
        assert [end["id"]] == feeds(reader, begin, end)
        assert 0 == reader.reportLatestOffset()["eventsBehind"]["total"]
    assert [] == counted.others()


def test_a_stream_whose_tasks_fetch_asks_for_plans_and_chunks(counted, start):
    """The identity comes with the plan."""
    counted.publisher.publish(1, 2, 3, partition=0)
    reader = start(url=counted.url, decoder=HEADERS).reader
    begin, end = first_batch(reader)
    assert ["discovery", "plan"] == counted.others()
    assert [end["id"]] * 3 == feeds(reader, begin, end)

    counted.publisher.publish(4, partition=0)
    begin, end = end, next_batch(reader, end)
    assert [end["id"]] == feeds(reader, begin, end)
    assert {"plan", "chunks"} == set(counted.others())


@pytest.mark.parametrize("way", ["driver", "executors"])
def test_a_new_epoch_is_asked_for_once(counted, start, way):
    """With the first page or plan that tells it, before its events are named after it."""
    counted.publisher.publish(1, partition=0)
    reader = start(url=counted.url, fetch=way, decoder=HEADERS).reader
    _, end = first_batch(reader)
    epoch = counted.publisher.store.begin_epoch("orders").epochs[-1]
    counted.others()
    for number in range(2):
        counted.publisher.publish(number, partition=0)
        eventually(lambda: way == "executors" or reader.reportLatestOffset()["readyEvents"])
        begin, end = end, next_batch(reader, end)
        assert [epoch.id] == feeds(reader, begin, end)
    assert 1 == counted.others().count("discovery")


def test_a_batch_query_is_asked_once_which_feed_it_reads(counted):
    """On the driver; its tasks hear from their pages that no epoch has begun."""
    counted.publisher.publish(1, 2, partition=0)
    counted.publisher.publish(3, partition=1)
    reader = batch_reader(counted.url, HEADERS, fetch="driver")
    told = counted.publisher.store.identity("orders").id
    assert [told] * 3 == feeds(reader)
    assert ["discovery"] == counted.others()

    counted.publisher.store.begin_epoch("orders")
    assert 3 == len(feeds(batch_reader(counted.url, HEADERS, fetch="executors")))
    assert ["chunks", "discovery", "plan"] == sorted(set(counted.others()))


def test_a_terminal_asks_once_which_feed_it_follows(counted):
    """Pages tell that it is still that one, in that epoch."""
    for number in range(3):
        counted.publisher.publish(number)
    printed = follow(counted.url, "_first", {}, whole=True, endless=False)
    assert 3 == sum(map(len, printed))
    assert ["discovery"] == counted.others()
