"""Health checks: whether a publisher is alive, and whether it is ready to serve.

Alive means that the event loop answers; nothing else is checked. Ready means that the store
answers, has the version that this publisher knows, and has room, that the clock is right, and that
the publisher is not about to stop. A load balancer sends requests to publishers that are ready.

A table whose database fails makes a publisher unready only if it has nothing else to serve.
Rejected: to be unready for each table, because all publishers of a table fail together, and the
load balancer would then have none for the other feeds, either.

Rule for editors: a probe waits a bounded time, and probes share one look at the store, so that
probes of strangers cost nothing. Runs in the publisher's event loop; looks run in threads.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread

from zeh_spark.errors import ZeroEventHubError
from zeh_spark.service.sql.schema import VERSION
from zeh_spark.service.store.interface import Store
from zeh_spark.service.telemetry.outages import READS, Outages
from zeh_spark.wire.phrases import counted

LEAST_FREE = 256 << 20
"""Bytes of the store's disk that have to be free, by default, to be ready and to take uploads."""

FRESH_SECONDS = 1.0
"""Seconds for which a look counts for all probes."""

PATIENCE_SECONDS = 2.0
"""Seconds after which a store that has not answered is not ready."""


@dataclass(frozen=True, slots=True)
class Check:
    """One of the things that a publisher needs in order to be ready.

    Attributes:
        vital: Whether the publisher is unready without it.
    """

    name: str
    ok: bool
    detail: str
    vital: bool = True


Look = Callable[[], Check | None]


@dataclass(frozen=True, slots=True)
class Telemetry:
    """What a publisher tells about itself, and where it looks.

    Attributes:
        store_file: The file of a SQLite store; None for any other store.
        least_free: Bytes that have to be free on the disk of that file, to be ready and to take
            uploads; half of it for all else that grows (see `access.disk`).
        clock: Looks whether the clock is right, in a worker thread; None if nobody looks.
        connections: Returns the number of open connections; None if the server does not count.
        moved: Returns when old events were last moved to objects, in seconds since 1970; None if
            this publisher moves none.
        seconds: Returns the seconds, from any beginning, by which events of the last hour are
            counted.
    """

    store_file: Path | None = None
    least_free: int = LEAST_FREE
    clock: Callable[[], Check] | None = None
    connections: Callable[[], int] | None = None
    moved: Callable[[], float] | None = None
    access_log: bool = False
    seconds: Callable[[], float] = time.monotonic


class Readiness:
    """Looks whether a publisher is ready.

    Args:
        store: The store; None if only tables are served.
        tables: For each feed of a table, a function that raises if the table cannot be read.
        disk: Returns whether the store's disk has room, and what was found; None without one.
        lags: For each feed of a table, a function that looks at the lag of its consumers.
    """

    def __init__(
        self,
        store: Store | None,
        telemetry: Telemetry,
        outages: Outages,
        is_draining: Callable[[], bool],
        tables: Mapping[str, Callable[[], object]],
        disk: Callable[[], tuple[bool, str]] | None,
        lags: Mapping[str, Callable[[], object]],
    ) -> None:
        self._is_draining = is_draining
        self._has_store = store is not None
        self._tables = {f"table {feed}".strip(): feed for feed in tables}
        self._outages = outages
        looks: dict[str, Look] = {}
        if store is not None:
            looks = {"store": partial(_store, store), "schema": partial(_schema, store)}
            looks["replica"] = partial(_replica, store)
        if disk is not None:
            looks["disk"] = lambda: Check("disk", *disk())
        if telemetry.clock is not None:
            looks["clock"] = telemetry.clock
        of_tables = {
            name: partial(_table, name, tables[feed]) for name, feed in self._tables.items()
        }
        self._looks = looks | of_tables
        self._lag_looks = {f"lag of {feed}": partial(_table, feed, lags[feed]) for feed in lags}
        self._limiter = anyio.CapacityLimiter(max(1, len(self._looks) + len(lags)))
        self._found: dict[str, tuple[float, Check | None]] = {}
        self._looking: dict[str, asyncio.Task[None]] = {}

    async def checks(self) -> Sequence[Check]:
        """Return what was found, after PATIENCE_SECONDS at the latest."""
        ends = self._is_draining()
        draining = Check("serving", not ends, "stopping" if ends else "yes")
        found = await self._checked(self._looks)
        serves = self._has_store or any(each.ok for each in found if each.name in self._tables)
        return [
            draining,
            *(replace(each, vital=each.name not in self._tables or not serves) for each in found),
        ]

    async def tables_up(self) -> Mapping[str, bool]:
        """Return for each feed of a table whether the table can be read; have its lag looked at."""
        looks = {name: self._looks[name] for name in self._tables}
        found, _ = await asyncio.gather(self._checked(looks), self._checked(self._lag_looks))
        return {self._tables[each.name]: each.ok for each in found}

    async def _checked(self, looks: Mapping[str, Look]) -> Sequence[Check]:
        """Return what these looks find that have something to look at."""
        found = await asyncio.gather(*(self._check(*each) for each in looks.items()))
        return [each for each in found if each is not None]

    async def _check(self, name: str, look: Look) -> Check | None:
        at, found = self._found.get(name, (float("-inf"), None))
        if time.monotonic() - at < FRESH_SECONDS:
            return found
        if name not in self._looking:
            self._looking[name] = asyncio.create_task(self._look(name, look))
        done, _ = await asyncio.wait({self._looking[name]}, timeout=PATIENCE_SECONDS)
        if not done:
            return Check(name, False, f"no answer within {PATIENCE_SECONDS:g} s")
        return self._found[name][1]

    async def _look(self, name: str, look: Look) -> None:
        begun = time.monotonic()
        found: Check | None
        try:
            found = await anyio.to_thread.run_sync(look, limiter=self._limiter)
        except ZeroEventHubError as exc:
            found = Check(name, False, exc.what)
        except Exception as exc:  # noqa: BLE001  # what cannot be looked at is not ready
            found = Check(name, False, f"{type(exc).__name__}: {exc}")
        finally:
            del self._looking[name]
        self._found[name] = begun, found
        if name == "store" and found:
            if found.ok:
                self._outages.worked(READS)
            else:
                self._outages.failed(READS, found.detail)


def _store(store: Store) -> Check:
    feeds = store.feeds()
    which = " of a replica" if any(each.replica for each in feeds) else ""
    return Check("store", True, f"{counted(len(feeds), 'feed')}{which}")


def _replica(store: Store) -> Check | None:
    """Tell how far a replica is behind. It stays ready: its readers accept a lag."""
    lag = store.replica_lag()
    return None if lag is None else Check("replica", True, f"{lag / 1000:.1f} s behind its primary")


def _table(name: str, read: Callable[[], object]) -> Check:
    read()
    return Check(name, True, "answers")


def _schema(store: Store) -> Check:
    found = store.stored_version()
    if found == VERSION:
        return Check("schema", True, f"version {found}")
    return Check("schema", False, f"version {found}; this publisher knows version {VERSION}")
