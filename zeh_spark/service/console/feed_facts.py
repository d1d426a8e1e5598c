"""What the page of a feed shows: its partitions, producers and consumers, a part at a time.

Runs in the publisher's worker threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from zeh_spark.service.console.events import newest
from zeh_spark.service.console.viewer import Viewer
from zeh_spark.service.retention.rules import words
from zeh_spark.service.store.batches import MAX_NUMBER, ProducerState
from zeh_spark.service.store.interface import Retention, Store
from zeh_spark.service.store.log import Log
from zeh_spark.service.telemetry.lag import Lag

PARTITIONS, PRODUCERS, CONSUMERS, RECEIPTS = 16, 20, 50, 20
"""Rows on a page."""

_LOOKS, _LOOKED_AT = 10, 200
"""Most parts of the list of producers that are read for a visitor who sees few of them, and the
producers of a part.
"""


def feed_view(
    store: Store,
    feed: str,
    lags: Sequence[Lag],
    viewer: Viewer,
    first_partition: int,
    after_producer: str,
) -> dict[str, Any]:
    """Return what a visitor may see of a feed, for its template. Raises UnknownFeedError.

    `more_producers` is the name after which there are more producers; "" if there are none.
    """
    with store.snapshot(feed) as log:
        state, partitions = log.state, _partitions(log, first_partition)
    rule = store.retention(feed)
    producers, more = _producers(store, feed, viewer, after_producer)
    letters = newest(store, feed, None, 1) if viewer.reads(feed) else []
    seen_readers = [each for each in rule.readers if viewer.sees_consumer(feed, each)]
    return {
        "state": state,
        "staged": store.staged().get(feed, 0),
        "schema": store.schema(feed),
        "keeps": words(rule, seen_readers),
        "partitions": partitions,
        "producers": producers,
        "more_producers": more,
        "consumers": _consumers(store, feed, lags, rule, viewer),
        "has_letters": any(each.letter for each in letters),
        "now": store.now(),
    }


def _partitions(log: Log, first: int) -> list[dict[str, Any]]:
    """Return stored partitions with their newest chunks, and with what was removed last."""
    shown = range(log.state.partitions)[first : first + PARTITIONS]
    places = log.last(shown, log.state.head).values()
    last = {chunk.partition: chunk for each in places for chunk in log.scan(each.g - 1, each.g, 1)}
    return [
        {"number": each, "last": last.get(each), "removed": log.anchors.get(each)} for each in shown
    ]


def _producers(
    store: Store, feed: str, viewer: Viewer, after: str
) -> tuple[list[ProducerState], str]:
    """Return some producers that the visitor sees, and the last name if there may be more.

    That name is never one of a producer that the visitor does not see.
    """
    found: list[ProducerState] = []
    for _ in range(_LOOKS):
        some = store.producers(feed, after, _LOOKED_AT)
        for each in some:
            if len(found) == PRODUCERS:
                return found, found[-1].name
            after = each.name
            if viewer.sees_producer(feed, each.name):
                found.append(each)
        if len(some) < _LOOKED_AT:
            return found, ""
    return found, found[-1].name if found else ""


def _consumers(
    store: Store, feed: str, lags: Sequence[Lag], rule: Retention, viewer: Viewer
) -> list[dict[str, Any]]:
    """Return the cursor sets that the feed keeps; `kept` are the partitions with a position."""
    known = {(each.name, each.n): each for each in lags}
    found: list[dict[str, Any]] = [
        {
            "name": each.name,
            "bound": each.consumer,
            "n": n,
            "kept": len(cursors),
            "lag": known.get((each.name, n)),
            "is_waited_for": each.name in rule.readers,
        }
        for each in store.cursor_sets(feed)
        if viewer.sees_consumer(feed, each.name)
        for n, cursors in sorted(each.cursors.items())
    ]
    # what is held back most comes first
    found.sort(key=lambda each: -(each["lag"].events if each["lag"] else 0))
    return found[:CONSUMERS]


def producer_view(store: Store, feed: str, name: str, below: int) -> dict[str, Any]:
    """Return what a producer has published, for its template.

    `following` is the number below which there are more receipts, 0 if there are none; `next` has
    the numbers of its next events, by partition, for some partitions.
    """
    store.feed(feed)  # an unknown feed is refused
    receipts = store.receipts(feed, name, below or MAX_NUMBER, RECEIPTS + 1)
    numbers = sorted(store.sequences(feed, name).items())
    return {
        "state": store.producer(feed, name),
        "receipts": receipts[:RECEIPTS],
        "following": receipts[RECEIPTS - 1].number if len(receipts) > RECEIPTS else 0,
        "next": {partition: own.next for partition, own in numbers[:PARTITIONS]},
        "partitions": len(numbers),
        "now": store.now(),
    }
