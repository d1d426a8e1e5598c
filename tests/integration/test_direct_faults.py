"""Tasks that fetch directly take what was planned, and nothing else: every way in which an answer
can end, and some that are wrong.
"""

from __future__ import annotations

import json

import msgspec
import pytest

from tests.cases import each_case
from tests.fix_raw_server import Answer, head, ok, refused
from tests.scratch_store import ScratchStore
from tests.store_contract.writers import FEED, large, publish
from zeh_spark.client import direct_client
from zeh_spark.client.transport import Transport
from zeh_spark.errors import PublisherError, UnavailableError
from zeh_spark.options.client_options import ClientOptions
from zeh_spark.options.given import parse
from zeh_spark.protocol import direct_reads as wire
from zeh_spark.protocol.direct_reads import PlanRequest
from zeh_spark.protocol.upload_format import lines_of
from zeh_spark.store import direct_plans, direct_reads

TYPE = {"content_type": wire.CONTENT_TYPE}


def whole(body):
    return ok(body, **TYPE)


class Origin:
    """A feed of six chunks in two partitions, behind a server that may change what it answers."""

    def __init__(self, server):
        self.server = server
        self.store = ScratchStore()
        self.store.create(FEED, 2)
        for number in range(6):
            publish(self.store, large(number % 2, b"%d" % number))
        self.request = PlanRequest(2, {"0": "_first", "1": "_first"}, range_bytes=12_000)
        self.plan = direct_plans.plan(self.store, FEED, self.request)
        wanted = [
            wire.WantedRange(each.partition, each.from_, each.to) for each in self.plan.ranges
        ]
        self.expected = [
            lines_of(frame)
            for part in wire.parse_answer(self.answer(wire.ChunksRequest(2, wanted)))
            if isinstance(part, wire.Group)
            for frame in part.frames
        ]

    def answer(self, asked):
        return direct_reads.requested_chunks(self.store, FEED, asked)

    def respond(self, change):
        """Answer each request rightly, but for what `change` makes of the body."""
        self.server.respond = lambda request: change(
            b"".join(self.answer(wire.decode_chunks_request(request.body)))
        )

    def transport(self, timeout="5s"):
        return Transport(parse(ClientOptions, {"url": self.server.url, "retryTimeout": timeout}))

    def fetched(self, timeout="1s"):
        groups = direct_client.fetch(self.transport(timeout), 2, self.plan.ranges)
        return [lines_of(frame) for group in groups for frame in group.frames]


@pytest.fixture
def origin(raw_server):
    return Origin(raw_server)


def unframed(body):
    """Only the end of the connection ends it."""
    return Answer((head(content_type=wire.CONTENT_TYPE, connection="close") + body,), "close")


def once(change):
    """Change the first answer only."""
    left = iter([change])
    return lambda body: next(left, whole)(body)


def test_a_refusal_that_may_pass_is_repeated(origin):
    """A busy publisher delays me, and nothing else."""
    origin.respond(once(lambda body: refused(503, "busy", retry_after="0")))
    assert origin.expected == origin.fetched(timeout="5s")


@each_case(
    "headers",
    [
        {"content_type": "application/x-ndjson"},
        {"content_type": "text/plain"},
        {**TYPE, "content_encoding": "gzip"},
        {**TYPE, "status": 203},
    ],
)
def test_another_kind_of_answer_is_refused(origin, headers):
    """A page, or what a proxy made of the answer, is not taken for chunks."""
    origin.respond(lambda body: ok(body, **headers))
    with pytest.raises(PublisherError, match="did not send the chunks that were planned"):
        origin.fetched()


@each_case("byte", range(0, 200, 7))
def test_a_changed_byte_never_becomes_a_row(origin, byte):
    """A bit that flips on the way fails the task, or is where no row depends on it: in what an
    answer says of itself at the end of a range, which the plan says, too.
    """

    def flipped(body):
        at = len(body) * byte // 200
        return whole(body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :])

    origin.respond(flipped)
    try:
        found = origin.fetched()
    except (PublisherError, UnavailableError):
        return
    assert origin.expected == found


def sent_group(part, headers, frames):
    group = wire.encode_group(headers, part.producers, frames)
    return group.line(part.range) + group.body


def rebuilt(body, change):
    """The answer with other groups; hashes and the ends of ranges fit them."""
    built, sent = [wire.BEGINNING], wire.Totals()
    for part in wire.parse_answer([body]):
        if isinstance(part, wire.RangeEnd):
            built.append(wire.encode_end(part.range, part.to, sent))
            sent = wire.Totals()
            continue
        for headers, frames in change(part.headers, part.frames):
            sent += wire.totals(headers)
            built.append(sent_group(part, headers, frames))
    return whole(b"".join(built))


def with_more(name):
    """Another number in all header records."""

    def change(headers, frames):
        headers = headers.copy()
        headers[name] += 101
        return [(headers, frames)]

    return change


OTHERS = {
    "without the first": lambda headers, frames: (
        [(headers[1:], frames[1:])] if len(frames) > 1 else []
    ),
    "twice": lambda headers, frames: [(headers, frames)] * 2,
    "backwards": lambda headers, frames: [(headers[::-1].copy(), frames[::-1])],
    **{name: with_more(name) for name in ("sequence", "time", "partition", "g")},
}


@each_case("change", OTHERS)
def test_other_chunks_than_planned_are_refused(origin, change):
    """An answer that is consistent in itself, and not what was planned, fails."""
    origin.request = PlanRequest(2, {"0": "_first", "1": "_first"})
    origin.plan = direct_plans.plan(origin.store, FEED, origin.request)
    origin.respond(lambda body: rebuilt(body, OTHERS[change]))
    with pytest.raises(PublisherError, match="did not send the chunks that were planned"):
        origin.fetched()


@pytest.mark.parametrize(
    "change", [whole, unframed, lambda body: rebuilt(body, lambda *group: [group])]
)
def test_an_answer_that_is_right_is_taken(origin, change):
    """What is whole is taken; and the tests above change what they mean to."""
    origin.respond(change)
    assert origin.expected == origin.fetched()


def test_ranges_in_another_order_are_refused(origin):
    """Rows would come in another order."""

    def swapped(body):
        parts = [part for part in wire.parse_answer([body]) if part.range in {0, 1}]
        built = [wire.BEGINNING]
        for part in sorted(parts, key=lambda part: -part.range):
            if isinstance(part, wire.Group):
                built.append(sent_group(part, part.headers, part.frames))
            else:
                built.append(msgspec.json.encode(part) + b"\n")
        return whole(b"".join(built))

    origin.respond(swapped)
    with pytest.raises(PublisherError, match="range 1 came, not 0"):
        origin.fetched()


@each_case(
    ("change", "why"),
    [
        (lambda plan: plan["ends"].update({"0": "1.0a1b2c3d"}), "do not lead from"),
        (lambda plan: plan["ranges"][1].update({"from": "1.0a1b2c3d"}), "do not lead from"),
        (lambda plan: plan["ranges"][1].update({"to": "1.0a1b2c3d"}), "do not lead from"),
        (lambda plan: plan["ranges"][0].update({"partition": 7}), "not for the partitions 0 to 1"),
        (lambda plan: plan["ends"].update({"1": "_first"}), "do not lead from"),
        (lambda plan: plan["ranges"][0].update({"events": 0}), "do not lead from"),
        (lambda plan: plan.update(ranges=[], more=True), "there is more, but plans nothing"),
        (lambda plan: "<html>", "malformed"),
    ],
)
def test_a_plan_with_a_gap_is_refused(origin, change, why):
    """A plan that would skip events, or be asked for for ever, is not followed."""
    plan = json.loads(msgspec.json.encode(origin.plan))
    body = change(plan) or json.dumps(plan)
    origin.server.script(ok(body.encode(), content_type="application/json"))
    with pytest.raises(
        PublisherError, match=f"answered a request for a plan with something else.*{why}"
    ):
        direct_client.plan(origin.transport(), origin.request)


def test_a_plan_that_breaks_off_is_asked_for_again(origin):
    """Half a plan is no plan."""
    body = msgspec.json.encode(origin.plan)
    cuts = [
        Answer((head(content_length=len(body)) + body[:-size],), "close") for size in (1, 20, 200)
    ]
    origin.server.script(*cuts, ok(body, content_type="application/json"))
    assert origin.plan == direct_client.plan(origin.transport(), origin.request)
