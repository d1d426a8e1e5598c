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
from functools import partial
from operator import attrgetter

import pytest

from tests.fix_raw_server import Answer, chunked, ok
from tests.fix_relay import (
    CUT,
    ENDED,
    PLACES,
    TYPE,
    Part,
    Relay,
    closed,
    ended_by_length,
    parts_of,
    place,
    reset,
    within_chunk,
    without_last_chunk,
)
from tests.fix_stream import DECODER
from tests.scratch_store import ScratchStore
from zeh_spark.errors import PublisherError, UnavailableError
from zeh_spark.options.given import parse
from zeh_spark.protocol import direct_reads as wire
from zeh_spark.source.batch import BatchReader
from zeh_spark.source.options import SourceOptions
from zeh_spark.testing import publish, running_publisher

EVENTS, EVENT_BYTES = 750, 3000
"""Events of each partition, and bytes of one."""

GROUP_BYTES = 2 << 20
"""Of a group of chunks; a partition is a little larger."""

CHUNKS = [*range(1, 31)]
"""The positions of all chunks: they are published by partition."""

NAME = attrgetter("__name__")


ALL = [*range(2 * EVENTS)]
"""The numbers of all events, as they should be read."""


@pytest.fixture(scope="module")
def feed() -> Iterator[tuple[str, dict[str, int]]]:
    """The publisher's address, and the number of each event by its data."""
    noise = random.Random(4711)
    numbers: dict[str, int] = {}
    with closing(ScratchStore()) as store, pytest.MonkeyPatch.context() as patch:
        patch.setattr("zeh_spark.store.direct_reads._GROUP_BYTES", GROUP_BYTES)
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


Task = Callable[..., Callable[[], Iterator[int]]]


@pytest.fixture
def task_of(feed) -> Task:
    """`task_of(url)`: the one task of a batch read. Each call runs it, from its pickle, and yields
    the numbers of its events.
    """
    return partial(_task_of, feed[1])


def _task_of(numbers: dict[str, int], url: str, timeout: str = "5s") -> Callable[[], Iterator[int]]:
    given = {"url": url, "retryTimeout": timeout, "fetch": "executors", "minPartitions": "1"}
    options = parse(SourceOptions, given)
    reader = BatchReader(options, DECODER)
    (partition,) = reader.partitions()
    sent = pickle.dumps((reader, partition))

    def run() -> Iterator[int]:
        reader, partition = pickle.loads(sent)
        for batch in reader.read(partition):
            yield from map(numbers.__getitem__, batch.column("data").to_pylist())

    return run


def positions(body: bytes) -> list[int]:
    """The chunks of the groups that came whole."""
    return [
        g
        for part in wire.parse_answer([body])
        if isinstance(part, wire.Group)
        for g in part.headers["g"].tolist()
    ]


# Bytes that are missing at the end


@pytest.mark.parametrize("way", [reset, within_chunk, ended_by_length], ids=NAME)
@pytest.mark.parametrize("where", PLACES)
def test_a_large_answer_that_ends_too_early_goes_on_exactly(relayed, task_of, where, way):
    """Wherever the connection breaks, and also if HTTP says that this was all, I get each row
    once, in its order.
    """
    came: list[int] = []

    def change(asked, body):
        left = body if len(relayed.asked) > 1 else body[: place(body, where)]
        came.extend(positions(left))
        return way(body, len(left)) if left is not body else ok(body, **TYPE)

    relayed.change = change
    assert ALL == list(task_of(relayed.url)())
    assert 2 == len(relayed.asked)
    if way is ended_by_length:  # a break takes up to 256 KiB with it that were not read yet
        assert CHUNKS == came


@pytest.mark.parametrize("way", [closed, without_last_chunk, within_chunk, *ENDED], ids=NAME)
def test_answers_that_all_end_too_early_go_on_while_there_is_progress(relayed, task_of, way):
    """A network that breaks each answer after its first group costs time, and no row."""

    def change(asked: wire.ChunksRequest, body: bytes) -> Answer:
        size = parts_of(body)[0].end + (150 << 10)
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


@pytest.mark.parametrize("timeout", ["100ms", "5s"])
def test_what_came_before_a_break_is_a_beginning(relayed, task_of, timeout):
    """A task that fails after some rows has given the first ones; one that waits gives all."""
    relayed.script(*[lambda body: ended_by_length(body, place(body, "between two ranges"))] * 2)
    found: list[int] = []
    try:
        for each in task_of(relayed.url, timeout)():
            found.append(each)
    except UnavailableError:
        assert ("100ms", EVENTS) == (timeout, len(found))
    assert ALL[: len(found)] == found
    assert (timeout == "5s") == (len(found) == len(ALL))


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("size", [1_950_000, 2_000_001, 2_750_000])
def test_a_network_that_breaks_each_connection_costs_no_row(
    feed, task_of, start_proxy, size, reset
):
    """As above, with the publisher's own framing, and cuts between any two bytes of it."""
    proxy = start_proxy(int(feed[0].rpartition(":")[2]))
    proxy.cut_after(size, reset=reset)
    assert ALL == list(task_of(f"{proxy.address}/orders")())
    assert proxy.connections > 2


# Bytes too many

AGAIN = "HTTP/1.1 200 OK\r\nContent-Type: {}\r\nContent-Length: {}\r\n\r\n"


def after_it(body: bytes, name: str) -> bytes:
    parts = parts_of(body)
    return {
        "a byte": b"x",
        "an empty line": b"\n",
        "its last line": body[parts[-1].begin :],
        "its last group": body[parts[-2].begin : parts[-2].end],
        "all of it": body,
        "another answer": AGAIN.format(wire.CONTENT_TYPE, len(body)).encode() + body,
    }[name]


def counted(body: bytes, extra: bytes) -> Answer:
    """Content-Length counts them."""
    return ok(body + extra, **TYPE)


def uncounted(body: bytes, extra: bytes) -> Answer:
    """They come after what Content-Length counts, on a connection that stays open."""
    return ok(body, **TYPE).then(extra)


def in_chunks(body: bytes, extra: bytes) -> Answer:
    return chunked(body, extra, **TYPE)


def after_the_last_chunk(body: bytes, extra: bytes) -> Answer:
    return chunked(body, **TYPE).then(extra)


@pytest.mark.parametrize("way", [counted, uncounted, in_chunks, after_the_last_chunk], ids=NAME)
@pytest.mark.parametrize(
    "extra",
    ["a byte", "an empty line", "its last line", "its last group", "all of it", "another answer"],
)
def test_bytes_after_a_whole_answer_change_nothing(relayed, task_of, extra, way):
    """All that was planned has come. What follows is no row, and no answer to my next request."""
    relayed.script(lambda body: way(body, after_it(body, extra)))
    run = task_of(relayed.url)
    assert [ALL] * 2 == [list(run()) for _ in range(2)]
    assert 2 == len(relayed.asked)


# Bytes too many, or missing, in the middle; HTTP's framing is right


def group_again(body: bytes, group: Part, end: Part) -> bytes:
    return body[: group.end] + body[group.begin :]


def end_again(body: bytes, group: Part, end: Part) -> bytes:
    return body[: end.end] + body[end.begin :]


def without_group(body: bytes, group: Part, end: Part) -> bytes:
    return body[: group.begin] + body[group.end :]


def without_end(body: bytes, group: Part, end: Part) -> bytes:
    return body[: end.begin] + body[end.end :]


def without_frame(body: bytes, group: Part, end: Part) -> bytes:
    return body[: group.frames[0]] + body[group.frames[1] :]


def frame_again(body: bytes, group: Part, end: Part) -> bytes:
    return body[: group.frames[1]] + body[group.frames[0] :]


def without_a_byte(body: bytes, group: Part, end: Part) -> bytes:
    return body[: group.frames[0]] + body[group.frames[0] + 1 :]


def a_byte_again(body: bytes, group: Part, end: Part) -> bytes:
    return body[: group.frames[0] + 1] + body[group.frames[0] :]


@pytest.mark.parametrize(
    "change",
    [
        group_again, end_again, without_group, without_end, without_frame, frame_again,
        without_a_byte, a_byte_again,
    ],
    ids=NAME,
)  # fmt: skip
def test_bytes_too_many_or_too_few_in_the_middle_fail_the_task(relayed, task_of, change):
    """The task has given a beginning of what was planned, which Spark drops, and nothing else."""

    def changed(asked: wire.ChunksRequest, body: bytes) -> Answer:
        parts = parts_of(body)
        end = next(each for each in parts if not each.is_group)
        group = parts[parts.index(end) - 1]
        return ok(change(body, group, end), **TYPE)

    relayed.change = changed
    found: list[int] = []
    with pytest.raises(PublisherError, match="did not send the chunks that were planned"):
        found.extend(task_of(relayed.url)())
    assert ALL[: len(found)] == found
    assert len(found) < len(ALL)
