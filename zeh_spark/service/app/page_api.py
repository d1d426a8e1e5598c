"""The read API of the spec: pages of events.

A request is answered from one call in a worker thread, if it does not have to wait: the call finds
the feed, checks the request, and makes the first part of the answer. Readers that ask for the same
at the same time, as those do that a commit has woken, share such calls.

Caches between may keep pages that end by their hint, from concrete cursors: a page that ends where
the feed ends will have more events, and one with a cursorset moves a reader. Each such page has an
ETag, and is compared by it (304) before anything is rendered. A restore or retention takes a page
back, so only a proxy that is declared, and says so, may answer by itself, until its second is over.
Rejected: `X-Accel-Redirect`, because without that nginx a reader would get an empty page.

Rule for editors: what can be refused is refused before the first byte. A call that is shared
changes nothing.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain

from starlette.requests import Request
from starlette.responses import Response

from zeh_spark.service.access.disk import Disk
from zeh_spark.service.access.gate import client_of, holder_of
from zeh_spark.service.app.answers import Taken, disconnected
from zeh_spark.service.app.feed_calls import Asker, Begun, FeedCalls
from zeh_spark.service.app.read_requests import Ask, names_cursor_set, parse_query, resumed
from zeh_spark.service.app.rendering import (
    Piece,
    entity_tag,
    gzip_stream,
    part_renderer,
    plain_stream,
    render_blocks,
    with_fields,
)
from zeh_spark.service.reads.answer_cache import AnswerCache
from zeh_spark.service.reads.feed import ChunkFeed, Feed, state_of
from zeh_spark.service.reads.pages import DEFAULT_HINT, Page
from zeh_spark.service.reads.reading import head_of
from zeh_spark.service.store.log import Chunk, Log
from zeh_spark.service.store.problems import Problem
from zeh_spark.service.store.token_rights import Maker
from zeh_spark.service.telemetry.exchange import Tally, exchange_of
from zeh_spark.wire import page_headers, problems, wire
from zeh_spark.wire.page_headers import Standing
from zeh_spark.wire.served_lines import Block

_MEDIA_TYPE = f"{wire.CONTENT_TYPE}; charset=utf-8"
_VARY = {"Vary": f"Accept-Encoding, {page_headers.TELL}"}
_NOTHING = Taken([], None)
_SPECIAL = frozenset({wire.FIRST, wire.LAST})
_NO_CACHE = AnswerCache(0)
_ZERO = re.compile(r"q=0(\.0*)?")
_SHORT = 4096
"""Bytes of a query, and number of queries, below which it is noted that a page is unchanged."""

_PROXY_TIME = re.compile(r"([0-9]{1,12})\.[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class PageRequest:
    """A request for a page. Readers whose requests are equal may share a page.

    Attributes:
        name: The feed.
        feed: The feed of the reader, if it is none of the store's (see `Feed.for_reader`).
        consumer: The header `ZEH-Consumer`, if there is one.
        is_get: Whether it is a GET. The answer to a HEAD has no events.
        tells: Whether header fields tell where the feed stands (see `wire.page_headers`).
        cache: Where its parts are kept. Nowhere, if the request has `Cache-Control: no-cache`: then
            the answer is what the store has now (RFC 9111, 5.2.1.4).
        known: The ETags of what the client has (`If-None-Match`); None if nobody on the way may
            keep the answer, whatever it is.
    """

    name: str
    feed: Feed | None
    query: bytes
    consumer: str | None
    is_get: bool
    gzip: bool
    tells: bool
    cache: AnswerCache
    known: str | None


class UnchangedError(Exception):
    """The client has the page already."""


@dataclass(slots=True)
class Opened(Begun):
    """A page whose first part was read, so that it can no longer be refused.

    Attributes:
        begun: None if the page has no events and its reader waits.
        fields: The header fields that tell where the feed stands, as of the page.
        tag: The ETag; empty if nobody on the way may keep the page.
        is_taken: Whether a reader takes the rest, which is there once.
    """

    feed: Feed
    ask: Ask
    cursors: Mapping[int, str]
    seen: object
    fields: Mapping[str, str] = field(default_factory=dict)
    tag: str = ""
    is_taken: bool = False


class PageApi:
    """The read API of the spec: pages of events."""

    def __init__(
        self, calls: FeedCalls, disk_of: Callable[[str], Disk], most_cursor_sets: int
    ) -> None:
        self._calls = calls
        self._disk_of = disk_of
        self._most_cursor_sets = most_cursor_sets
        self._second, self._ends = 0, 0.0
        self._unchanged: dict[PageRequest, Opened] = {}

    async def read(self, request: Request) -> Response:
        wanted = self._wanted(request)
        name, is_get = wanted.name, wanted.is_get
        begin = time.monotonic()
        asker = Asker(client_of(request), len(wanted.query))
        second = proxy_second(request)
        unchanged = self._unchanged_in(second) if second else {}
        if wanted in unchanged:
            page = unchanged[wanted]
        elif names_cursor_set(wanted.query):
            page = await self._kept(wanted, asker)
        else:
            read = partial(self._shared, name, wanted, partial(self._begin, wanted), asker)
            key = replace(wanted, known=wanted.known and "")
            page = await self._calls.whole(name, wanted.cache, key, len(wanted.query), read)
        ask = page.ask  # later pages may be shared with readers that wait for another time
        gone: asyncio.Future[None] | None = None
        try:
            while page.begun is None:
                gone = gone or asyncio.ensure_future(disconnected(request.receive))
                left = self._calls.left(begin, ask.wait)
                if left > 0:
                    if not await self._calls.wait(gone, name, page.feed, page.seen, left):
                        return self._calls.answer(name, _NOTHING, {}, _MEDIA_TYPE, gone=gone)
                    left = self._calls.left(begin, ask.wait)
                waits = left > 0
                page = await self._again(wanted, page, ask, waits, asker)
            begun = page.begun if is_get else _NOTHING
            self._calls.unsent.check(asker.client, begun.size, whole=begun.rest is None)
        except BaseException:
            if gone:
                gone.cancel()
            raise
        headers = {**cache_fields(request, page.tag, second), **_VARY, **page.fields}
        if page.tag and page.tag in (wanted.known or ""):
            is_noted = second and wanted.cache is not _NO_CACHE and len(wanted.query) < _SHORT
            if is_noted and len(unchanged) < _SHORT:
                unchanged[wanted] = replace(page, begun=_NOTHING)
            return Response(status_code=304, headers=headers)
        if is_get:
            exchange_of(request).served = page.served
        return self._calls.answer(
            name,
            begun,
            {**headers, "Content-Encoding": "gzip"} if wanted.gzip else headers,
            _MEDIA_TYPE,
            gone=gone,
            asker=Asker(asker.client),
        )

    def _unchanged_in(self, second: int) -> dict[PageRequest, Opened]:
        """Return pages that were found unchanged in this second of a proxy.

        The proxy itself may answer with them until it is over.
        """
        if second != self._second or time.monotonic() > self._ends:
            self._second, self._ends, self._unchanged = second, time.monotonic() + 1, {}
        return self._unchanged

    async def allowed(self, request: Request) -> Response:
        """Answer GET …/access, with which a proxy asks whether a reader may have what it keeps."""
        return Response(status_code=204, headers={"Cache-Control": "no-store"})

    def _wanted(self, request: Request) -> PageRequest:
        name = request.path_params.get("feed", "")
        told = request.headers.getlist(wire.CONSUMER_HEADER)
        fresh = "no-cache" in request.headers.get("cache-control", "").lower()
        return PageRequest(
            name,
            self._calls.named(name, exchange_of(request)),
            request.scope["query_string"],
            ", ".join(told) if told else None,
            is_get=request.method == "GET",
            gzip=accepts_gzip(request.headers.get("accept-encoding", "")),
            tells=page_headers.TELL in request.headers,
            cache=_NO_CACHE if fresh else self._calls.cache,
            known=request.headers.get("if-none-match", "") if request.method == "GET" else None,
        )

    async def _shared(self, name: str, key: object, call: partial[Opened], asker: Asker) -> Opened:
        """Return a page that readers may share, if its first part is the whole of it."""
        page = await self._calls.shared(name, key, call, asker)
        if page.begun and page.begun.rest is not None:
            if page.is_taken:
                return await self._calls.in_thread(name, call, asker)
            page.is_taken = True
        return page

    async def _again(
        self, wanted: PageRequest, page: Opened, ask: Ask, waits: bool, asker: Asker
    ) -> Opened:
        how = replace(wanted, query=b"", consumer=None, known=None)  # the cursors stand for both
        key = (how, ask.n, tuple(page.cursors.items()), ask.hint, ask.headers, ask.only, waits)
        call = partial(self._open, page.feed, ask, page.cursors, waits, how)
        return await self._shared(wanted.name, key, call, asker)

    async def _kept(self, wanted: PageRequest, asker: Asker) -> Opened:
        """Return the page of a request that names a cursorset."""
        name, keep = wanted.name, wanted.is_get
        feed, ask = await self._calls.in_thread(name, partial(self._asked, wanted), asker)
        check = self._disk_of(name).check_growth
        maker = Maker(asker.client, self._most_cursor_sets)
        begin = partial(starting_cursors, feed, ask, check, maker, keep=keep)
        cursors = await self._calls.in_thread(name, begin, asker, writes=True)
        how = replace(wanted, known=None)
        call = partial(self._open, feed, ask, cursors, keep and ask.may_wait, how)
        return await self._calls.in_thread(name, call, asker)

    def _asked(self, wanted: PageRequest) -> tuple[Feed, Ask]:
        """Return a feed, and what a request asks of it.

        Raises Problem; one for `n` tells the feed's identity.
        """
        feed = wanted.feed or self._calls.find(wanted.name)
        query = wanted.query.decode("latin-1")
        try:
            ask = parse_query(query, lambda: feed.partitions, wanted.consumer)
            if ask.only and not isinstance(feed, ChunkFeed):
                said = f"only is {ask.only.text!r}; a feed that is not a store's gives all events"
                raise Problem(problems.BAD_ONLY, said)
        except Problem as problem:
            _ = feed.partitions  # an unknown feed is refused as such
            if "feed" not in problem.type.members or (identity := feed.identity()) is None:
                raise
            described = {**identity.document(), **feed.description()}
            raise problem.with_members(feed=described) from None
        return feed, ask

    def _begin(self, wanted: PageRequest) -> Opened:
        """Return the page of a query. Raises Problem."""
        feed, ask = self._asked(wanted)
        return self._open(feed, ask, ask.cursors, wanted.is_get and ask.may_wait, wanted)

    def _open(
        self, feed: Feed, ask: Ask, cursors: Mapping[int, str], waits: bool, how: PageRequest
    ) -> Opened:
        """Return a page. If it has no events, it is not begun while its reader `waits`.

        A special cursor means what it meant at first: taken again after a wait, `_last` would skip
        events. So the cursors of a page without events replace those that were asked for.
        """
        tally, page, tag = Tally(), None, ""
        lineage = self._calls.lineage(how.name)

        def look(log: Log, chunks: Sequence[Chunk]) -> None:
            nonlocal tag
            asked = ask.n, sorted(cursors.items()), ask.hint, ask.headers, how.gzip
            tag = entity_tag(log, chunks, *asked)
            if tag in (how.known or "") and not how.tells:
                raise UnchangedError

        if isinstance(feed, ChunkFeed):
            render = part_renderer(
                ask.n, ask.headers, ask.only, how.cache, gzip=how.gzip, tally=tally
            )
            is_concrete = _SPECIAL.isdisjoint(cursors.values())
            may_be_kept = how.known is not None and is_concrete and ask.only is None
            selected = (lambda: tally.events) if ask.only else None
            known = look if may_be_kept else None
            try:
                page = feed.open(cursors, ask.n, ask.hint, render, known, selected)
            except UnchangedError:
                return Opened(_NOTHING, tally, None, feed, ask, cursors, None, tag=tag)
            seen = state_of(page.state)
            found, after, pieces = page.has_events, page.cursors, page.parts
        else:
            seen = feed.own_version() if ask.wait else None
            before, rest = blocks_before_events(feed, cursors, ask)
            found = any(block.lines for block in before)
            after = {block.partition: block.cursor for block in before}
            pieces = render_blocks(
                chain(before, rest), ask.n, ask.headers, gzip=how.gzip, tally=tally
            )
        if waits and not found:
            return Opened(None, tally, None, feed, ask, {**cursors, **after}, seen)
        begun = self._calls.taken(gzip_stream(pieces) if how.gzip else plain_stream(pieces))
        fields = self._standing(feed, ask, cursors, page).fields() if how.tells else {}
        if ask.only:
            fields[page_headers.ONLY] = ask.only.text
        if tag and fields:
            tag = with_fields(tag, fields)
        hint = DEFAULT_HINT if ask.hint is None else ask.hint
        fixed = page and tally.events >= hint and wire.LAST not in cursors.values() and not fields
        kept_for = lineage if fixed and ask.cursor_set is None else None
        return Opened(begun, tally, kept_for, feed, ask, cursors, seen, fields, tag)

    def _standing(
        self, feed: Feed, ask: Ask, cursors: Mapping[int, str], page: Page[Piece] | None
    ) -> Standing:
        """Return where a feed stands. It knows at least the epochs of a page that was begun.

        How many selected events follow a cursor is not known.
        """
        if page is None:
            return feed.standing(cursors, ask.n)
        starts = {str(each): cursor for each, cursor in page.starts.items()}
        is_told = len(starts) <= page_headers.MOST_LAGS and ask.only is None
        lags = self._calls.lag_after(page.state, ask.n, starts) if is_told else None
        return Standing(page.identity.epochs[-1], head_of(page.state), lags)


def proxy_second(request: Request) -> int:
    """Return the present second of a declared proxy that keeps pages; 0 for another client.

    uvicorn gives requests of `--forwarded-allow-ips` the client's address, with port 0. With HTTP
    1.0, nginx would not see that a page was cut.
    """
    is_forwarded = request.client is not None and request.client.port == 0
    now = _PROXY_TIME.fullmatch(request.headers.get(page_headers.PROXY_TIME, ""))
    if not now or not is_forwarded or request.scope["http_version"] == "1.0":
        return 0
    return min(int(now[1]), int(time.time()))


def cache_fields(request: Request, tag: str, second: int) -> dict[str, str]:
    """Return the header fields that tell caches what to do with a page, by its ETag, if it has one.

    They may keep such a page if they ask each time. nginx does not ask before X-Accel-Expires. It
    counts whole seconds, so that `1` would be up to two: it gets the present one by its own clock.
    """
    if not tag:
        return {"Cache-Control": "no-store"}
    how = "private, no-cache" if holder_of(request) else "no-cache"
    # nginx before 1.23 goes by the first of these fields
    expires = {"X-Accel-Expires": f"@{second}"} if second else {}
    return {**expires, "Cache-Control": how, "ETag": tag}


def starting_cursors(
    feed: Feed, ask: Ask, check_growth: Callable[[], object], maker: Maker, *, keep: bool
) -> Mapping[int, str]:
    """Return the cursors from which a request reads that names a cursorset.

    Special cursors are replaced by what they mean now: taken again when the reader resumes, `_last`
    would skip events. `check_growth` raises Problem if the feed's disk has no room for cursors.
    With `keep` the cursors are saved under the cursorset. Raises Problem if the feed keeps no
    cursors, nothing is kept to resume from, or the cursorset is bound to another consumer.
    """
    assert ask.cursor_set is not None
    if ask.resume:
        return resumed(ask, feed.load_cursors(ask.cursor_set, ask.n, ask.consumer))
    cursors = {block.partition: block.cursor for block in feed.page(ask.cursors, ask.n, 0, ())}
    if keep:
        _check_room(feed, ask, check_growth)
        feed.save_cursors(ask.cursor_set, ask.n, cursors, ask.consumer, maker)
    else:
        feed.load_cursors(ask.cursor_set, ask.n, ask.consumer)  # a HEAD is refused as its GET is
    return cursors


def _check_room(feed: Feed, ask: Ask, check_growth: Callable[[], object]) -> None:
    """Raise Problem if new cursors have no room. Those that move on need none.

    Retention may wait for them, and frees room once they have moved on.
    """
    try:
        check_growth()
    except Problem:
        assert ask.cursor_set is not None
        kept = feed.load_cursors(ask.cursor_set, ask.n, ask.consumer)
        if not ask.cursors.keys() <= kept.keys():
            raise


def blocks_before_events(
    feed: Feed, cursors: Mapping[int, str], ask: Ask
) -> tuple[list[Block], Iterator[Block]]:
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
    return weight is not None and not _ZERO.fullmatch(weight)
