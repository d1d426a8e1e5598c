"""A feed of our store, read with the reference client from PyPI.

Names in brackets: see tests/README.md.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.fix_reference import ReferencePage
from tests.scratch_store import ScratchStore
from zeh_spark.publish import Producer
from zeh_spark.testing import running_publisher


def test_the_reference_client_reads_what_a_producer_published(
    read_with_reference: Callable[..., ReferencePage],
) -> None:
    """Any client of the protocol reads my feed: each event once, with its headers (ZE-09)."""
    store = ScratchStore(orders=4)
    cursors, found, names = dict.fromkeys(range(4), "_first"), [], set()
    with running_publisher(store) as base:
        producer = Producer(f"{base}/orders", "shop")
        for begin in (0, 20):
            with producer.batch() as batch:
                for number in range(begin, begin + 20):
                    batch.add({"id": number}, key=number, headers={"type": "placed"})
        while len(found) < 40:
            page = read_with_reference(
                f"{base}/orders", 4, cursors, page_size_hint=7, headers=["type"]
            )
            assert (None, True) == (page.error, bool(page.events))
            found += [data["id"] for _, _, data in page.events]
            names |= {name for _, headers, _ in page.events for name in headers or ()}
            cursors.update(dict(page.checkpoints))

    assert list(range(40)) == sorted(found)
    assert {"type"} == names
