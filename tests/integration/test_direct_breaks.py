"""Large answers that break off, end too early or have bytes too many: a task continues exactly or
fails, and never has a row less or more.

The publisher is a real one, with 4.5 MB in two partitions: an answer of two ranges, each of two or
more groups. A relay changes what it sends, at exact offsets.
"""

from __future__ import annotations

import pickle
import random
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import closing
from operator import attrgetter

import pytest

from tests.fix_batch import batch_reader
from tests.fix_raw_server import chunked, ok
from tests.fix_relay import (
    CUT,
    ENDED,
    PLACES,
    TYPE,
    Relay,
    closed,
    ended_by_length,
    parts_of,
    place,
    reset,
    within_chunk,
    without_last_chunk,
)
from tests.scratch_store import ScratchStore
from zeh_spark.errors import PublisherError, UnavailableError
from zeh_spark.testing import publish, running_publisher
from zeh_spark.wire import direct_reads as wire

EVENTS, EVENT_BYTES = 750, 3000
"""Events of each partition, and bytes of one."""

GROUP_BYTES = 1 << 20
"""Most bytes of a group of chunks, of which a partition has at least three."""

UNREAD = 256 << 10
"""Bytes that a break may take with it, because they were not read yet."""

CHUNKS = [*range(1, 31)]
"""The positions of all chunks: they are published by partition."""

ALL = [*range(2 * EVENTS)]
"""The numbers of all events, as they should be read."""

NAME = attrgetter("__name__")


@pytest.fixture(scope="module")
def feed() -> Iterator[tuple[str, dict[str, int]]]:
    """The publisher's address, and the number of each event by its data."""
    noise = random.Random(4711)
    numbers: dict[str, int] = {}
    with closing(ScratchStore()) as store, pytest.MonkeyPatch.context() as patch:
        patch.setattr("zeh_spark.service.reads.direct_reads._GROUP_BYTES", GROUP_BYTES)
        store.create("orders", 2)
        for partition in range(2):
            texts = [
                b64encode(noise.randbytes(EVENT_BYTES * 3 // 4)).decode() for _ in range(EVENTS)
            ]
            for begin in range(0, EVENTS, 50):  # chunks of 150 KB
                publish(store, "orders", texts[begin : begin + 50], partition=partition)
            for each in texts:
                numbers[f'"{each}"'] = len(numbers)
        with running_publisher(store) as base:
            yield base, numbers


@pytest.fixture
def relayed(feed, relay) -> Relay:
    """A relay before the publisher."""
    relay.base = feed[0]
    return relay


@pytest.fixture
def task_of(feed) -> Callable[..., Callable[[], Iterator[int]]]:
    """`task_of(url)`: a batch read's one task. Each call unpickles and runs it, for its numbers."""

    def begin(url: str, timeout: str = "5s") -> Callable[[], Iterator[int]]:
        given = {"retryTimeout": timeout, "fetch": "executors", "minPartitions": "1"}
        reader = batch_reader(url, **given)
        (partition,) = reader.partitions()
        sent = pickle.dumps((reader, partition))

        def run() -> Iterator[int]:
            reader, partition = pickle.loads(sent)
            for batch in reader.read(partition):
                yield from map(feed[1].__getitem__, batch.column("data").to_pylist())

        return run

    return begin


# Bytes that are missing at the end


@pytest.mark.parametrize("way", [reset, within_chunk, ended_by_length], ids=NAME)
@pytest.mark.parametrize("where", PLACES)
def test_a_large_answer_that_ends_too_early_goes_on_exactly(relayed, task_of, where, way):
    """Wherever it breaks, also if HTTP says that this was all, I get each row once, in order."""
    came: list[int] = []

    def change(asked, body):
        left = body if len(relayed.asked) > 1 else body[: place(body, where)]
        groups = (part for part in wire.parse_answer([left]) if isinstance(part, wire.Group))
        came.extend(g for group in groups for g in group.headers["g"].tolist())
        return way(body, len(left)) if left is not body else ok(body, **TYPE)

    relayed.change = change
    assert ALL == list(task_of(relayed.url)())
    assert 2 == len(relayed.asked)
    if way is ended_by_length:  # no other break tells what was not read yet
        assert CHUNKS == came


@pytest.mark.parametrize("way", [closed, without_last_chunk, within_chunk, *ENDED], ids=NAME)
def test_answers_that_all_end_too_early_go_on_while_there_is_progress(relayed, task_of, way):
    """A network that breaks each answer after its first group costs time, and no row."""

    def change(asked, body):
        size = parts_of(body)[0].end + UNREAD
        return way(body, size) if size < len(body) else ok(body, **TYPE)

    relayed.change = change
    assert ALL == list(task_of(relayed.url)())
    assert len(relayed.asked) > 2


@pytest.mark.parametrize("way", [*CUT, *ENDED], ids=NAME)
def test_answers_that_all_end_before_a_group_is_whole_fail_by_name(relayed, task_of, way):
    """No row comes of a part of a group, and I learn that nothing is lost."""
    relayed.change = lambda asked, body: way(body, place(body, "in a frame") // 4)
    found: list[int] = []
    with pytest.raises(UnavailableError, match=r"executors have no route.*fetch=driver"):
        found.extend(task_of(relayed.url, timeout="300ms")())
    assert [] == found


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("size", [1_950_000, 2_000_001, 2_750_000])
def test_a_network_that_breaks_each_connection_costs_no_row(
    feed, task_of, start_proxy, size, reset
):
    """As above, with the publisher's own framing, and cuts between any two bytes of it."""
    proxy = start_proxy(int(feed[0].rpartition(":")[2]))
    proxy.cut_after(size, reset=reset)
    assert ALL == list(task_of(f"{proxy.address}/orders")())
    assert proxy.connections > 1  # each but the last one was cut


# Bytes too many

AGAIN = f"HTTP/1.1 200 OK\r\nContent-Type: {wire.CONTENT_TYPE}\r\nContent-Length: %d\r\n\r\n"
EXTRAS = {
    "a byte": lambda body, parts: b"x",
    "an empty line": lambda body, parts: b"\n",
    "its last line": lambda body, parts: body[parts[-1].begin :],
    "its last group": lambda body, parts: body[parts[-2].begin : parts[-2].end],
    "all of it": lambda body, parts: body,
    "another answer": lambda body, parts: AGAIN.encode() % len(body) + body,
}
SENT = {
    "counted": lambda body, extra: ok(body + extra, **TYPE),
    "uncounted": lambda body, extra: ok(body, **TYPE).then(extra),  # the connection stays open
    "in chunks": lambda body, extra: chunked(body, extra, **TYPE),
    "after the last chunk": lambda body, extra: chunked(body, **TYPE).then(extra),
}


@pytest.mark.parametrize("way", SENT.values(), ids=SENT)
@pytest.mark.parametrize("extra", EXTRAS.values(), ids=EXTRAS)
def test_bytes_after_a_whole_answer_change_nothing(relayed, task_of, extra, way):
    """All that was planned has come. What follows is no row, and no answer to my next request."""
    relayed.script(lambda body: way(body, extra(body, parts_of(body))))
    run = task_of(relayed.url)
    assert [ALL] * 2 == [list(run()) for _ in range(2)]
    assert 2 == len(relayed.asked)


MIDDLES = {
    "a group again": lambda body, group, end: body[: group.end] + body[group.begin :],
    "an end again": lambda body, group, end: body[: end.end] + body[end.begin :],
    "without a group": lambda body, group, end: body[: group.begin] + body[group.end :],
    "without an end": lambda body, group, end: body[: end.begin] + body[end.end :],
    "without a frame": lambda body, group, end: body[: group.frames[0]] + body[group.frames[1] :],
    "a frame again": lambda body, group, end: body[: group.frames[1]] + body[group.frames[0] :],
    "without a byte": lambda body, group, end: (
        body[: group.frames[0]] + body[group.frames[0] + 1 :]
    ),
    "a byte again": lambda body, group, end: body[: group.frames[0] + 1] + body[group.frames[0] :],
}
"""HTTP's framing of them is right."""


@pytest.mark.parametrize("change", MIDDLES.values(), ids=MIDDLES)
def test_bytes_too_many_or_too_few_in_the_middle_fail_the_task(relayed, task_of, change):
    """The task has given a beginning of what was planned, which Spark drops, and nothing else."""

    def changed(asked, body):
        parts = parts_of(body)
        end = next(each for each in parts if not each.is_group)
        return ok(change(body, parts[parts.index(end) - 1], end), **TYPE)

    relayed.change = changed
    found: list[int] = []
    with pytest.raises(PublisherError, match="did not send the chunks that were planned"):
        found.extend(task_of(relayed.url)())
    assert ALL[: len(found)] == found
    assert len(found) < len(ALL)
