"""The ASGI app of the publisher: the read API of ZeroEventHub and the publish API.

Any other ASGI app can mount it. It runs in the publisher's process.

Rule for editors: what can be refused is refused before the first byte (see `feed_calls` for what
follows it).
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import unquote

import anyio.to_thread
import msgspec
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from zeh_spark.service.access import gate as access
from zeh_spark.service.access.disk import Disk
from zeh_spark.service.access.gate import Gate
from zeh_spark.service.access.limits import DEFAULTS, Limits
from zeh_spark.service.app.direct_api import DirectApi
from zeh_spark.service.app.feed_calls import FeedCalls
from zeh_spark.service.app.page_api import PageApi
from zeh_spark.service.app.problem_answers import ANSWERS
from zeh_spark.service.app.publish_api import CALLS, PublishApi
from zeh_spark.service.app.telemetry_api import TelemetryApi
from zeh_spark.service.network.bodies import BODY_MEMORY
from zeh_spark.service.network.draining import Draining, stopping_on_signals
from zeh_spark.service.network.shares import Shares, Unsent
from zeh_spark.service.outbox.feed import SqlTableFeed
from zeh_spark.service.reads.feed import ChunkFeed, Feed
from zeh_spark.service.store.interface import RESERVED_NAMES, Store
from zeh_spark.service.store.problems import Problem
from zeh_spark.service.telemetry.access_log import EarlyRefusals
from zeh_spark.service.telemetry.health import Readiness, Telemetry
from zeh_spark.service.telemetry.metrics import Metrics
from zeh_spark.service.telemetry.observer import Observer
from zeh_spark.service.telemetry.outages import Outages
from zeh_spark.service.telemetry.rare_log import RareLog
from zeh_spark.service.telemetry.recent_refusals import RecentRefusals
from zeh_spark.service.telemetry.store_gauges import StoreGauges
from zeh_spark.wire import problems

log = logging.getLogger("zeh_spark.publisher")

_FEED = re.compile(rf"^/(?!(?:{'|'.join(map(re.escape, RESERVED_NAMES))})$)(?P<feed>[^/]+)$")
"""The address of a store's feed, whose route is tried first: each other one takes 2 µs."""


@dataclass(frozen=True, slots=True)
class Publisher:
    """What an app serves, and how (see `zeh_spark.publisher.create_app`).

    Attributes:
        feeds: Feeds beside those of the store. One without a store may have an empty name, and is
            served at /.

    Raises:
        TypeError: A feed is no `Feed`, or does not say how many partitions it has.
        ValueError: A name is one of the publisher's own addresses.
    """

    store: Store | None
    feeds: Mapping[str, Feed]
    gate: Gate
    draining: Draining
    telemetry: Telemetry
    limits: Limits = DEFAULTS
    console: bool = False

    def __post_init__(self) -> None:
        if reserved := sorted(self.feeds.keys() & RESERVED_NAMES):
            raise ValueError(f"no feed can be called {reserved[0]!r}: the publisher answers there")
        for name, feed in self.feeds.items():
            _check_feed(name, feed)

    @property
    def path(self) -> str:
        """The route of a feed."""
        if self.store:
            return "/{feed}"
        return "/" if "" in self.feeds else "/{feed:path}"


def create_app(publisher: Publisher) -> Starlette:
    """Return an ASGI app that serves feeds (see `zeh_spark.publisher.create_app`)."""
    store, named, gate, limits = publisher.store, publisher.feeds, publisher.gate, publisher.limits
    draining, telemetry = publisher.draining, publisher.telemetry
    gate.unsent = Unsent(limits.send_buffer)
    gate.requests = Shares(limits.connections, "requests are under way")
    calls = FeedCalls(store, named, limits.send_timeout, limits.cache_bytes, draining, gate.unsent)
    outages = Outages(named, BODY_MEMORY)
    metrics = Metrics(filter(None, named), telemetry.seconds)
    of_tables = {name: each.state for name, each in named.items() if isinstance(each, SqlTableFeed)}
    disk = Disk(telemetry.store_file, telemetry.least_free, store)
    look = disk.look if telemetry.store_file else None
    looks = {name: each.look for name, each in named.items() if isinstance(each, SqlTableFeed)}
    gauges = StoreGauges(
        store, calls.waiting, telemetry.connections, calls.backlogs, looks, telemetry.moved
    )
    readiness = Readiness(
        store, telemetry, outages, lambda: draining.has_begun, of_tables, look, gauges.looks
    )
    disks = {name: _disk_of(each, telemetry.least_free) for name, each in named.items()}
    pages_of_feeds = PageApi(calls, lambda name: disks.get(name, disk), limits.most_cursor_sets)
    path = publisher.path.rstrip("/")
    telling = TelemetryApi(gate, readiness, metrics, gauges, store, named)
    refusals, pages, console = RecentRefusals(), None, []
    if publisher.console:
        from zeh_spark.service.console.acts import ConsoleActs  # slow to import, not always wanted
        from zeh_spark.service.console.pages import Console

        pages = Console(gate, store, named, metrics, refusals, readiness, telling.look, gauges)
        console = [*pages.routes(), *(ConsoleActs(pages, store).routes() if store else ())]
    describe = partial(
        _describe,
        publishing=store is not None,
        direct=store is not None or any(isinstance(each, ChunkFeed) for each in named.values()),
    )
    read = gate.route(publisher.path, pages_of_feeds.read, access.reads, methods=["GET"])
    allowed = gate.route(f"{path}/access", pages_of_feeds.allowed, access.reads, methods=["GET"])
    if store:
        read.path_regex = _FEED
    app = Starlette(
        routes=[
            *([read] if store else []),
            gate.route("/openapi.json", describe, access.nothing, methods=["GET"]),
            *telling.routes(),
            *console,
            *DirectApi(calls).routes(publisher.path, gate),
            *_publish_routes(publisher, disk),
            *([allowed] if store else [read]),
        ],
        lifespan=partial(_lifespan, partial(_end_polls, draining, calls.stop)),
        middleware=[Middleware(Observer, metrics, outages, writes=telemetry.access_log)],
        exception_handlers=ANSWERS,
    )
    app.router.redirect_slashes = False  # its answer would name any host that the client names
    app.state.outages, app.state.rare = outages, RareLog(log)
    app.state.draining, app.state.console, app.state.refusals = draining, pages, refusals
    app.state.unsent, app.state.lifespan = gate.unsent, app.router.lifespan_context
    app.state.refused = EarlyRefusals(metrics, writes=telemetry.access_log)
    app.state.drain, app.state.stop = (
        partial(_end_polls, draining, each) for each in (calls.drain, calls.stop)
    )
    return app


def _publish_routes(publisher: Publisher, disk: Disk) -> list[Route]:
    """Return the routes of the publish API; for feeds beside the store, which refuse its calls."""
    gate, store = publisher.gate, publisher.store
    refusing = [
        gate.route(f"/{name}{path}", _refuse_batch, access.reads_feed(name), methods=[method])
        for name in publisher.feeds
        if name
        for method, path, _, _ in CALLS
    ]
    return [*refusing, *(PublishApi(store, disk, publisher.limits).routes(gate) if store else ())]


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


@asynccontextmanager
async def _lifespan(stop: Callable[[], object], _: ASGIApp) -> AsyncIterator[None]:
    with stopping_on_signals(stop):
        yield


def _end_polls(draining: Draining, end: Callable[[], object]) -> None:
    draining.begin()
    end()


async def _describe(request: Request, **offers: bool) -> Response:
    def render() -> bytes:
        from zeh_spark.service.app import openapi  # slow to import, and rarely needed

        mounted = request.scope.get("root_path", "")
        return msgspec.json.encode(openapi.document(mounted, **offers))

    return Response(await anyio.to_thread.run_sync(render), media_type="application/json")


async def _refuse_batch(request: Request) -> Response:
    name = request.scope["path"].rpartition("/producers")[0].rpartition("/")[2]
    remedy = "to publish to it, write rows to that table"
    raise Problem(
        problems.TABLE_FEED,
        f"{name!r} is a table feed: its events are the rows of a table of its service, so it takes "
        f"no batches, and has no producers and no receipts; {remedy}",
        remedy=remedy,
    )
