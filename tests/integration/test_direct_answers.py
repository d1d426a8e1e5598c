"""A task compares each answer with its plan. Here an answer is wrong in one way only, and agrees
with the plan's counts and digest, so that nothing else can notice.
"""

from __future__ import annotations

import pytest

from tests.fix_direct import BEGIN, END, TYPE, Sent, end_of, frames, group, planned
from tests.fix_raw_server import ok
from zeh_spark.client import direct_client
from zeh_spark.client.transport import Transport
from zeh_spark.errors import PublisherError
from zeh_spark.options.client_options import ClientOptions
from zeh_spark.options.given import parse
from zeh_spark.protocol import direct_reads as wire

USUAL = (Sent(5), Sent(7))


@pytest.fixture
def fetched(raw_server):
    """`fetched(body, planned)`: the frames that a task takes of an answer with this body."""

    def fetch(body, plan, n=2):
        raw_server.script(ok(body, **TYPE))
        options = parse(ClientOptions, {"url": raw_server.url, "retryTimeout": "1s"})
        transport = Transport(options)
        groups = direct_client.fetch(transport, n, [plan])
        return [frame for each in groups for frame in each.frames]

    return fetch


def answer(*chunks, **given):
    return wire.BEGINNING + group(*chunks, **given) + end_of(*chunks)


def test_an_answer_that_is_right_is_taken(fetched):
    """The other tests change what they mean to."""
    assert 2 == len(fetched(answer(*USUAL), planned(*USUAL)))


@pytest.mark.parametrize(
    ("chunks", "why"),
    [
        ((Sent(3), Sent(7)), f"chunks 3 to 7 came for those from {BEGIN[0]} to {END[0]}"),
        ((Sent(5), Sent(10)), f"chunks 5 to 10 came for those from {BEGIN[0]} to {END[0]}"),
        ((Sent(5), Sent(5)), "chunks 5 to 5 came"),
        ((Sent(5), Sent(7, partition=1)), "is of another one"),
        ((Sent(5), Sent(7, events=0)), "a chunk is empty"),
        ((Sent(5), Sent(7, size=0)), "a chunk is empty"),
        ((Sent(5), Sent(7, producer="q")), "the name of a producer is missing"),
    ],
)
def test_chunks_that_a_range_cannot_have_are_refused(fetched, chunks, why):
    """A publisher that mixes up chunks, in its plan too, gives me no rows."""
    with pytest.raises(PublisherError, match=why):
        fetched(answer(*chunks), planned(*chunks))


def test_a_chunk_that_came_before_is_refused_in_a_later_group(fetched):
    """Where one group ended, the next one begins."""
    body = wire.BEGINNING + group(Sent(7)) + group(Sent(5)) + end_of(Sent(7), Sent(5))
    with pytest.raises(PublisherError, match="chunks 5 to 5 came for those from 7 to 9"):
        fetched(body, planned(Sent(7), Sent(5)))


def test_a_range_that_ends_elsewhere_is_refused(fetched):
    """The publisher says that it has sent something else than I asked for."""
    body = wire.BEGINNING + group(*USUAL) + end_of(*USUAL, end="8.0a1b2c3d")
    with pytest.raises(PublisherError, match="did not send the chunks that were planned"):
        fetched(body, planned(*USUAL))


@pytest.mark.parametrize(
    "beginning",
    [
        b'{"format":"zeroeventhub-chunks","version":2}\n',
        b'{"format":"zeroeventhub-pages","version":1}\n',
    ],
)
def test_another_format_or_version_is_refused(fetched, beginning):
    """I do not guess what the bytes of a newer publisher mean."""
    body = answer(*USUAL).replace(wire.BEGINNING, beginning, 1)
    with pytest.raises(PublisherError, match="its format is"):
        fetched(body, planned(*USUAL))


def test_a_group_of_too_many_chunks_is_refused(fetched):
    """What a task holds at a time is bounded."""
    chunks = [Sent(g) for g in range(4, 4 + wire.GROUP_CHUNKS + 1)]
    with pytest.raises(PublisherError, match="a group of 1025 chunks"):
        fetched(
            wire.BEGINNING + group(*chunks) + end_of(*chunks, end="9999.0a1b2c3d"),
            planned(*chunks, end="9999.0a1b2c3d"),
        )


def test_a_group_that_unpacks_to_too_many_bytes_is_refused(fetched):
    """Small frames of zeros do not fill a task's memory."""
    chunks = [Sent(g, size=1 << 20) for g in range(4, 21)]
    with pytest.raises(PublisherError, match="a group whose lines have 17825792 bytes"):
        fetched(
            wire.BEGINNING + group(*chunks) + end_of(*chunks, end="9999.0a1b2c3d"),
            planned(*chunks, end="9999.0a1b2c3d"),
        )


def test_a_group_of_too_many_bytes_is_refused(fetched):
    """What a task holds at a time is bounded."""
    frame = bytes(1 << 20)
    chunks = [Sent(g, frame=frame) for g in range(4, 21)]
    end = "99.0a1b2c3d"
    body = wire.BEGINNING + group(*chunks) + end_of(*chunks, end=end)
    with pytest.raises(PublisherError, match=f"{17 << 20} bytes is not allowed"):
        fetched(body, planned(*chunks, end=end))


@pytest.mark.parametrize("count", [0, -1])
def test_a_group_without_chunks_is_refused(fetched, count):
    """No count makes the task fail in another way."""
    body = wire.BEGINNING + b'{"range":0,"chunks":%d,"producers":[],"bytes":0}\n' % count
    with pytest.raises(PublisherError, match=f"a group of {count} chunks"):
        fetched(body + end_of(), planned())


def test_bytes_that_belong_to_no_frame_are_refused(fetched):
    """A group has its frames and nothing else."""
    size = sum(map(len, frames(USUAL)))
    whole = group(*USUAL).replace(b'"bytes":%d' % size, b'"bytes":%d' % (size + 5), 1)
    body = wire.BEGINNING + whole + b"other" + end_of(*USUAL)
    with pytest.raises(PublisherError, match=f"a group of {size + 5} bytes have {size}"):
        fetched(body, planned(*USUAL))


def test_a_frame_that_no_chunk_can_have_is_refused(fetched):
    """A chunk has 1 MiB of lines at most, and its frame hardly more."""
    large = Sent(5, frame=bytes((1 << 20) + (64 << 10) + 1))
    with pytest.raises(PublisherError, match="did not send the chunks that were planned"):
        fetched(answer(large), planned(large))
