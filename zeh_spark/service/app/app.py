"""The ASGI app of the publisher: the read API of ZeroEventHub and the publish API.

Any other ASGI app can mount it. It runs in the publisher's process.

Rule for editors: what can be refused is refused before the first byte (see `feed_calls` for what
follows it).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from urllib.parse import unquote

import anyio.to_thread
import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response

from zeh_spark.errors import StoreError
from zeh_spark.service.access import gate as access
from zeh_spark.service.access.disk import Disk
from zeh_spark.service.access.gate import Gate
from zeh_spark.service.app.direct_api import DirectApi
from zeh_spark.service.app.feed_calls import SEND_SECONDS, FeedCalls
from zeh_spark.service.app.page_api import MOST_CURSOR_SETS, PageApi
from zeh_spark.service.app.publish_api import (
    CALLS,
    MOST_CHUNKS,
    MOST_PRODUCERS,
    STAGING_QUOTA,
    PublishApi,
)
from zeh_spark.service.app.telemetry_api import TelemetryApi
from zeh_spark.service.network import shares
from zeh_spark.service.network.bodies import BODY_MEMORY
from zeh_spark.service.network.connections import MOST
from zeh_spark.service.network.draining import Draining
from zeh_spark.service.network.shares import Shares, Unsent
from zeh_spark.service.outbox.feed import SqlTableFeed
from zeh_spark.service.store.answer_cache import CACHE_BYTES
from zeh_spark.service.store.feed import ChunkFeed, Feed
from zeh_spark.service.store.interface import (
    RESERVED_NAMES,
    Store,
    StoreBusyError,
    StoreOutcomeUnknownError,
    StoreSilentError,
    UnknownFeedError,
)
from zeh_spark.service.store.problems import Problem
from zeh_spark.service.telemetry.early_refusals import EarlyRefusals
from zeh_spark.service.telemetry.exchange import exchange_of
from zeh_spark.service.telemetry.health import Readiness
from zeh_spark.service.telemetry.metrics import Metrics
from zeh_spark.service.telemetry.observer import Observer
from zeh_spark.service.telemetry.outages import BODIES, Outages
from zeh_spark.service.telemetry.rare_log import RareLog
from zeh_spark.service.telemetry.recent_refusals import RecentRefusals
from zeh_spark.service.telemetry.settings import Telemetry
from zeh_spark.service.telemetry.store_gauges import StoreGauges
from zeh_spark.wire import problems
from zeh_spark.wire.problems import ProblemType

log = logging.getLogger("zeh_spark.publisher")

_OF_BATCHES = frozenset("/{feed}" + path for method, path, _, _ in CALLS if method != "GET")
"""The routes of calls that change batches."""


def create_app(
    feeds: Store | Feed | Mapping[str, Feed],
    tables: Mapping[str, Feed] | None = None,
    *,
    send_timeout: float = SEND_SECONDS,
    staging_quota: int = STAGING_QUOTA,
    most_chunks: int = MOST_CHUNKS,
    most_producers: int = MOST_PRODUCERS,
    most_cursor_sets: int = MOST_CURSOR_SETS,
    cache_bytes: int = CACHE_BYTES,
    gate: Gate | None = None,
    draining: Draining | None = None,
    telemetry: Telemetry | None = None,
    console: bool = False,
    send_buffer: int = shares.MOST,
    connections: int = MOST,
) -> Starlette:
    """Return an ASGI app that serves feeds.

    Call `app.state.stop()` when the server stops: it ends all long polls. A server that is unready
    for a while before it stops calls `draining.begin()` and `app.state.drain()` then, which ends
    those that wait for long. From then on, /readyz says that the publisher is not ready.

    Args:
        feeds: A store, whose feeds are served at /<name> and can be published to; or feeds of any
            kind by name, served at /<name>; or one feed, served at /.
        tables: More feeds by name, served beside those of `feeds`. They cannot be published to.
        send_timeout: Seconds for which a client may take nothing before it is dropped.
        staging_quota: Bytes that a producer may have uploaded and not committed.
        most_chunks: How many chunks a batch may have.
        most_producers: How many producers each client may have begun.
        most_cursor_sets: How many cursor sets each client may have begun.
        cache_bytes: Most bytes of answers, as they are sent, that are kept in memory for the next
            readers.
        gate: Who may do what. By default everybody may do everything that the app offers, because
            whatever mounts it decides.
        draining: Whether the server is about to stop. The state of the app has it, too.
        telemetry: What the publisher tells about itself.
        console: Whether /console has web pages about the feeds.
        send_buffer: Most bytes of answers in memory that clients have not taken yet.
        connections: How many connections the server has at most, of whose requests at a time each
            client has a share.

    Returns:
        The app, which another ASGI app can mount.

    Raises:
        TypeError: A feed is no `Feed`, or does not say how many partitions it has.
        ValueError: A name is in `feeds` and in `tables`, or is one of the publisher's own addresses
            (`store.interface.RESERVED_NAMES`); or `tables` is given beside one feed.
    """
    store, named, read = None, dict(tables or {}), "/{feed:path}"
    if isinstance(feeds, Mapping):
        if twice := sorted(named.keys() & feeds.keys()):
            raise ValueError(f"{twice[0]!r} is in feeds and in tables. Rename one of them")
        named.update(feeds)
    elif isinstance(feeds, Feed):
        if named:
            raise ValueError(
                f"one feed is served at /, where {sorted(named)[0]!r} of tables has no address. "
                f"Give all feeds by name, as a mapping"
            )
        named, read = {"": feeds}, "/"
    elif feeds is None or hasattr(feeds, "feed"):
        store, read = feeds, "/{feed}"
    else:
        kind = type(feeds).__name__  # a URL might show a password
        raise TypeError(f"a {kind} is neither a store nor a Feed: open_store opens a store")
    draining = draining or Draining()
    if reserved := sorted(named.keys() & RESERVED_NAMES):
        raise ValueError(f"no feed can be called {reserved[0]!r}: the publisher answers there")
    for name, each in named.items():
        _check_feed(name, each)
    gate = gate or Gate(checks_origin=False)
    gate.unsent, gate.requests = Unsent(send_buffer), Shares(connections, "requests are under way")
    calls = FeedCalls(store, named, send_timeout, cache_bytes, draining, gate.unsent)
    telemetry = telemetry or Telemetry()
    outages = Outages(named, BODY_MEMORY)
    metrics = Metrics(filter(None, named), telemetry.seconds)
    of_tables = {name: each.state for name, each in named.items() if isinstance(each, SqlTableFeed)}
    disk = Disk(telemetry.store_file, telemetry.least_free, store)
    look = disk.look if telemetry.store_file else None
    readiness = Readiness(store, telemetry, outages, lambda: draining.has_begun, of_tables, look)
    gauges = StoreGauges(store, calls.waiting, telemetry.connections, calls.backlogs)
    publish = [
        gate.route(f"/{name}{path}", _not_published_to, access.reads_feed(name), methods=[method])
        for name in named
        if name
        for method, path, _, _ in CALLS
    ]
    if store:
        publish += PublishApi(store, staging_quota, most_chunks, disk, most_producers).routes(gate)
    disks = {name: _disk_of(each, telemetry.least_free) for name, each in named.items()}
    pages_of_feeds = PageApi(calls, lambda name: disks.get(name, disk), most_cursor_sets)
    telling = TelemetryApi(gate, readiness, metrics, gauges, store, named)
    pages, refusals, of_console = None, RecentRefusals(), []
    if console:
        # They are slow to import, and not always wanted.
        from zeh_spark.service.console.acts import ConsoleActs
        from zeh_spark.service.console.pages import Console

        pages = Console(
            gate, store, named, metrics.rates, refusals, readiness, telling.look, gauges.lags
        )
        of_console = [*pages.routes(), *(ConsoleActs(pages, store).routes() if store else ())]
    described = partial(
        _described,
        publishing=store is not None,
        direct=store is not None or any(isinstance(each, ChunkFeed) for each in named.values()),
    )
    app = Starlette(
        routes=[
            gate.route("/openapi.json", described, access.nothing, methods=["GET"]),
            *telling.routes(),
            *of_console,
            *publish,
            *DirectApi(calls).routes(read, gate),
            gate.route(read, pages_of_feeds.read, access.reads, methods=["GET"]),
        ],
        middleware=[Middleware(Observer, metrics, outages, writes=telemetry.access_log)],
        exception_handlers={
            Problem: _problem,
            UnknownFeedError: _unknown_feed,
            StoreBusyError: _busy,
            StoreOutcomeUnknownError: _outcome_unknown,
            StoreError: _store_failed,
            HTTPException: _http_error,
        },
    )
    app.router.redirect_slashes = False  # its answer would name any host that the client names
    app.state.outages, app.state.rare = outages, RareLog(log)
    app.state.draining, app.state.console, app.state.refusals = draining, pages, refusals
    app.state.unsent = gate.unsent
    app.state.refused = EarlyRefusals(metrics, writes=telemetry.access_log)
    app.state.drain, app.state.stop = (
        partial(_end, draining, each) for each in (calls.drain, calls.stop)
    )
    return app


def _check_feed(name: str, feed: object) -> None:
    if not isinstance(feed, Feed):
        raise TypeError(
            f"feed {name!r} has the type {type(feed).__name__}, which does not derive from "
            f"zeh_spark.publisher.Feed"
        )
    if not isinstance(count := getattr(feed, "partitions", None), int) or count < 1:
        raise TypeError(f"feed {name!r} has {count!r} partitions. Set `partitions` to 1 or more")


def _disk_of(feed: Feed, least: int) -> Disk:
    """Return the disk of a feed beside the store, which may keep cursors in a SQLite file."""
    url = feed.engine.url if isinstance(feed, SqlTableFeed) else None
    if url is None or url.get_backend_name() != "sqlite" or not url.database:
        return Disk(None, least)
    return Disk(Path(unquote(url.database.removeprefix("file:"))), least)


def _end(draining: Draining, end_polls: Callable[[], object]) -> None:
    draining.begin()
    end_polls()


def _answer(
    request: Request, problem: Problem, headers: Mapping[str, str] | None = None
) -> Response:
    exchange = exchange_of(request)
    exchange.problem = problem.name
    exchange.is_decided = problems.REMEDY in problem.type.members  # the store knows the feed
    more = {"Retry-After": "1"} if problem.type.has_retry_after else {}
    if problem.type is problems.TOO_MANY_CONNECTIONS:
        more["Connection"] = "close"
    if problem.type is problems.BODY_TOO_SLOW:
        more = {"Connection": "close"}
    if problem.type is problems.UNAUTHORIZED:
        more = {"WWW-Authenticate": 'Bearer realm="zeh-spark"'}
    if request.method != "GET" and exchange.route in _OF_BATCHES:
        request.app.state.refusals.note(
            request.path_params, problem, exchange.request_id, exchange.token
        )
    if console := request.app.state.console:
        page: Response | None = console.problem(
            request, problem, {**more, **(headers or {})}, exchange.request_id
        )
        if page:
            return page
    document = problem.document()
    if exchange.request_id:
        document["requestId"] = exchange.request_id
    return Response(
        msgspec.json.encode(document),
        status_code=problem.status,
        headers={"Cache-Control": "no-store", **more, **(headers or {})},
        media_type=problems.CONTENT_TYPE,
    )


async def _described(request: Request, **offers: bool) -> Response:
    render = partial(_document, request.scope.get("root_path", ""), **offers)
    return Response(await anyio.to_thread.run_sync(render), media_type="application/json")


def _document(mounted: str, **offers: bool) -> bytes:
    from zeh_spark.service.app import openapi  # slow to import, and rarely needed

    return msgspec.json.encode(openapi.document(mounted, **offers))


async def _not_published_to(request: Request) -> Response:
    name = request.scope["path"].rpartition("/producers")[0].rpartition("/")[2]
    remedy = "to publish to it, write rows to that table"
    raise Problem(
        problems.TABLE_FEED,
        f"{name!r} is a table feed: its events are the rows of a table of its service, so it takes "
        f"no batches, and has no producers and no receipts; {remedy}",
        remedy=remedy,
    )


async def _problem(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, Problem)
    if exc.type is problems.NO_ROOM_FOR_BODIES:
        _outages(request).failed(BODIES, exc.detail)
    elif exc.status == 500 or exc.type in {problems.RESTORED_TABLE, problems.STORE_FULL}:
        feed = request.path_params.get("feed", "")
        # for the operator, who can repair it
        request.app.state.rare.error((exc.name, feed), "%s", exc.detail)
    return _answer(request, exc)


def _said(exc: Exception) -> str:
    """Return what an error of a store says, without its code: the problem has a name of its own."""
    return exc.what if isinstance(exc, StoreError) else str(exc)


async def _unknown_feed(request: Request, exc: Exception) -> Response:
    return _answer(request, Problem(problems.UNKNOWN_FEED, _said(exc)))


async def _busy(request: Request, exc: Exception) -> Response:
    _note_failure(request, exc)
    said = _said(exc)
    if isinstance(exc, StoreSilentError):
        said = (
            "the publisher's database does not answer; the publisher's log says why. Try again "
            "when it answers"
        )
    return _answer(request, Problem(problems.STORE_BUSY, said))


async def _outcome_unknown(request: Request, exc: Exception) -> Response:
    _note_failure(request, exc)
    return _answer(request, Problem(problems.NOT_KNOWN_YET, _said(exc)))


async def _store_failed(request: Request, exc: Exception) -> Response:
    _note_failure(request, exc)
    said = "the publisher's store failed; its log says why"
    return _answer(request, Problem(problems.STORE_FAILED, said))


def _note_failure(request: Request, exc: Exception) -> None:
    feed = request.path_params.get("feed", "")
    why = exc.__cause__ if isinstance(exc.__cause__, StoreError) else exc  # see `access.gate`
    _outages(request).request_failed(exchange_of(request), request.method, feed, _said(why))


def _outages(request: Request) -> Outages:
    found: Outages = request.app.state.outages
    return found


async def _http_error(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, HTTPException)
    types = {404: problems.UNKNOWN_FEED, 405: problems.METHOD_NOT_ALLOWED}
    refused = ProblemType("refused", exc.status_code, "What else the HTTP layer refuses.")
    detail = f"{request.method} {request.scope['path']}: {exc.detail}"
    return _answer(request, Problem(types.get(exc.status_code, refused), detail), exc.headers)
