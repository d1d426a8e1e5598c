"""A task compares each answer with its plan. Here an answer is wrong in one way only, and agrees
with the plan's counts and digest, so that nothing else can notice.
"""

from __future__ import annotations

import pytest

from tests.cases import each_case
from tests.fix_direct import END, TYPE, Sent, end_of, frames, group, planned
from tests.fix_raw_server import ok
from zeh_spark.client import direct_client
from zeh_spark.client.transport import Transport
from zeh_spark.errors import PublisherError
from zeh_spark.options.client_options import ClientOptions
from zeh_spark.options.given import parse
from zeh_spark.protocol import direct_reads as wire

USUAL = (Sent(5), Sent(7))
FAR = "9999.0a1b2c3d"
ZEROS = bytes(1 << 20)


@pytest.fixture
def fetched(raw_server):
    """`fetched(body, planned)`: the frames that a task takes of an answer with this body."""

    def fetch(body, plan):
        raw_server.script(ok(body, **TYPE))
        options = parse(ClientOptions, {"url": raw_server.url, "retryTimeout": "1s"})
        groups = direct_client.fetch(Transport(options), 2, [plan])
        return [frame for each in groups for frame in each.frames]

    return fetch


def answer(*chunks, end=END):
    return wire.BEGINNING + group(*chunks) + end_of(*chunks, end=end)


def test_an_answer_that_is_right_is_taken(fetched):
    """The other tests change what they mean to."""
    assert 2 == len(fetched(answer(*USUAL), planned(*USUAL)))


CHUNKS = {
    "before the range": ([Sent(3), Sent(7)], END, "chunks 3 to 7 came for those from 3 to 9"),
    "after the range": ([Sent(5), Sent(10)], END, "chunks 5 to 10 came for those from 3 to 9"),
    "twice": ([Sent(5), Sent(5)], END, "chunks 5 to 5 came"),
    "of another partition": ([Sent(5), Sent(7, partition=1)], END, "is of another one"),
    "without events": ([Sent(5), Sent(7, events=0)], END, "a chunk is empty"),
    "without bytes": ([Sent(5), Sent(7, size=0)], END, "a chunk is empty"),
    "of a producer without a name": (
        [Sent(5), Sent(7, producer="q")], END, "the name of a producer is missing"
    ),
    "without a number": (
        [Sent(5), Sent(7, sequence=-1)], END, "the number of a batch or of an event is missing"
    ),
    "too many in a group": ([Sent(g) for g in range(4, 1029)], FAR, "a group of 1025 chunks"),
    "small frames that unpack to too many bytes": (
        [Sent(g, size=1 << 20) for g in range(4, 21)],
        FAR, "a group whose lines have 17825792 bytes",
    ),
    "too many bytes in a group": (
        [Sent(g, frame=ZEROS) for g in range(4, 21)],
        FAR, f"{17 << 20} bytes is not allowed",
    ),
    "a frame that no chunk of 1 MiB can have": (
        [Sent(5, frame=ZEROS + bytes((64 << 10) + 1))],
        END, "did not send the chunks that were planned",
    ),
}  # fmt: skip


@each_case("kind", CHUNKS)
def test_chunks_that_a_range_cannot_have_are_refused(fetched, kind):
    """A publisher that mixes up chunks, in its plan too, gives me no rows; and what a task holds at
    a time is bounded.
    """
    chunks, end, why = CHUNKS[kind]
    with pytest.raises(PublisherError, match=why):
        fetched(answer(*chunks, end=end), planned(*chunks, end=end))


SIZE = sum(map(len, frames(USUAL)))
BODIES = {
    "a chunk that came in an earlier group": (
        wire.BEGINNING + group(Sent(7)) + group(Sent(5)) + end_of(*USUAL),
        "chunks 5 to 5 came for those from 7 to 9",
    ),
    "a range that ends elsewhere": (
        wire.BEGINNING + group(*USUAL) + end_of(*USUAL, end="8.0a1b2c3d"),
        "did not send the chunks that were planned",
    ),
    "a newer version": (
        b'{"format":"zeroeventhub-chunks","version":2}\n' + group(*USUAL) + end_of(*USUAL),
        "its format is",
    ),
    "another format": (
        b'{"format":"zeroeventhub-pages","version":1}\n' + group(*USUAL) + end_of(*USUAL),
        "its format is",
    ),
    "a group without chunks": (
        wire.BEGINNING + b'{"range":0,"chunks":0,"producers":[],"bytes":0}\n' + end_of(),
        "a group of 0 chunks",
    ),
    "a group of fewer chunks than none": (
        wire.BEGINNING + b'{"range":0,"chunks":-1,"producers":[],"bytes":0}\n' + end_of(),
        "a group of -1 chunks",
    ),
    "bytes that belong to no frame": (
        wire.BEGINNING
        + group(*USUAL).replace(b'"bytes":%d' % SIZE, b'"bytes":%d' % (SIZE + 5), 1)
        + b"other"
        + end_of(*USUAL),
        f"a group of {SIZE + 5} bytes have {SIZE}",
    ),
}


@each_case("kind", BODIES)
def test_an_answer_of_another_form_is_refused(fetched, kind):
    """I do not guess what the bytes of a newer publisher mean, or take what I did not ask for."""
    body, why = BODIES[kind]
    with pytest.raises(PublisherError, match=why):
        fetched(body, planned(*USUAL))
