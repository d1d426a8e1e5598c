"""The publisher: the service that keeps feeds in a store and serves them over HTTP.

This module holds the names that users import, from `service`. It runs in the publisher's process,
and needs the extra `publisher`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.applications import Starlette

from zeh_spark.service.access.gate import Gate
from zeh_spark.service.access.limits import Limits
from zeh_spark.service.app import app
from zeh_spark.service.app.app import Publisher
from zeh_spark.service.databases import migrate_store, open_store, shown_url
from zeh_spark.service.network.draining import Draining
from zeh_spark.service.outbox.feed import SqlTableFeed, TableState
from zeh_spark.service.reads.feed import Feed
from zeh_spark.service.retention.pruner import Pruner
from zeh_spark.service.sql.upgrades import Migration
from zeh_spark.service.store.acts import Act, ActFilter, Action, Actor, Via
from zeh_spark.service.store.interface import Store
from zeh_spark.service.store.problems import Problem
from zeh_spark.service.telemetry.health import Check, Telemetry
from zeh_spark.wire.served_lines import Block

__all__ = [
    "Act", "ActFilter", "Action", "Actor", "Block", "Check", "Draining", "Feed", "Gate", "Limits",
    "Migration", "Problem", "Pruner", "SqlTableFeed", "Store", "TableState", "Telemetry", "Via",
    "create_app", "migrate_store", "open_store", "shown_url",
]  # fmt: skip


def create_app(
    feeds: Store | Feed | Mapping[str, Feed] | None,
    tables: Mapping[str, Feed] | None = None,
    *,
    gate: Gate | None = None,
    draining: Draining | None = None,
    telemetry: Telemetry | None = None,
    console: bool = False,
    **limits: Any,
) -> Starlette:
    """Return an ASGI app that serves feeds.

    Readers that wait delay the end of a server. An app that mounts this one takes `lifespan` from
    this one's state for its own, or enters it there: their waits then end when the process gets
    SIGINT or SIGTERM. Or it calls `app.state.stop()`, which ends them. A server that
    is unready for a while before it stops calls `draining.begin()` and `app.state.drain()` then,
    which ends those that wait for long. From then on, /readyz says that the publisher is not ready.

    Args:
        feeds: A store, whose feeds are served at /<name> and can be published to; or feeds of any
            kind by name, served at /<name>; or one feed, served at /.
        tables: More feeds by name, served beside those of `feeds`. They cannot be published to.
        gate: Who may do what. By default everybody may do everything that the app offers, because
            whatever mounts it decides.
        draining: Whether the server is about to stop. The state of the app has it, too.
        telemetry: What the publisher tells about itself.
        console: Whether /console has web pages about the feeds.
        limits: How much clients may take: attributes of `Limits`, like `most_chunks=1000`.

    Returns:
        The app, which another ASGI app can mount.

    Raises:
        TypeError: A feed is no `Feed`, or does not say how many partitions it has; or there is no
            such limit.
        ValueError: A name is in `feeds` and in `tables`, or is one of the publisher's own addresses
            (`store.interface.RESERVED_NAMES`); or `tables` is given beside one feed.
    """
    store, named = None, dict(tables or {})
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
        named = {"": feeds}
    elif feeds is None or hasattr(feeds, "feed"):
        store = feeds
    else:
        kind = type(feeds).__name__  # a URL might show a password
        raise TypeError(f"a {kind} is neither a store nor a Feed: open_store opens a store")
    publisher = Publisher(
        store,
        named,
        gate or Gate(checks_origin=False),
        draining or Draining(),
        telemetry or Telemetry(),
        Limits(**limits),
        console,
    )
    return app.create_app(publisher)
