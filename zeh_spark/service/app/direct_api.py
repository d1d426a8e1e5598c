"""Direct reads over HTTP: plans, the chunks of planned ranges, and cursors.

Of cursors it tells those at a time, and whether those of a reader have passed a batch.

Rule for editors: a plan and an answer with chunks have limits of their own, because each takes more
than a page: a plan looks at many chunks, and an answer may be as long as a batch. What is refused
is refused before the first byte.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from zeh_spark.service.access.gate import Gate, client_of, finds_cursors, reads
from zeh_spark.service.app.answers import disconnected, json_answer
from zeh_spark.service.app.feed_calls import LARGE_BYTES, WORKERS, Asker, Begun, FeedCalls
from zeh_spark.service.app.read_requests import (
    MAX_N,
    MAX_WAIT,
    parse_await,
    parse_time_query,
    parse_version,
)
from zeh_spark.service.network.bodies import check_length, received
from zeh_spark.service.network.shares import Shares
from zeh_spark.service.reads.committed import Committed
from zeh_spark.service.reads.direct_plans import check_plan
from zeh_spark.service.reads.direct_reads import check_ranges
from zeh_spark.service.reads.feed import ChunkFeed, state_of
from zeh_spark.service.store.contracts import FeedSchema
from zeh_spark.service.store.problems import Problem
from zeh_spark.service.telemetry.exchange import Tally, exchange_of
from zeh_spark.wire import direct_reads, problems
from zeh_spark.wire.direct_reads import INLINE_BYTES, CursorsAtTime, Plan, PlanRequest
from zeh_spark.wire.problems import ProblemType

PLANS, ANSWERS = 64, 256
"""Requests for plans under way at a time, and answers with chunks that are sent at a time."""

PLANNERS = WORKERS - 2
"""Plans that are made at a time: fewer than there are threads, so that plans do not stop pages."""

T = TypeVar("T")

MAX_BODY = 8 << 20
"""Most bytes in the body of a request."""


async def body_of(request: Request) -> bytes:
    """Return the body of a request. Raises Problem."""
    length = check_length(request.headers.get("content-length"), MAX_BODY)
    async with received(request, length) as whole:
        return whole.read()


class DirectApi:
    """The calls of direct reads."""

    def __init__(self, calls: FeedCalls) -> None:
        self._calls = calls
        self._plans = Shares(PLANS, "plans are under way")
        self._planners = Shares(PLANNERS, "plans are made")
        self._answers = Shares(ANSWERS, "answers with chunks are under way")

    def routes(self, feed: str, gate: Gate) -> list[Route]:
        path = feed.rstrip("/")
        return [
            gate.route(f"{path}/plan", self.plan, reads, methods=["POST"]),
            gate.route(f"{path}/chunks", self.chunks, reads, methods=["POST"]),
            gate.route(f"{path}/cursors", self.cursors, finds_cursors, methods=["GET"]),
            gate.route(f"{path}/schema", self.schema, reads, methods=["GET"]),
        ]

    async def plan(self, request: Request) -> Response:
        """Answer POST …/plan: say where a batch ends, and which ranges it has.

        A request that may wait does so until there is an event. While it waits it holds no slot,
        because each stream that has read everything waits so.
        """
        client = client_of(request)
        self._plans.take(client)
        try:
            name = request.path_params.get("feed", "")
            feed = self._direct(name)
            body = await body_of(request)
            asker = Asker(client, len(body))
            ask = await self._in_turn(name, asker, partial(_request_in, body, feed, *_A_PLAN))
            planned = partial(self._planned, feed, ask, _count_of_chunks(request))
            endless = not isinstance(ask.ends, dict) and not isinstance(ask.upto, str)
            begin, wait = time.monotonic(), min(ask.wait, MAX_WAIT) if endless else 0
            seen, plan = await self._in_turn(name, asker, planned)
        finally:
            self._plans.release(client)
        while not plan.ranges and (left := self._calls.left(begin, wait)) > 0:
            gone = asyncio.ensure_future(disconnected(request.receive))
            try:
                if not await self._calls.wait(gone, name, feed, seen, left):
                    break
            finally:
                gone.cancel()
            ask.cursors = plan.ends  # what `_last` means is decided once
            seen, plan = await self._in_turn(name, asker, planned)
        return json_answer(plan)

    async def _in_turn(self, name: str, asker: Asker, call: Callable[[], T]) -> T:
        """Run a part of a plan in a thread, when it is the client's turn to make plans."""
        async with self._planners.place(asker.client):
            return await self._calls.in_thread(name, call, asker)

    async def chunks(self, request: Request) -> Response:
        """Answer POST …/chunks: send the chunks of planned ranges, as they are stored."""
        client = client_of(request)
        self._answers.take(client)
        try:
            name = request.path_params.get("feed", "")
            body = await body_of(request)
            make = partial(self._begun, name, body)
            read = partial(self._calls.in_thread, name, make, Asker(client, len(body)))
            found = await self._calls.whole(name, self._calls.cache, (name, body), len(body), read)
            begun = found.begun
            self._calls.unsent.check(client, begun.size, whole=begun.rest is None)
            exchange_of(request).served = found.served
        except BaseException:
            self._answers.release(client)
            raise
        return self._calls.answer(
            name,
            begun,
            {"Cache-Control": "no-store, no-transform"},
            direct_reads.CONTENT_TYPE,
            partial(self._answers.release, client),
            asker=Asker(client),
        )

    async def cursors(self, request: Request) -> Response:
        """Answer GET …/cursors: say where a reader begins that wants all events since a time.

        With `await`, say whether a reader has committed a batch, as soon as it has.
        """
        name = request.path_params.get("feed", "")
        query = request.scope["query_string"].decode("latin-1")
        if ask := parse_await(query):
            return json_answer(await self._awaited(request, name, *ask))
        find = partial(self._at_time, name, query)
        found = await self._calls.in_thread(name, find, Asker(client_of(request), LARGE_BYTES))
        return json_answer(found)

    async def schema(self, request: Request) -> Response:
        """Answer GET …/schema: the schema of the feed's events, or an earlier version of it."""
        name = request.path_params.get("feed", "")
        find = partial(self._schema, name, request.scope["query_string"].decode("latin-1"))
        found = await self._calls.in_thread(name, find, Asker(client_of(request)))
        told = {"ETag": found.tag, "ZEH-Schema-Version": f"{found.version}"}
        headers = {"Cache-Control": "no-cache", **told}
        if found.tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(found.document, headers=headers, media_type="application/schema+json")

    def _schema(self, name: str, query: str) -> FeedSchema:
        feed, version = self._calls.find(name), parse_version(query)
        if not isinstance(feed, ChunkFeed):
            raise Problem(problems.NO_SCHEMA, f"feed {name!r} is no feed of a store: no schema")
        return feed.schema(version)

    async def _awaited(
        self, request: Request, name: str, batch: tuple[int, str], cursor_set: str, wait: float
    ) -> direct_reads.AwaitedBatch:
        """Wait until a consumer has committed a batch. All who wait for it share the looks at it.

        Raises Problem if the batch is not known, or in the end the consumer is not.
        """
        begin, feed, asker = time.monotonic(), self._calls.find(name), Asker(client_of(request))
        if not isinstance(feed, ChunkFeed):
            raise Problem(problems.CURSORSET_UNSUPPORTED, f"feed {name!r} has no batches to await")
        consumer, key = feed.consumer(cursor_set), f"{name}\n{cursor_set}"
        check = partial(consumer.check_batch, *batch)
        await self._calls.in_thread(name, check, asker)
        gone = asyncio.ensure_future(disconnected(request.receive))
        try:
            while True:
                found = await self._calls.shared(name, key, consumer.committed, asker)
                left = self._calls.left(begin, wait)
                if found.upto >= batch[0] or left <= 0:
                    break
                seen = consumer.kept, found.kept
                if not await self._calls.wait_for_consumer(gone, key, *seen, left):
                    break
        finally:
            gone.cancel()
        lag = None
        if is_committed := found.upto >= batch[0]:
            await self._calls.in_thread(name, check, asker)  # again: a restore may have undone it
        elif found.kept:
            lag = await self._calls.in_thread(name, partial(self._lag_of, found), asker)
        else:
            said = (
                f"nothing is kept under cursorset {cursor_set!r}: its reader has another name, "
                f"keeps no cursors here (option cursorSet), or has not committed anything yet"
            )
            raise Problem(problems.UNKNOWN_CURSORSET, said, cursorset=cursor_set)
        return direct_reads.AwaitedBatch("{}.{}".format(*batch), cursor_set, is_committed, lag)

    def _lag_of(self, found: Committed) -> direct_reads.PartitionLag | None:
        """Return how far a consumer is from the feed's end, if that is known."""
        (n, cursors), *_ = found.kept.items()
        if len(cursors) < min(n, found.feed.partitions):
            return None  # it may be one of some partitions
        lags = self._calls.lag_after(found.feed, n, {str(p): at for p, at in cursors.items()})
        if lags is None:
            return None
        events = sum(each.events for each in lags.values())
        return direct_reads.PartitionLag(events, max(each.ms or 0 for each in lags.values()))

    def _at_time(self, name: str, query: str) -> CursorsAtTime:
        feed = self._calls.find(name)
        n, time = parse_time_query(query, lambda: feed.partitions)
        cursors = {str(each): cursor for each, cursor in feed.cursors_at(n, time).items()}
        return CursorsAtTime(time, cursors)

    def _begun(self, name: str, body: bytes) -> Begun:
        feed, tally, lineage = self._direct(name), Tally(), self._calls.lineage(name)
        sends = feed.chunks(_request_in(body, feed, *_CHUNKS), tally.add)
        return Begun(self._calls.taken([each] for each in sends), tally, lineage)

    def _direct(self, name: str) -> ChunkFeed:
        feed = self._calls.find(name)
        if not isinstance(feed, ChunkFeed):
            raise Problem(
                problems.NO_DIRECT_READS, f"feed {name!r} has no chunks; read it page by page"
            )
        return feed

    def _planned(
        self, feed: ChunkFeed, ask: PlanRequest, count: Callable[[int], object] | None
    ) -> tuple[object, Plan]:
        """Return the state that a plan is of, and the plan with the lag after it.

        It brings its chunks, if it is small, and `count` is given, which is told their events.
        """
        state, plan = feed.plan(ask)
        plan.lag = self._calls.lag_after(state, ask.n, plan.ends)
        if count and plan.ranges and sum(each.bytes for each in plan.ranges) <= INLINE_BYTES:
            with suppress(Problem):  # removed meanwhile: /chunks refuses
                request = direct_reads.chunks_request(ask.n, plan.ranges)
                plan.chunks = b"".join(feed.chunks(request, count))
        return state_of(state), plan


def _count_of_chunks(request: Request) -> Callable[[int], object] | None:
    """Return what counts the events that a plan brings; None if the request does not prefer it."""
    preferred = ",".join(request.headers.getlist("prefer")).split(",")
    wanted = direct_reads.WITH_CHUNKS in map(str.strip, preferred)
    return exchange_of(request).served.add if wanted else None


_A_PLAN = direct_reads.decode_plan_request, check_plan, problems.BAD_PLAN, "a plan"
_CHUNKS = direct_reads.decode_chunks_request, check_ranges, problems.BAD_RANGES, "chunks"


def _request_in(
    body: bytes,
    feed: ChunkFeed,
    decode: Callable[[bytes], T],
    check: Callable[[T, int], None],
    type: ProblemType,
    what: str,
) -> T:
    """Return a request. Raises Problem if the body is none, or the feed is not there."""
    try:
        found = decode(body)
        check(found, MAX_N)
        return found
    except (Problem, msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as exc:
        _ = feed.partitions  # an unknown feed is refused as such
        if isinstance(exc, Problem):
            raise
        raise Problem(type, f"the body is no request for {what}: {exc}") from None
