"""The contract for direct reads: what a plan and its chunks need of a store."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.store_contract.writers import FEED, chunk, everything, publish
from zeh_spark.client.decoding.chunks import unpacked
from zeh_spark.client.http.direct_client import FetchedGroup
from zeh_spark.publisher import Store
from zeh_spark.service.reads import direct_plans, direct_reads
from zeh_spark.wire.direct_reads import (
    ChunksRequest,
    Group,
    Plan,
    PlanRequest,
    RangeEnd,
    WantedRange,
    checked_ranges,
    parse_answer,
)
from zeh_spark.wire.upload_format import lines_of


def test_a_scan_has_the_chunks_of_all_partitions_between_two_positions(store):
    """I find what comes next without asking partition by partition; two feeds do not meet."""
    store.create("others", 2)
    for g in range(1, 9):
        publish(store, chunk(g % 2, b"%d" % g))
    publish(store, chunk(1, b"2"), feed="others")
    chunks = everything(store)
    with store.snapshot(FEED) as log:
        assert chunks[2:5] == log.scan(2, 8, 3)
        assert chunks[2:6] == log.scan(2, 6, 100)
        assert [] == log.scan(8, 9, 100)
        assert chunks == log.scan(0, 9, 9)


def test_partitions_are_unread_if_a_chunk_is_after_their_position(store):
    """I look only into partitions that have something."""
    for partition in (0, 1, 0):
        publish(store, chunk(partition, b"1"))
    asked = [((0, 0), 3), ((0, 2), 3), ((1, 2), 3), ((1, 2), 2), ((0, 0), 1), ((3, 2), 3)]
    with store.snapshot(FEED) as log:
        found = [log.unread(dict(enumerate(at)), upto) for at, upto in asked]
        assert [{0, 1}, {0}, {0}, set(), {0}, set()] == found
        assert set() == log.unread({}, 3)


def test_a_store_can_be_asked_for_many_partitions_and_tags(store):
    """A feed may have a thousand partitions."""
    store.create("wide", 1024)
    publish(store, *(chunk(each, b"1") for each in range(1024)), feed="wide")
    positions = dict.fromkeys(range(1024), 0)
    with store.snapshot("wide", range(2000)) as log:
        assert set(positions) == log.unread(positions, 1024)
        assert set(range(1025)) == log.tags.keys()
        assert positions.keys() == log.last(positions, 1024).keys()
        assert list(range(1, 1025)) == [each.g for each in log.chunks(positions, 1024, 2)]


def test_a_plan_leads_to_the_bytes_that_were_published(store):
    """I read what was written, byte for byte, and the sums show it."""
    chunks = [chunk(each % 2, b'"%d"' % each) for each in range(9)]
    for each in chunks:
        publish(store, each)
    request = PlanRequest(2, {"0": "_first", "1": "_first"}, range_bytes=1)
    found = fetched(store, request, direct_plans.plan(store, FEED, request)[1])
    expected = [lines_of(each.frame) for each in chunks[::2] + chunks[1::2]]
    assert expected == [lines for *_, lines in found]


def fetched(store: Store, request: PlanRequest, plan: Plan) -> list[tuple[int, Any, bytes]]:
    """Return the range, the header and the lines of each chunk of a plan; all sums are compared."""
    found = checked_ranges(plan, request)
    ranges = [each for partition in sorted(found) for each in found[partition]]
    if not ranges:
        return []
    wanted = [WantedRange(each.partition, each.from_, each.to) for each in ranges]
    answer = direct_reads.requested_chunks(store, FEED, ChunksRequest(request.n, wanted))
    parts = [*parse_answer(answer)]
    ends = [each for each in parts if isinstance(each, RangeEnd)]
    assert [(number, r.to, r.chunks, r.events, r.digest) for number, r in enumerate(ranges)] == [
        (end.range, end.to, end.chunks, end.events, end.digest) for end in ends
    ]
    read = []
    for each in parts:
        if isinstance(each, Group):
            lines = unpacked(FetchedGroup(0, each.headers, {}, each.places, each.frames))
            ends = np.cumsum(each.headers["size"])[:-1]
            pieces = np.split(np.frombuffer(lines, np.uint8), ends)
            for header, piece in zip(each.headers.tolist(), pieces, strict=True):
                read.append((each.range, header, piece.tobytes()))
    return read
