"""A publisher as a server: it listens, owns its store, and stops cleanly on a signal."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from zeh_spark.errors import StoreError, ZeroEventHubError
from zeh_spark.publisher import publish_api
from zeh_spark.publisher.access import Gate
from zeh_spark.publisher.answers import ClientStalledError
from zeh_spark.publisher.app import create_app
from zeh_spark.publisher.connections import Listener, allowed_connections
from zeh_spark.publisher.http_protocol import IDLE_SECONDS, BoundedProtocol
from zeh_spark.store.answer_cache import CACHE_BYTES
from zeh_spark.store.feed import Feed
from zeh_spark.store.interface import Store
from zeh_spark.store.retention import Pruner
from zeh_spark.telemetry import tracebacks
from zeh_spark.telemetry.settings import Telemetry

GRACE_SECONDS = 3
"""Seconds that answers already begun may take to end when the publisher stops."""


_TRACEBACKS = tracebacks.RareTracebacks((ClientStalledError, ZeroEventHubError))


class Server(uvicorn.Server):
    """A uvicorn server that ends long polls when it stops, and sets `ready` once it listens."""

    def __init__(self, app: ASGIApp, stop: Callable[[], object]) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                lifespan="off",
                log_config=None,  # the process decides how log lines look
                log_level="warning",
                access_log=False,
                http=BoundedProtocol,
                ws="none",  # else uvicorn leaves upgrades unanswered if it finds a library
                timeout_keep_alive=IDLE_SECONDS,
                loop="asyncio",  # which accepts through our `Listener`; uvloop does not
                timeout_graceful_shutdown=GRACE_SECONDS,
            )
        )
        tracebacks.log.addFilter(_TRACEBACKS)
        self.ready = threading.Event()
        self._stop = stop

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen (see `uvicorn.Server`), then set `ready`."""
        await super().startup(sockets)
        self.ready.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the long polls, for which uvicorn would wait, then stop (see `uvicorn.Server`)."""
        self._stop()
        await super().shutdown(sockets)


def serve(
    feeds: Store | Mapping[str, Feed],
    listener: Listener,
    tables: Mapping[str, Feed] | None = None,
    staging_quota: int = publish_api.STAGING_QUOTA,
    cache_bytes: int = CACHE_BYTES,
    gate: Gate | None = None,
    telemetry: Telemetry | None = None,
) -> None:
    """Serve feeds until SIGINT or SIGTERM, after which the process ends with exit code 0.

    Args:
        feeds: A store, or feeds by name (see `create_app`). A store is also pruned.
        listener: The socket to listen on (see `listen`).
        tables: More feeds by name.
        staging_quota: Bytes that a producer may have uploaded and not committed.
        cache_bytes: Most bytes of answers that are kept for the next readers.
        gate: Who may do what (see `create_app`).
        telemetry: What the publisher tells about itself (see `create_app`).
    """
    listener.most = allowed_connections()
    keep_freed_memory()
    collect_rarely()
    for number in (signal.SIGINT, signal.SIGTERM):
        # Uvicorn's own handlers take over while it runs, and raise the signal again at the end.
        signal.signal(number, _exit)
    app = create_app(
        feeds,
        tables,
        staging_quota=staging_quota,
        cache_bytes=cache_bytes,
        gate=gate,
        telemetry=replace(telemetry or Telemetry(), connections=lambda: listener.open),
    )
    with nullcontext() if isinstance(feeds, Mapping) else Pruner(feeds):
        Server(app, app.state.stop).run(sockets=[listener])


def collect_rarely() -> None:
    """Let Python search for unreachable cycles less often, and not among what is loaded already.

    A plan makes 50,000 rows that all stay until it is sent. Measured: Python's default, a search
    after 700 new objects, took a fifth of the time of plans and chunks of tiny chunks.
    """
    gc.freeze()
    gc.set_threshold(50_000, 50, 100)


def keep_freed_memory() -> None:
    """Keep the 16 MiB that an answer takes for the next one, and threads on the same few heaps.

    By default glibc returns pieces from 128 KiB on to the kernel when they are freed. The kernel
    clears them when it hands them out again: a fifth of the time that a served event takes. glibc
    also makes eight heaps a core, each of which keeps some: 354 MiB with 64 writers and 64 readers,
    against 210 with two heaps. Other C libraries are left as they are.
    """
    if sys.platform == "linux" and (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)):
        trim_threshold, mmap_threshold, arena_max = -1, -3, -8  # from malloc.h
        mallopt(trim_threshold, 16 << 20)
        mallopt(mmap_threshold, 4 << 20)
        mallopt(arena_max, 2)


def listen(host: str, port: int) -> Listener:
    """Return a socket that listens on an address. Raises StoreError if it cannot.

    Args:
        host: A host name or an IPv4 or IPv6 address.
        port: The port; 0 takes a free one.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as exc:
        raise StoreError(
            f"cannot listen on {host}:{port}: {exc.strerror}. Choose another --port or --host",
            anchor="cannot-listen",
        ) from exc
    # Each connection inherits it. asyncio sets it only on sockets whose protocol is named. Without
    # it, the last chunk of an answer waits 40 ms for the client's acknowledgement.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Listener(fileno=listening.detach())


@contextmanager
def only_publisher(store_url: str) -> Iterator[None]:
    """Hold the lock of a SQLite store's file. Raises StoreError if another process serves it.

    Other stores take several publishers. The lock is the operating system's: it ends with the
    process, however that ends. The lock file stays.
    """
    if not store_url.startswith("sqlite:"):
        yield
        return
    import fcntl  # POSIX only, like this command

    file = Path(f"{os.path.realpath(store_url.removeprefix('sqlite:///'))}.serve.lock")
    try:
        lock = os.fdopen(os.open(file, os.O_CREAT | os.O_WRONLY, 0o600), "a")
    except OSError as exc:
        raise StoreError(f"the lock file {file} cannot be written: {exc.strerror}") from exc
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StoreError(
                f"{store_url} is served by another process already, which holds {file}. "
                f"Stop that process first",
                anchor="served-by-another-process-already",
            ) from None
        yield


def _exit(number: int, frame: FrameType | None) -> None:
    raise SystemExit(0)
