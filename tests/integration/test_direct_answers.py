"""A task takes of any answer what was planned, and no more; plans with gaps are not followed."""

import json

import msgspec
import numpy as np
import pytest

from tests.cases import each_case
from tests.fix_direct import BEGIN, END, TYPE, Sent, end_of, frames, group, planned
from tests.fix_raw_server import Answer, head, ok, refused
from zeh_spark.client.http import direct_client
from zeh_spark.client.http.transport import Transport
from zeh_spark.client.options.client_options import ClientOptions
from zeh_spark.client.options.given import parse
from zeh_spark.errors import PublisherError
from zeh_spark.wire import direct_reads as wire

USUAL = (Sent(5), Sent(7))
MIDDLE, FAR = "7.0a1b2c3d", "9999.0a1b2c3d"
ZEROS = bytes(1 << 20)


@pytest.fixture
def transport(raw_server):
    return Transport(parse(ClientOptions, {"url": raw_server.url, "retryTimeout": "5s"}))


@pytest.fixture
def fetched(raw_server, transport):
    """`fetched(plan, answers)`: the frames that a task takes of the next answers."""

    def fetch(plan, *answers):
        raw_server.script(*answers)
        groups = direct_client.fetch(transport, 2, [plan])
        return [frame for each in groups for frame in each.frames]

    return fetch


def answer(*chunks, end=END):
    return wire.BEGINNING + group(*chunks) + end_of(*chunks, end=end)


RIGHT = answer(*USUAL)


@each_case(
    "answers",
    [
        [ok(RIGHT, **TYPE)],
        # only the end of the connection ends it
        [Answer((head(**TYPE, connection="close") + RIGHT,), "close")],
        [refused(503, "busy", retry_after="0"), ok(RIGHT, **TYPE)],
    ],
)
def test_an_answer_that_is_right_is_taken(fetched, answers):
    """Also after a refusal that may pass. The other tests change what they mean to."""
    assert frames(USUAL) == fetched(planned(*USUAL), *answers)


@each_case(
    "headers",
    [
        {"content_type": "application/x-ndjson"},
        {"content_type": "text/plain"},
        {**TYPE, "content_encoding": "gzip"},
        {**TYPE, "status": 203},
    ],
)
def test_another_kind_of_answer_is_refused(fetched, headers):
    """A page, or what a proxy made of the answer, is not taken for chunks."""
    with pytest.raises(PublisherError, match="did not send the chunks that were planned"):
        fetched(planned(*USUAL), ok(RIGHT, **headers))


@each_case("at", range(0, len(RIGHT), 7))
def test_a_changed_byte_never_becomes_a_row(fetched, at):
    """A bit that flips on the way fails the task, or is where no row depends on it: in what an
    answer says of itself at the end of a range, which the plan says, too.
    """
    flipped = RIGHT[:at] + bytes([RIGHT[at] ^ 1]) + RIGHT[at + 1 :]
    try:
        found = fetched(planned(*USUAL), ok(flipped, **TYPE), ok(RIGHT, **TYPE))
    except PublisherError:
        return
    assert frames(USUAL) == found


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
        [Sent(5), Sent(7, sequence=-1)], END, "number of a batch or of an event, is out of range"
    ),
    "with a number too large": (
        [Sent(5), Sent(7, sequence=(1 << 63) - 1)], END, "of an event, is out of range"
    ),
    "before 1970": ([Sent(5), Sent(7, time=-1)], END, "a time, .* is out of range"),
    "too many in a group": ([Sent(g) for g in range(4, 8197)], FAR, "a group of 8193 chunks"),
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
    a time is bounded. The answer agrees with the plan, so that nothing else can notice.
    """
    chunks, end, why = CHUNKS[kind]
    with pytest.raises(PublisherError, match=why):
        fetched(planned(*chunks, end=end), ok(answer(*chunks, end=end), **TYPE))


SIZE = sum(map(len, frames(USUAL)))
PLACES = np.array([(0, 0), (1, 0)], wire.PLACES).tobytes()
OTHERS = "chunks, events, bytes and digest of the range"
BODIES = {
    "without the first": (answer(Sent(7)), OTHERS),
    "backwards": (answer(*USUAL[::-1]), "chunks 7 to 5 came for those from 3 to 9"),
    "twice": (
        wire.BEGINNING + group(*USUAL) * 2 + end_of(*USUAL * 2),
        "chunks 5 to 7 came for those",
    ),
    "another sequence number": (answer(Sent(5, sequence=101), Sent(7)), OTHERS),
    "another time": (answer(Sent(5, time=111), Sent(7)), OTHERS),
    "another stored partition": (answer(Sent(5, partition=2), Sent(7)), OTHERS),
    "another position": (answer(Sent(6), Sent(7)), OTHERS),
    "another range": (
        wire.BEGINNING + group(*USUAL, number=1) + end_of(*USUAL, number=1),
        "range 1 came, not 0",
    ),
    "a chunk that came in an earlier group": (
        wire.BEGINNING + group(Sent(7)) + group(Sent(5)) + end_of(*USUAL),
        "chunks 5 to 5 came for those from 7 to 9",
    ),
    "a range that ends elsewhere": (
        wire.BEGINNING + group(*USUAL) + end_of(*USUAL, end="8.0a1b2c3d"),
        OTHERS,
    ),
    "another version": (
        b'{"format":"zeroeventhub-chunks","version":1}\n' + group(*USUAL) + end_of(*USUAL),
        "its format is",
    ),
    "another format": (
        b'{"format":"zeroeventhub-pages","version":1}\n' + group(*USUAL) + end_of(*USUAL),
        "its format is",
    ),
    "a group without chunks": (
        wire.BEGINNING + b'{"range":0,"chunks":0,"producers":[],"frames":1,"bytes":0}\n' + end_of(),
        "a group of 0 chunks in 1 frames",
    ),
    "a group of fewer chunks than none": (
        wire.BEGINNING
        + b'{"range":0,"chunks":-1,"producers":[],"frames":1,"bytes":0}\n'
        + end_of(),
        "a group of -1 chunks",
    ),
    "a group without frames": (
        wire.BEGINNING + b'{"range":0,"chunks":1,"producers":[],"frames":0,"bytes":0}\n' + end_of(),
        "a group of 1 chunks in 0 frames",
    ),
    "a chunk in a frame that does not come": (
        RIGHT.replace(PLACES, PLACES[:8] + b"\2" + PLACES[9:]),
        "a chunk is in frame 2, and there are 2",
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
def test_an_answer_that_was_not_planned_is_refused(fetched, kind):
    """Nothing is guessed of newer publishers, or taken unasked, however consistent it is."""
    body, why = BODIES[kind]
    with pytest.raises(PublisherError, match=f"did not send the chunks that were planned.*{why}"):
        fetched(planned(*USUAL), ok(body, **TYPE))


# Plans

REQUEST = wire.PlanRequest(2, {"0": BEGIN, "1": BEGIN})
RANGES = [
    planned(Sent(5), end=MIDDLE),
    planned(Sent(9), begin=MIDDLE),
    planned(Sent(8, partition=1), partition=1),
]
PLAN = wire.Plan({"0": END, "1": END}, False, END, 10, 0, RANGES)


@each_case(
    ("change", "why"),
    [
        (lambda plan: plan["ends"].update({"0": MIDDLE}), "do not lead from"),
        (lambda plan: plan["ranges"][0].update({"from": MIDDLE}), "do not lead from"),
        (lambda plan: plan["ranges"][1].update({"from": "1.0a1b2c3d"}), "do not lead from"),
        (lambda plan: plan["ranges"][1].update({"to": "1.0a1b2c3d"}), "do not lead from"),
        (lambda plan: plan["ranges"][0].update({"partition": 7}), "not for the partitions 0-1"),
        (lambda plan: plan["ends"].update({"1": "_first"}), "do not lead from"),
        (lambda plan: plan["ranges"][0].update({"events": 0}), "do not lead from"),
        (lambda plan: plan.update(ranges=[], more=True), "there is more, but plans nothing"),
        (lambda plan: "<html>", "malformed"),
    ],
)
def test_a_plan_with_a_gap_is_refused(raw_server, transport, change, why):
    """A plan that would skip events, or be asked for for ever, is not followed."""
    plan = json.loads(msgspec.json.encode(PLAN))
    body = change(plan) or json.dumps(plan)
    raw_server.script(ok(body.encode(), content_type="application/json"))
    with pytest.raises(
        PublisherError, match=f"answered a request for a plan with something else.*{why}"
    ):
        direct_client.plan(transport, REQUEST)


def test_a_plan_that_breaks_off_is_asked_for_again(raw_server, transport):
    """Half a plan is no plan."""
    body = msgspec.json.encode(PLAN)
    cuts = [
        Answer((head(content_length=len(body)) + body[:-size],), "close") for size in (1, 20, 200)
    ]
    raw_server.script(*cuts, ok(body, content_type="application/json"))
    assert PLAN == direct_client.plan(transport, REQUEST)
