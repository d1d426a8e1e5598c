"""The audit of a feed whose chunks are packed: it passes as before, and finds what was changed."""

from __future__ import annotations

import re

import pytest

from tests.fix_audit import Vandal, difference, seven_chunks, whole
from tests.fix_cli import call
from tests.fix_datasource import PlainQuery, write_plainly
from tests.fix_publisher import Publisher
from tests.store_contract.writers import data
from zeh_spark.errors import StoreError
from zeh_spark.publish import Producer
from zeh_spark.publisher import Store
from zeh_spark.service.store import packs
from zeh_spark.wire.upload_format import frame_of, lines_of

EVER = 1 << 62
LINE = b'{"partition":0,"headers":{},"data":4}\n'


def seal(store: Store) -> int:
    """Pack all that fills a pack; return how many chunks that were."""
    done = 0
    while packed := store.seal("orders", EVER):
        done += packed
    return done


def test_whatever_was_published_passes_after_it_was_packed(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches of a query, of `df.write` and of a program, with names and without: all of each
    producer, and of all producers. A batch with a name that comes again is still known.
    """
    monkeypatch.setattr(packs, "PACK_CHUNKS", 3)
    query = PlainQuery(publisher.url)
    rows = [{"i": i} for i in range(40)]
    for number in range(3):
        query.publish(number, rows[number:])
    write_plainly(publisher.url, rows, producerId="nightly", batchId="monday")
    with Producer(publisher.url, "shop").batch("first") as events:
        for row in rows:
            events.add(row)
    publisher.publish(1, 2, 3)
    producers = [None, "spark", "nightly", "shop", "test"]
    before = [str(whole(publisher.url, each)) for each in producers]
    assert 6 == seal(publisher.store)
    assert before == [str(whole(publisher.url, each)) for each in producers]
    done = call("audit", publisher.url, "--producer", "nightly")
    assert (0, f"{before[2]}\n") == (done.returncode, done.stdout)
    write_plainly(publisher.url, rows, producerId="nightly", batchId="monday")
    assert before == [str(whole(publisher.url, each)) for each in producers]


CONTENT = "content: expected 402 events with digest [0-9a-f]{32}, found 402 with [0-9a-f]{32}"
CHANGES = {
    # In the lines of position 4; without one of them, all that follow it in the block are moved.
    "changed": (b'"data":4', b'"data":8', f"position 4, batch 1 of producer 'p': {CONTENT}"),
    "lost": (LINE, b"", f"position 1, batch 0 of producer 'p': {CONTENT}"),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_what_was_changed_in_a_pack_is_found(
    publisher: Publisher, vandal: Vandal, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """I see which batch to look at. Where lines are missing, the publisher refuses to go on."""
    old, new, expected = CHANGES[kind]
    monkeypatch.setattr(packs, "PACK_CHUNKS", 6)
    seven_chunks(publisher.store)
    assert 6 == seal(publisher.store)
    ((blob, frame),) = vandal.run("SELECT id, frame FROM blobs ORDER BY length(frame) DESC LIMIT 1")
    assert isinstance(frame, bytes)
    changed = lines_of(frame).replace(old, new, 1)
    vandal.run("UPDATE blobs SET frame = ? WHERE id = ?", frame_of(changed), blob)
    found = difference(publisher.url)
    assert re.fullmatch(expected, found), found
    if kind == "lost":
        with pytest.raises(StoreError, match=r"is damaged: .* does not have (its|the) lines"):
            data(publisher.store)
