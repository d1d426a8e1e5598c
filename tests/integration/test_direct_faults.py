"""Tasks that fetch directly take what was planned, and nothing else: every way in which an answer
can end, and some that are wrong.
"""

from __future__ import annotations

import json

import msgspec
import pytest

from tests.fix_raw_server import Answer, head, ok, refused
from tests.scratch_store import ScratchStore
from tests.store_contract.writers import FEED, large, publish
from zeh_spark.client import direct_client
from zeh_spark.client.transport import Transport
from zeh_spark.errors import CursorGoneError, PublisherError, UnavailableError
from zeh_spark.options.client_options import ClientOptions
from zeh_spark.options.given import parse
from zeh_spark.protocol import direct_reads as wire
from zeh_spark.protocol.direct_reads import PlanRequest
from zeh_spark.protocol.upload_format import lines_of
from zeh_spark.store import direct_plans, direct_reads

TYPE = {"content_type": wire.CONTENT_TYPE}


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
        self.expected = list(self.read_from(b"".join(self.answer(self.plan.ranges))))

    def answer(self, ranges):
        wanted = [wire.WantedRange(each.partition, each.from_, each.to) for each in ranges]
        return direct_reads.requested_chunks(self.store, FEED, wire.ChunksRequest(2, wanted))

    def read_from(self, body):
        for part in wire.parse_answer([body]):
            if isinstance(part, wire.Group):
                yield from map(lines_of, part.frames)

    def respond(self, change=lambda body: ok(body, **TYPE)):
        """Answer each request rightly, but for what `change` makes of the body."""

        def respond(request):
            asked = wire.decode_chunks_request(request.body)
            answer = direct_reads.requested_chunks(self.store, FEED, asked)
            return change(b"".join(answer))

        self.server.respond = respond

    def fetched(self, ranges=None, timeout="1s"):
        options = parse(ClientOptions, {"url": self.server.url, "retryTimeout": timeout})
        transport = Transport(options)
        groups = direct_client.fetch(transport, 2, ranges or self.plan.ranges)
        return [lines_of(frame) for group in groups for frame in group.frames]


@pytest.fixture
def origin(raw_server):
    return Origin(raw_server)


def test_what_was_planned_arrives(origin):
    """The right answer is taken."""
    origin.respond()
    assert origin.expected == origin.fetched()


def cut(body, end="close"):
    """An answer of which bytes are missing at the end."""
    return Answer((head(content_type=wire.CONTENT_TYPE, content_length=len(body) + 9) + body,), end)


def unframed(body):
    """Only the end of the connection ends it."""
    return Answer((head(content_type=wire.CONTENT_TYPE, connection="close") + body,), "close")


def once(first, change, then=lambda body: ok(body, **TYPE)):
    """Change the first answer only."""
    left = iter([first])
    return lambda body: change(body) if next(left, None) else then(body)


@pytest.mark.parametrize("end", ["close", "reset"])
@pytest.mark.parametrize("twentieth", range(20))
def test_an_answer_that_breaks_off_goes_on_without_a_chunk_twice(origin, twentieth, end):
    """Wherever it is cut, I get each chunk once."""
    origin.respond(once(True, lambda body: cut(body[: len(body) * twentieth // 20], end)))
    assert origin.expected == origin.fetched(timeout="5s")
    assert len(origin.server.requests) == 2


@pytest.mark.parametrize("twentieth", range(20))
def test_an_unframed_answer_counts_as_far_as_it_proves_itself(origin, twentieth):
    """Without any framing, the line that ends a range shows that it is whole."""
    origin.respond(once(True, lambda body: unframed(body[: len(body) * twentieth // 20])))
    assert origin.expected == origin.fetched(timeout="5s")


def test_an_unframed_answer_that_is_whole_is_taken(origin):
    origin.respond(unframed)
    assert origin.expected == origin.fetched()


def test_an_answer_that_always_breaks_off_fails_by_name(origin):
    """I learn where it stopped, and that nothing is lost."""
    origin.respond(lambda body: cut(body[: len(body) // 40]))
    with pytest.raises(UnavailableError, match=r"executors have no route.*fetch=driver"):
        origin.fetched()


def test_a_refusal_that_may_pass_is_repeated(origin):
    """A busy publisher delays me, and nothing else."""
    origin.respond(once(True, lambda body: refused(503, "busy", retry_after="0")))
    assert origin.expected == origin.fetched(timeout="5s")


@pytest.mark.parametrize(
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


@pytest.mark.parametrize("byte", range(0, 200, 7))
def test_a_changed_byte_never_becomes_a_row(origin, byte):
    """A bit that flips on the way fails the task, or is where no row depends on it: in what an
    answer says of itself at the end of a range, which the plan says, too.
    """

    def flipped(body):
        at = len(body) * byte // 200
        return ok(body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :], **TYPE)

    origin.respond(flipped)
    try:
        found = origin.fetched()
    except (PublisherError, UnavailableError):
        return
    assert origin.expected == found


def groups_of(body):
    return [part for part in wire.parse_answer([body]) if isinstance(part, wire.Group)]


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
        for headers, frames in change(part):
            sent += wire.totals(headers)
            built.append(sent_group(part, headers, frames))
    return b"".join(built)


def without_first(group):
    if len(group.frames) > 1:
        yield group.headers[1:], group.frames[1:]


def twice(group):
    yield group.headers, group.frames
    yield group.headers, group.frames


def backwards(group):
    yield group.headers[::-1].copy(), group.frames[::-1]


def renumbered(group):
    headers = group.headers.copy()
    headers["sequence"] += 1
    yield headers, group.frames


def of_another_time(group):
    headers = group.headers.copy()
    headers["time"] += 1
    yield headers, group.frames


def of_another_partition(group):
    headers = group.headers.copy()
    headers["partition"] += 1
    yield headers, group.frames


def shifted(group):
    headers = group.headers.copy()
    headers["g"] += 100
    yield headers, group.frames


@pytest.mark.parametrize(
    "change",
    [
        without_first, twice, backwards, renumbered, of_another_time, of_another_partition, shifted,
    ],
)  # fmt: skip
def test_other_chunks_than_planned_are_refused(origin, change):
    """An answer that is consistent in itself, and not what was planned, fails."""
    origin.request = PlanRequest(2, {"0": "_first", "1": "_first"})
    origin.plan = direct_plans.plan(origin.store, FEED, origin.request)
    origin.respond(lambda body: ok(rebuilt(body, change), **TYPE))
    with pytest.raises(PublisherError, match="did not send the chunks that were planned"):
        origin.fetched()


def test_the_rebuilt_answer_would_be_taken(origin):
    """The tests above change what they mean to."""
    origin.respond(lambda body: ok(rebuilt(body, lambda g: [(g.headers, g.frames)]), **TYPE))
    assert origin.expected == origin.fetched()


def test_ranges_in_another_order_are_refused(origin):
    """Rows would come in another order."""

    def swapped(body):
        parts = list(wire.parse_answer([body]))
        first = [part for part in parts if part.range == 0]
        second = [part for part in parts if part.range == 1]
        built = [wire.BEGINNING]
        for part in second + first:
            if isinstance(part, wire.Group):
                built.append(sent_group(part, part.headers, part.frames))
            else:
                built.append(msgspec.json.encode(part) + b"\n")
        return ok(b"".join(built), **TYPE)

    origin.respond(swapped)
    with pytest.raises(PublisherError, match="range 1 came, not 0"):
        origin.fetched()


def test_removed_chunks_fail_by_name(origin):
    """I learn what to do, and no row is missing unnoticed."""
    gone = {"type": "x", "oldest": "5.0a1b2c3d", "detail": "removed"}
    origin.respond(lambda body: refused(410, json.dumps(gone)))
    with pytest.raises(CursorGoneError, match=r"removed before it was read.*cursorSet"):
        origin.fetched()


@pytest.mark.parametrize("part", ["ends", "from", "to", "partition", "special", "empty", "text"])
def test_a_plan_with_a_gap_is_refused(origin, part):
    """A plan that would skip events is not followed."""
    plan = json.loads(msgspec.json.encode(origin.plan))
    if part == "ends":
        plan["ends"]["0"] = "1.0a1b2c3d"
    elif part in {"from", "to"}:
        plan["ranges"][1][part] = "1.0a1b2c3d"
    elif part == "partition":
        plan["ranges"][0]["partition"] = 7
    elif part == "special":
        plan["ends"]["1"] = "_first"
    elif part == "empty":
        plan["ranges"][0]["events"] = 0
    body = b"<html>" if part == "text" else json.dumps(plan).encode()
    origin.server.respond = lambda request: ok(body, content_type="application/json")
    transport = Transport(parse(ClientOptions, {"url": origin.server.url, "retryTimeout": "1s"}))
    with pytest.raises(PublisherError, match="answered a request for a plan with something else"):
        direct_client.plan(transport, origin.request)


@pytest.mark.parametrize("cut_off", [1, 20, 200])
def test_a_plan_that_breaks_off_is_asked_for_again(origin, cut_off):
    """Half a plan is no plan."""
    body = msgspec.json.encode(origin.plan)
    whole = ok(body, content_type="application/json")
    broken = Answer((head(content_length=len(body)) + body[:-cut_off],), "close")
    origin.server.script(broken, whole)
    transport = Transport(parse(ClientOptions, {"url": origin.server.url, "retryTimeout": "5s"}))
    assert origin.plan == direct_client.plan(transport, origin.request)


def test_the_token_is_sent_and_never_shown(origin):
    """A task authenticates, and its errors do not tell how."""
    options = parse(
        ClientOptions, {"url": origin.server.url, "token": "secret-abcdef", "retryTimeout": "1s"}
    )
    origin.server.respond = lambda request: refused(403, "no secret-abcdef here")
    transport = Transport(options)
    with pytest.raises(PublisherError) as caught:
        list(direct_client.fetch(transport, 2, origin.plan.ranges))
    assert "Bearer secret-abcdef" == origin.server.requests[0].headers["authorization"]
    assert "secret-abcdef" not in str(caught.value)
