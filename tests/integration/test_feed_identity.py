"""Which feed a publisher says it serves, to readers that ask for its partition count."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import orjson
import pytest
import requests

from tests.cases import each_case
from tests.fix_publisher import Publisher
from tests.integration.test_openapi import check
from zeh_spark.errors import StoreError
from zeh_spark.publisher import Block, Feed
from zeh_spark.service.store.interface import StoreBusyError
from zeh_spark.testing import running_publisher
from zeh_spark.wire import feed_identity
from zeh_spark.wire.feed_identity import Epoch, FeedIdentity

ASKED = ["", "n=0", "n=two&cursor0=_first"]
"""Questions that the partition count is the answer to."""


class Plain(Feed):
    """A feed of a service's own, as one that was written before feeds had ids."""

    partitions, cursor = 1, "0"

    def page(
        self, asked: Mapping[int, str], n: int, hint: int | None, headers: Collection[str]
    ) -> Iterator[Block]:
        yield from (Block(each, b"", self.cursor) for each in asked)

    def version(self) -> object:
        return 0


class Routed(Plain):
    """A feed whose readers get a page from where they are sent to."""

    def __init__(self, token: str = "", consumer: str = "") -> None:
        self._text = orjson.dumps({"partition": 0, "data": [token, consumer]})

    def for_reader(self, token: str, consumer: str) -> Feed:
        return Routed(token, consumer)

    def page(
        self, asked: Mapping[int, str], n: int, hint: int | None, headers: Collection[str]
    ) -> Iterator[Block]:
        yield Block(0, self._text + b"\n", self.cursor)


def test_a_feed_of_my_own_answers_each_reader_from_where_it_chooses() -> None:
    """By the token, or by what the reader says of itself, also if many ask for the same. [ZE-11]"""
    with running_publisher({"mine": Routed()}) as base, ThreadPoolExecutor(8) as pool:

        def page(consumer: str) -> list[object]:
            headers = {"ZEH-Consumer": consumer} if consumer else {}
            answer = requests.get(f"{base}/mine?n=1&cursor0=_first", headers=headers, timeout=30)
            return [line["data"] for line in map(json.loads, answer.iter_lines()) if "data" in line]

        who = ["cold", "hot", ""] * 40
        assert [[["", each]] for each in who] == [*pool.map(page, who)]


class Named(Plain):
    def __init__(self, told: FeedIdentity | StoreError | None) -> None:
        self._told = told

    def identity(self) -> FeedIdentity | None:
        if isinstance(self._told, StoreError):
            raise self._told
        return self._told


@pytest.mark.parametrize("query", ASKED)
@pytest.mark.parametrize("epochs", [0, 1, 2])
def test_reader_is_told_which_feed_it_is(publisher: Publisher, query: str, epochs: int) -> None:
    """With the partition count I learn the feed's id, epochs and delivery guarantee (ZE-03)."""
    for number in range(epochs):
        publisher.store.begin_epoch("orders", copy=number == 1)
    answer = requests.get(f"{publisher.url}?{query}", timeout=30)
    check("/{feed}", "GET", answer)
    told = feed_identity.parse(answer.json()["feed"])
    assert "exactly-once" == answer.json()["feed"]["delivery"]
    assert publisher.store.identity("orders") == told
    assert (epochs + 1, 2) == (len(told.epochs), answer.json()["partitionCount"])


def test_a_new_epoch_is_told_at_once(publisher: Publisher) -> None:
    """The command may have been run in another process, while the publisher serves. Two publishers
    of one store tell the same: a feed is the same one under each address. No cursor is refused.
    """
    publisher.publish(1, partition=0)
    before = publisher.get("n=2&cursor0=_first").cursors[0]
    begun = publisher.store.begin_epoch("orders")
    publisher.publish(2, partition=0)
    assert [2] == publisher.get(f"n=2&cursor0={before}").data
    told = {**begun.document(), "delivery": "exactly-once", "reads": {"plan": 1, "chunks": 2}}
    assert told == publisher.get().problem["feed"]
    with running_publisher(publisher.store) as base:
        assert told == requests.get(f"{base}/orders", timeout=30).json()["feed"]


@pytest.mark.parametrize("query", ["n=2", "n=2&cursor0=17", "n=2&n=2"])
def test_other_refusals_do_not_tell_it(quiet_publisher: Publisher, query: str) -> None:
    """They say what was wrong with the question."""
    assert "feed" not in quiet_publisher.get(query).problem


TOLD = FeedIdentity("0" * 16, (Epoch("0" * 16),))


@each_case(("feed", "told"), [(Plain(), None), (Named(None), None), (Named(TOLD), TOLD)])
def test_services_own_feed_may_have_an_id(feed: Plain, told: FeedIdentity | None) -> None:
    """By a method of one line. Without, it is served as before, and readers name it by its URL."""
    with running_publisher({"orders": feed}) as base:
        document = requests.get(f"{base}/orders", timeout=30).json()
    found = feed_identity.parse(document["feed"]) if "feed" in document else None
    assert (1, told) == (document["partitionCount"], found)


@each_case(("error", "status"), [(StoreBusyError("locked"), 503), (StoreError("broken"), 500)])
def test_feed_that_cannot_tell_its_id_now_is_not_another_feed(
    error: StoreError, status: int
) -> None:
    """While the database is away I am asked to try again; the feed does not seem to have no id."""
    with running_publisher({"orders": Named(error)}) as base:
        answer = requests.get(f"{base}/orders", timeout=30)
    assert (status, False) == (answer.status_code, "partitionCount" in answer.json())
