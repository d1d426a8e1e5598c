"""The publish API over HTTP: uploads, commits, and the state of producers.

Rule for editors: read nothing of a body before its call is admitted and its length is known
(`bodies`), except for a small commit's. A few threads look into bodies, never the event loop.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import IO, Any, TypeVar

import anyio
import anyio.to_thread
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from zeh_spark.service.access.disk import Disk
from zeh_spark.service.access.gate import (
    Gate,
    Needs,
    actor_of,
    client_of,
    publishes,
    sees_producer,
    sees_producers,
)
from zeh_spark.service.access.limits import Limits
from zeh_spark.service.app import publish_requests
from zeh_spark.service.app.answers import json_answer
from zeh_spark.service.app.upload_validation import MAX_BODY, Verified, verified_upload
from zeh_spark.service.network.bodies import Budget, check_length, received
from zeh_spark.service.network.shares import Quotas
from zeh_spark.service.store import refusals
from zeh_spark.service.store.batches import (
    MAX_NUMBER,
    RECEIPTS,
    Call,
    Declared,
    Numbers,
    ProducerState,
    StagingResult,
    StoredReceipt,
    Upload,
)
from zeh_spark.service.store.contracts import FeedSchema, WrongEvent
from zeh_spark.service.store.interface import Store
from zeh_spark.service.store.problems import Problem
from zeh_spark.service.store.token_rights import Maker
from zeh_spark.service.telemetry.exchange import exchange_of
from zeh_spark.wire import problems

SMALL_COMMIT = 64 << 10
"""Bytes of a commit's body that are read before its call is admitted: the commit itself decides."""

BODY_BYTES = 24 << 20
"""Bytes of bodies that are looked into at a time. Other bodies wait."""

BODIES = 128
"""Bodies that arrive at a time; a client has a share of them (`shares`)."""

CHECKERS, STAGERS, CALLERS, READERS = 2, 8, 32, 4
"""Threads that check uploads, that stage them, that wait for their turn to commit, and that list
producers.
"""

QUESTIONS = CALLERS
"""Questions at a time that wait for their turn among commits; a client has a share of them.

What became of a commit is certain only after the commits under way. Rejected: to answer from a
snapshot. A writer that lost the answer to a commit would hear "not committed", publish the events
again under another number, and the first commit would still arrive.
"""

PRODUCERS_SHOWN = 1000
"""Most producers in an answer."""

ACCOUNTS_AT_A_TIME = 250
"""Most producers that are looked up together with their receipts."""

RECEIPTS_SHOWN = 20
"""Receipts in an answer, unless more are asked for."""

RANGES_SHOWN = 20_000
"""About how many ranges these may have together. A receipt has one for each partition."""

_BATCHES = "/producers/{producer}/batches"
CALLS: tuple[tuple[str, str, str, Needs], ...] = (
    ("GET", "/producers", "producers", sees_producers),
    ("GET", "/producers/{producer}", "producer", sees_producer),
    ("GET", _BATCHES, "receipts", sees_producer),
    ("GET", _BATCHES + "/{batch}", "receipt", sees_producer),
    ("POST", _BATCHES + "/{batch}/commit", "commit", publishes),
    ("DELETE", _BATCHES + "/{batch}/uploads", "release", publishes),
    ("PUT", _BATCHES + "/{batch}/uploads/{upload}", "upload", publishes),
)
"""For each call: the HTTP method, the path after the feed, the handler, and the rights."""

T = TypeVar("T")


class PublishApi:
    """The calls of the publish API, on a store."""

    def __init__(self, store: Store, disk: Disk, limits: Limits) -> None:
        self._limits = limits
        self._disk = disk
        self._store = store
        self._budget = Budget(BODY_BYTES)
        self._budget_of_commits = Budget(publish_requests.MAX_COMMIT_BODY)
        self._coming, self._commits_coming = Quotas(BODIES), Quotas(BODIES)
        self._asking = Quotas(QUESTIONS)
        self._schemas: dict[str, FeedSchema | None] = {}
        self._checkers = anyio.CapacityLimiter(CHECKERS)
        self._stagers = anyio.CapacityLimiter(STAGERS)
        self._callers = anyio.CapacityLimiter(CALLERS)
        self._readers = anyio.CapacityLimiter(READERS)

    def routes(self, gate: Gate) -> list[Route]:
        return [
            gate.route("/{feed}" + path, getattr(self, call), needs, methods=[method])
            for method, path, call, needs in CALLS
        ]

    async def upload(self, request: Request) -> Response:
        """Answer PUT …/batches/{batch}/uploads/{upload}: stage an upload."""
        run, task, attempt, number = publish_requests.upload_name(request.path_params["upload"])
        feed, call = self._call_of(request, run)
        length = check_length(request.headers.get("content-length"), MAX_BODY)
        receipt = await self._called(partial(self._admitted, feed, call))
        if receipt and not call.split_by:
            return json_answer(publish_requests.committed(receipt, new=False))
        split = await self._called(partial(self._split, feed, call)) if call.split_by else None
        async with (
            self._coming.place(client_of(request)),
            received(request, length) as whole,
            self._budget.room(length),
        ):
            digest, where = request.headers.get("content-digest"), (task, attempt, number)
            check = partial(_verified, whole, digest, call, where, split)
            staged, taken_out = await self._checked(feed, call, check)
        told = {"wrong": [(e.chunk, e.line, e.path, e.reason) for e in taken_out]} if split else {}
        if isinstance(staged, StoredReceipt):
            return json_answer(publish_requests.committed(staged, new=False) | told)
        return json_answer({"status": "staged"} | told, 201 if staged is StagingResult.NEW else 200)

    def _split(self, feed: str, call: Call) -> FeedSchema:
        """Return the schema whose wrong events are taken out of an upload. Raises Problem."""
        if split := self._store.schema(feed, call.split_by):
            return split
        raise Problem(problems.NO_SCHEMA, f"feed {feed!r} has no schema of version {call.split_by}")

    async def _checked(
        self, feed: str, call: Call, check: Callable[[FeedSchema | None], Verified]
    ) -> tuple[StagingResult | StoredReceipt, list[WrongEvent]]:
        """Check an upload and stage it; again, if the feed has another schema than was known.

        Returns also what was taken out. No schema refuses an upload of a batch that is committed
        meanwhile.
        """
        while True:
            schema = self._schemas.get(feed)
            found = await anyio.to_thread.run_sync(check, schema, limiter=self._checkers)
            upload, wrong, taken_out = found
            if wrong:
                if receipt := await self._called(partial(self._store.admit, feed, call)):
                    return receipt, taken_out
            else:
                keep = partial(self._stage, feed, call, upload)
                staged = await anyio.to_thread.run_sync(keep, limiter=self._stagers)
                if staged is not StagingResult.UNCHECKED:
                    return staged, taken_out
            current = await self._called(partial(self._store.schema, feed))
            if schema and schema == current:
                refusals.check_events(call, schema, wrong)
            self._schemas[feed] = current

    async def commit(self, request: Request) -> Response:
        """Answer POST …/batches/{batch}/commit: publish the staged uploads as one batch."""
        feed, call = self._call_of(request)
        length = check_length(
            request.headers.get("content-length"), publish_requests.MAX_COMMIT_BODY
        )
        if length > SMALL_COMMIT:
            await self._called(partial(self._store.admit, feed, call))  # refused before it is read
        publish_requests.check_json(request.headers.get("content-type"))
        async with (
            self._commits_coming.place(client_of(request)),
            received(request, length) as whole,
            self._budget_of_commits.room(length),
        ):
            parse = partial(publish_requests.parse_commit, whole.read())
            declared = await anyio.to_thread.run_sync(parse, limiter=self._checkers)
            del parse
        await self._called(partial(self._check_chunks, feed, call, declared))
        begun, exchange = time.monotonic(), exchange_of(request)
        receipt, new = await self._called(partial(self._commit, feed, call, declared))
        exchange.commit_seconds = time.monotonic() - begun
        exchange.published = receipt.events if new else 0
        exchange.is_repeat = not new
        return json_answer(publish_requests.committed(receipt, new=new))

    async def release(self, request: Request) -> Response:
        """Answer DELETE …/batches/{batch}/uploads: delete the uploads of a run or an attempt."""
        feed, producer, batch = _names(request)
        given = publish_requests.parameters(_query(request), {"run"}, {"attempt"})
        run = publish_requests.identifier("run", given["run"])
        number = publish_requests.batch_number(batch)
        attempt = publish_requests.attempt(given["attempt"]) if "attempt" in given else None
        released = await self._called(
            partial(self._store.release, feed, producer, number, run, attempt)
        )
        return json_answer({"released": released})

    async def producers(self, request: Request) -> Response:
        """Answer GET …/producers: list the producers of a feed, in order of their names."""
        feed = request.path_params["feed"]
        given = publish_requests.parameters(_query(request), set(), {"after", "limit", "receipts"})
        limit = _at_most(given, "limit", PRODUCERS_SHOWN, PRODUCERS_SHOWN)
        receipts = _at_most(given, "receipts", 0, RECEIPTS)
        look_up = partial(self._list, feed, given.get("after", ""), limit, receipts)
        found = await anyio.to_thread.run_sync(look_up, limiter=self._readers)
        return json_answer({"producers": found})

    def _list(self, feed: str, after: str, limit: int, receipts: int) -> list[dict[str, Any]]:
        """List producers; with receipts, also their numbers, until these are many ranges."""
        if not receipts:
            return [_producer(each) for each in self._store.producers(feed, after, limit)]
        partitions, left = self._store.feed(feed).partitions, RANGES_SHOWN
        receipts = min(receipts, max(1, left // partitions))
        at_a_time = max(1, left // (partitions * (receipts + 1)))
        told: list[dict[str, Any]] = []
        while left > 0 and limit > len(told):
            some = min(limit - len(told), at_a_time, ACCOUNTS_AT_A_TIME)
            if not (found := self._store.accounts(feed, after, some, receipts)):
                break
            for producer, numbers, newest in found:
                known = {**_producer(producer), **_numbers(numbers), "newestReceipts": newest}
                left -= len(numbers) + sum(len(each.ranges) for each in newest)
                told.append(known)
            after = producer.name
        return told

    async def producer(self, request: Request) -> Response:
        """Answer GET …/producers/{producer}: tell its state and its next sequence numbers."""
        feed, producer = request.path_params["feed"], request.path_params["producer"]
        publish_requests.parameters(_query(request), set())
        name = publish_requests.producer_name(producer)
        async with self._asking.place(client_of(request)):
            found = await self._called(partial(self._store.producer, feed, name))
        numbers = await self._called(partial(self._store.sequences, feed, name))
        return json_answer({**_producer(found), **_numbers(numbers)})

    async def receipts(self, request: Request) -> Response:
        """Answer GET …/batches: list a producer's receipts, the latest first."""
        feed, producer = request.path_params["feed"], request.path_params["producer"]
        given = publish_requests.parameters(_query(request), set(), {"below", "limit"})
        below = _at_most(given, "below", MAX_NUMBER, MAX_NUMBER)
        limit = _at_most(given, "limit", RECEIPTS_SHOWN, RECEIPTS)
        name = publish_requests.producer_name(producer)
        partitions = (await self._called(partial(self._store.feed, feed))).partitions
        limit = min(limit, max(1, RANGES_SHOWN // partitions))
        found = await self._called(partial(self._store.receipts, feed, name, below, limit))
        return json_answer({"receipts": found})

    async def receipt(self, request: Request) -> Response:
        """Answer GET …/batches/{batch}: tell the receipt of a batch."""
        feed, producer, batch = _names(request)
        given = publish_requests.parameters(_query(request), set(), {"incarnation"})
        number = publish_requests.batch_number(batch)
        incarnation = given.get("incarnation")
        if incarnation is not None:
            publish_requests.identifier("incarnation", incarnation)
        ask = partial(self._store.receipt, feed, producer, number, incarnation)
        async with self._asking.place(client_of(request)):
            found = await self._called(ask)
        if found is None:
            state = await self._called(partial(self._store.feed, feed))
            raise refusals.unknown_batch(producer, incarnation, number, state)
        return json_answer(found)

    def _call_of(self, request: Request, run: str | None = None) -> tuple[str, Call]:
        feed, producer, batch = _names(request)
        call = publish_requests.parse_call(_query(request), producer, batch, run=run)
        maker = Maker(client_of(request), self._limits.most_producers)
        return feed, replace(call, by=actor_of(request), maker=maker)

    def _admitted(self, feed: str, call: Call) -> StoredReceipt | None:
        """Return the receipt if the batch is committed. Raises Problem if no upload is taken."""
        receipt = self._store.admit(feed, call)
        if receipt is None:
            self._disk.check_upload()
        return receipt

    def _stage(self, feed: str, call: Call, upload: Upload) -> StagingResult | StoredReceipt:
        """Keep an upload; without room, only tell whether its batch was committed before.

        Its body took a while, so there may be less room than before it.
        """
        try:
            self._disk.check_upload()
        except Problem:
            if receipt := self._store.admit(feed, call):
                return receipt
            raise
        return self._store.stage(feed, call, upload, self._limits.staging_quota)

    def _commit(self, feed: str, call: Call, declared: Declared) -> tuple[StoredReceipt, bool]:
        """Commit a batch; without room, only tell whether it was committed before."""
        try:
            self._disk.check_growth()
        except Problem:
            if self._store.admit(feed, call) is None:
                raise
        return self._store.commit(feed, call, declared)

    def _check_chunks(self, feed: str, call: Call, declared: Declared) -> None:
        """Raise Problem for a commit of too many chunks, before others wait for it."""
        most = self._limits.most_chunks
        if declared.content.events <= most:  # a chunk has an event at least
            return
        chunks = self._store.staged_chunks(feed, call, declared.attempts)
        if chunks > most:
            raise refusals.too_many_chunks(call, chunks, most)

    def _called(self, call: Callable[[], T]) -> Awaitable[T]:
        return anyio.to_thread.run_sync(call, limiter=self._callers)


def _verified(
    whole: IO[bytes],
    digest: str | None,
    call: Call,
    where: tuple[int, int, int],
    split: FeedSchema | None,
    schema: FeedSchema | None,
) -> Verified:
    """Return the upload in a body. It hashes and unpacks, so it runs in a thread."""
    whole.seek(0)
    body = whole.read()
    publish_requests.check_digest(digest, body)
    return verified_upload(body, *where, call.partition_count, schema, split)


def _names(request: Request) -> tuple[str, str, str]:
    given = request.path_params
    return given["feed"], publish_requests.producer_name(given["producer"]), given["batch"]


def _at_most(given: Mapping[str, str], name: str, otherwise: int, most: int) -> int:
    """Return the number of a parameter, or `otherwise`; at most `most`. Raises Problem."""
    return min(publish_requests.number(name, given.get(name, str(otherwise))), most)


def _query(request: Request) -> str:
    query: bytes = request.scope["query_string"]
    return query.decode("latin-1")


def _numbers(numbers: Mapping[int, Numbers]) -> dict[str, Any]:
    following = {partition: own.next for partition, own in sorted(numbers.items())}
    firsts = {partition: own.first for partition, own in sorted(numbers.items()) if own.first}
    return {"nextSequences": following, **({"firstSequences": firsts} if firsts else {})}


def _producer(producer: ProducerState) -> dict[str, Any]:
    return {
        "producer": producer.name,
        "incarnation": producer.incarnation or None,
        "lastBatch": producer.last,
        "run": producer.run or None,
        "level": producer.level,
        "receipts": producer.receipts,
        "chain": producer.chain,
        "time": producer.time or None,
        "deleted": producer.deleted,
    }
