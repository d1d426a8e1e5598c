"""A publisher as a server: it listens, owns its store, and stops cleanly on a signal."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.types import ASGIApp

from zeh_spark.errors import StoreError, ZeroEventHubError
from zeh_spark.service.app.answers import ClientStalledError
from zeh_spark.service.network import http_protocol
from zeh_spark.service.network.certificates import Certificates
from zeh_spark.service.network.connections import (
    Idle,
    Listener,
    Refused,
    allowed_connections,
    nobody,
)
from zeh_spark.service.network.draining import Draining, StopTimes, end_after
from zeh_spark.service.network.http_protocol import IDLE_SECONDS, BoundedProtocol
from zeh_spark.service.network.shares import Unsent
from zeh_spark.service.retention.pruner import Pruner
from zeh_spark.service.store.interface import Store
from zeh_spark.service.telemetry.rare_log import UVICORN, RareTracebacks

_CLOSE = (b"connection", b"close")

_MUCH, _QUIET_TICKS = 32 << 20, 300
"""Unsent bytes after which freed memory is given back, once none were there for so many ticks."""


@dataclass(frozen=True, slots=True)
class Running:
    """How a publisher runs and ends.

    Attributes:
        draining: Whether it is about to stop; it stops once this has begun.
        certificates: Those of TLS; None to speak without it.
        forwarded_allow_ips: Addresses and networks of proxies whose `X-Forwarded-For` and
            `X-Forwarded-Proto` count.
    """

    draining: Draining = field(default_factory=Draining)
    times: StopTimes = StopTimes()
    certificates: Certificates | None = None
    forwarded_allow_ips: Sequence[str] = ()
    look: Callable[[], object] = lambda: None
    refused: Refused = nobody


_TRACEBACKS = RareTracebacks((ClientStalledError, ZeroEventHubError))


class Server(uvicorn.Server):
    """A uvicorn server that drains before it stops, and sets `ready` once it listens.

    Args:
        drain: Ends the long polls that wait for long.
    """

    def __init__(
        self,
        app: ASGIApp,
        stop: Callable[[], object],
        drain: Callable[[], object] = lambda: None,
        running: Running | None = None,
    ) -> None:
        self._running = running or Running()
        self._idle = Idle()
        counted: Unsent = getattr(getattr(app, "state", None), "unsent", None) or Unsent()
        self._unsent, self._was_much, self._quiet = counted, False, 0
        self._protocol = partial(
            BoundedProtocol, refused=self._running.refused, unsent=counted, idle=self._idle
        )
        super().__init__(
            uvicorn.Config(
                app,
                lifespan="off",
                log_config=None,  # the process decides how log lines look
                log_level="warning",
                access_log=False,
                http=self._protocol,  # type: ignore[arg-type]  # it is only called
                proxy_headers=bool(self._running.forwarded_allow_ips),
                forwarded_allow_ips=list(self._running.forwarded_allow_ips),
                ws="none",  # else uvicorn leaves upgrades unanswered if it finds a library
                timeout_keep_alive=IDLE_SECONDS,
                loop="asyncio",  # which accepts through our `Listener`; uvloop does not
                timeout_graceful_shutdown=self._running.times.grace,  # type: ignore[arg-type]
            )
        )
        UVICORN.addFilter(_TRACEBACKS)
        self.ready = threading.Event()
        self._stop = stop
        self._drain = drain
        self._drains = False

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        for each in sockets or ():
            if isinstance(each, Listener):
                each.idle = self._idle
        if self._running.certificates is None:
            await super().startup(sockets)
        else:
            await self._listen_with_tls(self._running.certificates, sockets or [])
        self.ready.set()

    async def _listen_with_tls(
        self, certificates: Certificates, sockets: Sequence[socket.socket]
    ) -> None:
        """Begin to listen, as uvicorn does, but with bounds on the time that TLS takes."""
        await self.lifespan.startup()
        protocol = partial(
            self._protocol,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        bounds: dict[str, Any] = {"ssl_handshake_timeout": http_protocol.HEAD_SECONDS}
        if sys.version_info >= (3, 11):
            bounds["ssl_shutdown_timeout"] = http_protocol.LINGER_SECONDS
        loop = asyncio.get_running_loop()
        self.servers = [
            await loop.create_server(
                protocol, sock=each, ssl=certificates, backlog=self.config.backlog, **bounds
            )
            for each in sockets
        ]
        self.started = True

    async def on_tick(self, counter: int) -> bool:
        """Drain if it was begun; return whether to stop (see `uvicorn.Server`)."""
        self._running.look()
        self._give_back()
        if self._running.certificates is not None:
            self._running.certificates.look()
        draining = self._running.draining
        if draining.has_begun:
            if not self._drains:
                self._begin_to_drain()
            self.should_exit = self.should_exit or draining.seconds >= self._running.times.delay
        return await super().on_tick(counter)

    def _give_back(self) -> None:
        """Give the memory of answers that waited back to the kernel, some time after them."""
        self._was_much |= self._unsent.total > _MUCH
        self._quiet = 0 if self._unsent.total else self._quiet + 1
        if self._was_much and self._quiet >= _QUIET_TICKS:
            self._was_much = False
            give_back_memory()

    def _begin_to_drain(self) -> None:
        """Have connections close after their next answer, which long polls give soon."""
        self._drains = True
        self.config.encoded_headers.append(_CLOSE)
        self.server_state.default_headers = [*self.server_state.default_headers, _CLOSE]
        for each in self.server_state.connections:
            assert isinstance(each, BoundedProtocol)
            each.close_after_answer()
        self._drain()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the long polls, for which uvicorn would wait, then stop (see `uvicorn.Server`)."""
        self._stop()
        await super().shutdown(sockets)


def serve(app: Starlette, store: Store | None, listener: Listener, running: Running) -> None:
    """Serve an app until SIGINT or SIGTERM, after which the process ends with exit code 0.

    It drains first (see `draining`). The process ends with it: at the latest when the time that
    `running` gives is over, whatever hangs, and at once after a second signal. The store is pruned
    meanwhile. The app is one of `create_app`, with the `draining` of `running`.
    """
    keep_freed_memory()
    collect_rarely()

    def drain() -> None:
        end_after(running.times.bound)
        app.state.drain()

    with Pruner(store) if store else nullcontext():
        listener.refused = app.state.refused
        told = replace(running, refused=app.state.refused)
        Server(app, app.state.stop, drain, told).run(sockets=[listener])


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


def give_back_memory() -> None:
    """Give memory that was freed back to the kernel, where the C library can."""
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)


def listen(host: str, port: int, each: int | None = None, gateways: Sequence[str] = ()) -> Listener:
    """Return a socket that listens on an address. Raises StoreError if it cannot.

    Port 0 takes a free one. `each` is how many connections an address may have, unless it is one of
    the gateways' addresses or networks; None for three quarters of all.
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
    listener = Listener(fileno=listening.detach())
    listener.allow(allowed_connections(), each, [ip_network(one) for one in gateways])
    return listener


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
