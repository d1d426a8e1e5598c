"""A feed of our store, read with the reference client from PyPI.

Names in brackets: see tests/README.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from tests.fix_reference import ReferencePage
from tests.scratch_store import ScratchStore
from zeh_spark.publish import Producer
from zeh_spark.testing import running_publisher

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def url() -> Iterator[str]:
    store = ScratchStore()
    store.create("orders", 4)
    with running_publisher(store) as base:
        yield f"{base}/orders"


def check(url: str, read: Callable[..., ReferencePage], hint: int | None = None) -> None:
    """The client finds the events 0 to 39, each once, with the header `type`."""
    cursors, found, names = dict.fromkeys(range(4), "_first"), [], set()
    for _ in range(10):
        page = read(url, 4, cursors, page_size_hint=hint, headers=["type"])
        assert page.error is None
        if not page.events:
            break
        found += [data["id"] for _, _, data in page.events]
        names |= {name for _, headers, _ in page.events for name in headers or ()}
        cursors.update(dict(page.checkpoints))

    assert list(range(40)) == sorted(found)
    assert {"type"} == names


@pytest.mark.parametrize("hint", [None, 7])
def test_the_reference_client_reads_what_a_producer_published(
    url: str, read_with_reference: Callable[..., ReferencePage], hint: int | None
) -> None:
    """Any client of the protocol reads my feed: each event once, with its headers (ZE-09)."""
    producer = Producer(url, "shop")
    for begin in (0, 20):
        with producer.batch() as batch:
            for number in range(begin, begin + 20):
                batch.add({"id": number}, key=number, headers={"type": "placed"})

    check(url, read_with_reference, hint)


def test_the_reference_client_reads_what_the_sink_published(
    url: str, read_with_reference: Callable[..., ReferencePage], spark: SparkSession
) -> None:
    """Also if a DataFrame is published, with keys and headers (ZE-09)."""
    events = spark.range(40).selectExpr(
        "to_json(struct(id)) AS data", "CAST(id AS STRING) AS key", "map('type', 'x') AS headers"
    )
    writer = events.write.format("zeroeventhub").options(url=url, producerId="job", batchId="1")
    writer.mode("append").save()

    check(url, read_with_reference)
