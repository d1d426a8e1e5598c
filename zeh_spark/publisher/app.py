"""The ASGI app of the publisher: the read API of ZeroEventHub and the publish API.

Any other ASGI app can mount it. It runs in the publisher's process.

Rule for editors: what can be refused is refused before the first byte (see `feed_calls` for what
follows it).
"""

from __future__ import annotations

import logging
import time
import zlib
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import chain
from typing import cast

import anyio.to_thread
import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from zeh_spark.errors import StoreError
from zeh_spark.protocol import problems, wire
from zeh_spark.protocol.direct_reads import OFFER
from zeh_spark.protocol.problems import ProblemType
from zeh_spark.protocol.served_lines import Block, renderer
from zeh_spark.publisher.direct_api import DirectApi
from zeh_spark.publisher.feed_calls import SEND_SECONDS, FeedCalls, state_of
from zeh_spark.publisher.publish_api import STAGING_QUOTA, PublishApi
from zeh_spark.publisher.read_requests import Ask, parse_query, resumed
from zeh_spark.publisher.rendering import body
from zeh_spark.store.feed import (
    DELIVERY,
    ChunkFeed,
    DirectFeed,
    Feed,
    KeepsCursors,
    TellsIdentity,
)
from zeh_spark.store.interface import (
    Store,
    StoreBusyError,
    StoreOutcomeUnknownError,
    UnknownFeedError,
)
from zeh_spark.store.problems import Problem

log = logging.getLogger("zeh_spark.publisher")


def create_app(
    feeds: Store | Feed | Mapping[str, Feed],
    tables: Mapping[str, Feed] | None = None,
    *,
    send_timeout: float = SEND_SECONDS,
    staging_quota: int = STAGING_QUOTA,
) -> Starlette:
    """Return an ASGI app that serves feeds.

    Call `app.state.stop()` when the server is about to stop: it ends all long polls.

    Args:
        feeds: A store, whose feeds are served at /<name> and can be published to; or feeds of any
            kind by name, served at /<name>; or one feed, served at /.
        tables: More feeds by name, served beside those of `feeds`. They cannot be published to.
        send_timeout: Seconds for which a client may take nothing before it is dropped.
        staging_quota: Bytes that a producer may have uploaded and not committed.

    Returns:
        The app, which another ASGI app can mount.

    Raises:
        ValueError: A name is in `feeds` and in `tables`, or `tables` is given beside one feed.
    """
    store, named, read = None, dict(tables or {}), "/{feed:path}"
    if isinstance(feeds, Mapping):
        if twice := sorted(named.keys() & feeds.keys()):
            raise ValueError(f"{twice[0]!r} is in feeds and in tables. Rename one of them")
        named.update(feeds)
    elif hasattr(feeds, "page"):
        if named:
            raise ValueError(
                f"one feed is served at /, where {sorted(named)[0]!r} of tables has no address. "
                f"Give all feeds by name, as a mapping"
            )
        named, read = {"": cast(Feed, feeds)}, "/"
    else:
        store, read = feeds, "/{feed}"
    calls = FeedCalls(store, named, send_timeout)
    publish = [
        Route(f"/{name}/producers{{rest:path}}", _not_published_to) for name in named if name
    ]
    publish += PublishApi(store, staging_quota).routes() if store else []
    described = partial(
        _described,
        publishing=store is not None,
        direct=store is not None or any(isinstance(each, DirectFeed) for each in named.values()),
    )
    app = Starlette(
        routes=[
            Route("/openapi.json", described, methods=["GET"]),
            *publish,
            *DirectApi(calls).routes(read),
            Route(read, PageApi(calls).read, methods=["GET"]),
        ],
        exception_handlers={
            Problem: _problem,
            UnknownFeedError: _unknown_feed,
            StoreBusyError: _busy,
            StoreOutcomeUnknownError: _outcome_unknown,
            StoreError: _store_failed,
            HTTPException: _http_error,
        },
    )
    app.state.stop = calls.stop
    return app


class PageApi:
    """The read API of the spec: pages of events."""

    def __init__(self, calls: FeedCalls) -> None:
        self._calls = calls

    async def read(self, request: Request) -> Response:
        """Answer a request of the read API with a page of events."""
        name = request.path_params.get("feed", "")
        feed = await self._calls.feed(name)
        ask = await self._asked(request, name, feed)
        keep = request.method == "GET"
        begin = partial(starting_cursors, feed, ask, keep=keep)
        cursors = await self._calls.in_thread(name, begin, writes=ask.cursor_set is not None)
        blocks = await self._page(request, name, feed, ask, cursors)
        pieces = body(blocks, ask.n, renderer(ask.headers))
        headers = {"Cache-Control": "no-store", "Vary": "Accept-Encoding"}
        if accepts_gzip(request.headers.get("accept-encoding", "")):
            headers["Content-Encoding"] = "gzip"
            pieces = gzipped(pieces)
        return self._calls.answer(
            name, pieces if keep else iter(()), headers, f"{wire.CONTENT_TYPE}; charset=utf-8"
        )

    async def _asked(self, request: Request, name: str, feed: Feed) -> Ask:
        """Return what a request asks for. Raises Problem; one for `n` tells the feed's identity."""
        try:
            query = request.scope["query_string"].decode("latin-1")
            told = request.headers.getlist(wire.CONSUMER_HEADER)
            return parse_query(query, feed.partitions, ", ".join(told) if told else None)
        except Problem as problem:
            if "feed" not in problem.type.members or not isinstance(feed, TellsIdentity):
                raise
            identity = await self._calls.in_thread(name, feed.identity)
            if identity is None:
                raise
            described = identity.document()
            if isinstance(feed, ChunkFeed):
                described["delivery"] = DELIVERY
            if isinstance(feed, DirectFeed):
                described["reads"] = OFFER
            raise problem.with_members(feed=described) from None

    async def _page(
        self, request: Request, name: str, feed: Feed, ask: Ask, cursors: Mapping[int, str]
    ) -> Iterator[Block]:
        """Return a page of which the first block is read, so that it can no longer be refused.

        Waits as long as the request allows until the page has an event.
        """
        calls = self._calls
        end = time.monotonic() + (ask.wait if ask.hint != 0 and request.method == "GET" else 0)
        while True:
            seen = await calls.in_thread(name, state_of(feed)) if ask.wait else None
            before, rest = await calls.in_thread(name, partial(begun, feed, cursors, ask))
            left = end - time.monotonic()
            if any(block.lines for block in before) or left <= 0 or calls.stopped:
                return chain(before, rest)
            cursors = {**cursors, **{block.partition: block.cursor for block in before}}
            if not await calls.wait(request, name, feed, seen, left):
                return iter(())


def starting_cursors(feed: Feed, ask: Ask, *, keep: bool) -> Mapping[int, str]:
    """Return the cursors from which a request reads, and keep them if it names a cursorset.

    Special cursors are replaced by what they mean now: taken again after a wait, or when the reader
    resumes, `_last` would skip events.

    Args:
        feed: The feed.
        ask: The request.
        keep: Whether to save the cursors under the cursorset.

    Raises:
        Problem: The feed keeps no cursors, nothing is kept to resume from, or the cursorset is
            bound to another consumer.
    """
    if ask.cursor_set is None:
        return _resolved(feed, ask.cursors, ask.n) if ask.wait else ask.cursors
    if not isinstance(feed, KeepsCursors):
        raise Problem(problems.CURSORSET_UNSUPPORTED, "this feed keeps no cursors for readers")
    if ask.resume:
        return resumed(ask, feed.load_cursors(ask.cursor_set, ask.n, ask.consumer))
    cursors = _resolved(feed, ask.cursors, ask.n)
    if keep:
        feed.save_cursors(ask.cursor_set, ask.n, cursors, ask.consumer)
    else:
        feed.load_cursors(ask.cursor_set, ask.n, ask.consumer)  # a HEAD is refused as its GET is
    return cursors


def begun(feed: Feed, cursors: Mapping[int, str], ask: Ask) -> tuple[list[Block], Iterator[Block]]:
    """Return the blocks of a page up to the first one that has events, and the rest of the page."""
    page = feed.page(cursors, ask.n, ask.hint, ask.headers)
    before = []
    for block in page:
        before.append(block)
        if block.lines:
            break
    return before, page


def accepts_gzip(accepted: str) -> bool:
    """Return whether an Accept-Encoding header accepts gzip (RFC 9110, 12.5.3)."""
    weights = {}
    for each in accepted.lower().split(","):
        coding, _, parameter = each.partition(";")
        weights[coding.strip()] = parameter.replace(" ", "")
    weight = weights.get("gzip", weights.get("*"))
    return weight is not None and weight.rstrip("0").rstrip(".") != "q="


def gzipped(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the pieces compressed, so that each can be read as soon as it has arrived."""
    compressor = zlib.compressobj(1, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    for piece in pieces:
        yield compressor.compress(piece) + compressor.flush(zlib.Z_SYNC_FLUSH)
    yield compressor.flush()


def _resolved(feed: Feed, cursors: Mapping[int, str], n: int) -> dict[int, str]:
    return {block.partition: block.cursor for block in feed.page(cursors, n, 0, ())}


def _answer(problem: Problem, headers: Mapping[str, str] | None = None) -> Response:
    more = {"Retry-After": "1"} if problem.type.has_retry_after else {}
    if problem.type is problems.BODY_TOO_SLOW:
        more = {"Connection": "close"}
    return Response(
        msgspec.json.encode(problem.document()),
        status_code=problem.status,
        headers={"Cache-Control": "no-store", **more, **(headers or {})},
        media_type=problems.CONTENT_TYPE,
    )


async def _described(request: Request, **offers: bool) -> Response:
    render = partial(_document, request.scope.get("root_path", ""), **offers)
    return Response(await anyio.to_thread.run_sync(render), media_type="application/json")


def _document(mounted: str, **offers: bool) -> bytes:
    from zeh_spark.publisher import openapi  # slow to import, and rarely needed

    return msgspec.json.encode(openapi.document(mounted, **offers))


async def _not_published_to(request: Request) -> Response:
    name = request.url.path.rpartition("/producers")[0].rpartition("/")[2]
    raise UnknownFeedError(
        f"feed {name!r} takes no batches: its events are what its service writes. It can only be "
        f"read",
        anchor="unknown-feed",
    )


async def _problem(_: Request, exc: Exception) -> Response:
    assert isinstance(exc, Problem)
    if exc.status == 500 or exc.type is problems.RESTORED_TABLE:
        log.error("%s", exc.detail)  # for the operator, who can repair it
    return _answer(exc)


async def _unknown_feed(_: Request, exc: Exception) -> Response:
    return _answer(Problem(problems.UNKNOWN_FEED, str(exc)))


async def _busy(_: Request, exc: Exception) -> Response:
    return _answer(Problem(problems.STORE_BUSY, str(exc)))


async def _outcome_unknown(_: Request, exc: Exception) -> Response:
    return _answer(Problem(problems.NOT_KNOWN_YET, str(exc)))


async def _store_failed(_: Request, exc: Exception) -> Response:
    log.error("the store failed: %s", exc)
    return _answer(Problem(problems.STORE_FAILED, "the publisher's store failed; its log says why"))


async def _http_error(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, HTTPException)
    types = {404: problems.UNKNOWN_FEED, 405: problems.METHOD_NOT_ALLOWED}
    refused = ProblemType("refused", exc.status_code, "What else the HTTP layer refuses.")
    detail = f"{request.method} {request.url.path}: {exc.detail}"
    return _answer(Problem(types.get(exc.status_code, refused), detail), exc.headers)
