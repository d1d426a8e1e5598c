"""A publisher under strain: slow clients, access checks, and a stop in the middle of work.

`python -m benchmarks.strain slow PORT` is the process of the slow clients, and
`python -m benchmarks.strain greedy PORT COUNT TOKEN` that of the readers that take nothing.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import itertools
import os
import resource
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from benchmarks import fanout
from benchmarks.fanout import Load, load
from benchmarks.feeds import build, fill, filling, serving
from zeh_spark.publisher import open_store
from zeh_spark.service.network.draining import StopTimes
from zeh_spark.service.store.token_rights import ADMIN, Grant, Right, new_token

EVENTS, ROUNDS, READERS = 100_000, 5, 4
SLOW = 5_000
"""Sockets that send a byte of a head at a time."""

PAUSE = 10.0
"""Seconds between two bytes of each of them."""

ASKED = 3_000
"""Requests of the other client in a round."""

GREEDY, ADDRESSES = 10_000, 2_000
"""Readers that ask for a page of many MiB and take nothing of it, and their addresses."""

STOPS, CHUNKS = 5, 300_000
"""How often it is stopped, and the small chunks that it prunes then."""

Row = tuple[str, str, str]

# A publisher that checks and counts nothing, and one that does; otherwise the same.
_PROGRAM = """
import sys
from zeh_spark.service.access.gate import Gate
from zeh_spark.publisher import create_app, open_store
from zeh_spark.service.app.server import Server, collect_rarely, keep_freed_memory, listen
keep_freed_memory()
collect_rarely()
store = open_store(sys.argv[1])
checks = sys.argv[2] == "checks"
app = create_app(store, gate=Gate(store, checks_origin=False) if checks else None)
if not checks:
    app.user_middleware.clear()
listener = listen("127.0.0.1", 0)
print(listener.getsockname()[1], flush=True)
Server(app, app.state.stop).run(sockets=[listener])
"""


def measured(work: Path, events: int) -> Iterator[Row]:
    """All of it, one after the other."""
    store = build(work, min(events, EVENTS))
    yield from beside_slow_clients(store)
    yield from beside_greedy_readers(store)
    yield from with_checks(store)
    yield from stopped(work)


# Slow clients


def beside_slow_clients(store: str) -> Iterator[Row]:
    """Turn by turn without and with them: how long a small page takes."""
    without, beside, ratios = [], [], []
    with serving(store) as (url, pid):
        port, path = urlsplit(url).port or 0, urlsplit(url).path
        request = fanout.get(f"{path}?n=4&cursor0=_first&pagesizehint=10").encode()
        seconds_of(port, request)
        for _ in range(ROUNDS):
            alone = p99(seconds_of(port, request))
            with slow_clients(port):
                begun, spent = time.perf_counter(), fanout.cpu_of(pid)
                crowded = p99(seconds_of(port, request))
                share = (fanout.cpu_of(pid) - spent) / (time.perf_counter() - begun)
            without.append(alone)
            beside.append(crowded)
            ratios.append(crowded / alone)
        resident = psutil.Process(pid).memory_info().rss
    yield (
        f"{SLOW:,} slow clients: 99th of a hundred of other requests, without and with",
        f"{statistics.median(without) * 1000:.1f}, {statistics.median(beside) * 1000:.1f} ms",
        "",
    )
    low, high = min(ratios), max(ratios)
    yield (
        f"{SLOW:,} slow clients: with / without",
        f"{statistics.median(ratios):.2f} ({low:.2f}-{high:.2f})",
        "<= 2",
    )
    yield (
        f"{SLOW:,} slow clients: publisher's memory, and CPU beside the other client",
        f"{resident >> 20} MiB, {share:.0%} of a core",
        "",
    )


def seconds_of(port: int, request: bytes) -> list[float]:
    """How long each of many requests takes, on one connection."""
    buffer, found = memoryview(bytearray(1 << 20)), []
    with socket.create_connection(("127.0.0.1", port)) as reader:
        for _ in range(ASKED):
            begun = time.perf_counter()
            reader.sendall(request)
            fanout.received(reader, buffer)
            found.append(time.perf_counter() - begun)
    return found


def p99(seconds: list[float]) -> float:
    return statistics.quantiles(seconds, n=100)[98]


@contextlib.contextmanager
def slow_clients(port: int) -> Iterator[None]:
    """SLOW sockets, all connected, in a process of their own."""
    command = [sys.executable, "-m", "benchmarks.strain", "slow", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as clients:
        assert clients.stdout
        try:
            if clients.stdout.readline() != "connected\n":
                raise OSError("the slow clients could not connect")
            yield
        finally:
            clients.kill()


class SlowClient(asyncio.Protocol):
    """Sends a head that does not end. A new one takes its place when it is cut off."""

    def __init__(self, port: int) -> None:
        self._port = port

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(b"GET /flights HTTP/1.1\r\nHost: x\r\nX: ")
        self._later = asyncio.get_running_loop().call_later(PAUSE, self._send)

    def connection_lost(self, exc: Exception | None) -> None:
        self._later.cancel()
        self._again = asyncio.ensure_future(connected(self._port))

    def _send(self) -> None:
        self._transport.write(b"x")
        self._later = asyncio.get_running_loop().call_later(PAUSE, self._send)


async def connected(port: int) -> None:
    loop = asyncio.get_running_loop()
    await loop.create_connection(lambda: SlowClient(port), "127.0.0.1", port)


async def be_slow(port: int) -> None:
    """Connect within PAUSE seconds, so that the bytes come at different times, and stay."""
    for number in range(SLOW):
        await connected(port)
        if number % 100 == 99:
            await asyncio.sleep(PAUSE * 100 / SLOW)
    print("connected", flush=True)
    await asyncio.Event().wait()


# Readers that take nothing


def beside_greedy_readers(store: str) -> Iterator[Row]:
    """The publisher's memory with them, and what it answers to others meanwhile.

    Each wants other headers, so that its page is kept for no other one.
    """
    token, other = (given_token(store, (Grant(Right.READ, "*"),)) for _ in range(2))
    with serving(store) as (url, pid):
        port, path = urlsplit(url).port or 0, urlsplit(url).path
        process, most, seconds, answered = psutil.Process(pid), 0, [], 0
        before = process.memory_info().rss
        command = [
            sys.executable,
            "-m",
            "benchmarks.strain",
            "greedy",
            str(port),
            str(GREEDY),
            token,
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as readers:
            assert readers.stdout
            told: list[str] = []
            waiting = threading.Thread(target=lambda: told.append(readers.stdout.readline()))
            waiting.start()
            while waiting.is_alive():
                begun = time.perf_counter()
                seen = status_of(port, f"{path}?n=4&cursor0=_first&pagesizehint=10", other)
                healthy = status_of(port, "/healthz", "")
                seconds.append(time.perf_counter() - begun)
                answered += seen == healthy == 200
                most = max(most, process.memory_info().rss)
                time.sleep(0.1)
            readers.kill()
        time.sleep(60)  # it gives memory back when nothing has waited for half a minute
        after = process.memory_info().rss
    yield (
        f"{GREEDY:,} readers that take nothing ({told[0].strip()}): publisher's memory before, "
        f"at most, and after",
        f"{before >> 20}, {most >> 20}, {after >> 20} MiB",
        "at most 500 MiB",
    )
    yield (
        "beside them: a small page of another token and /healthz, answered, median and most",
        f"{answered} of {len(seconds)}, {statistics.median(seconds):.2f}, {max(seconds):.2f} s",
        "all",
    )


def given_token(store: str, grants: Sequence[Grant] = ADMIN) -> str:
    """A new token of a store."""
    with contextlib.closing(open_store(store)) as opened:
        text, token = new_token("bench", grants, opened.now())
        opened.add_token(token)
    return text


def status_of(port: int, target: str, token: str) -> int:
    """The status of an answer on a new connection; 0 if there is none."""
    shown = f"Authorization: Bearer {token}\r\n" if token else ""
    head = f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1\r\n{shown}Connection: close\r\n\r\n"
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
            client.sendall(head.encode())
            return int((client.recv(1 << 16) or b"HTTP/1.1 0").split(b" ", 2)[1])
    except OSError:
        return 0


def be_greedy(port: int, count: int, token: str) -> None:
    """Ask on many connections, wait until each has the beginning of an answer, and say which."""
    readers = []
    for number in range(count):
        address = f"127.1.{number % ADDRESSES // 200}.{1 + number % 200}"
        reader = socket.socket()
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.bind((address, 0))
        reader.connect(("127.0.0.1", port))
        cursors = "&".join(f"cursor{each}=_first" for each in range(4))
        target = f"/flights?n=4&{cursors}&pagesizehint=100000&headers=id,type,x{number}"
        reader.sendall(
            f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            f"Authorization: Bearer {token}\r\n\r\n".encode()
        )
        readers.append(reader)
    found: collections.Counter[str] = collections.Counter()
    for each in readers:
        each.settimeout(300)
        try:
            found[each.recv(12, socket.MSG_PEEK)[9:].decode() or "closed"] += 1
        except OSError as exc:
            found[type(exc).__name__] += 1
    print(", ".join(f"{count:,} got {status}" for status, count in found.items()), flush=True)
    time.sleep(3600)


# Access checks and metrics


def with_checks(store: str) -> Iterator[Row]:
    """Turn by turn: the same pages, read without tokens and counters, and with them."""
    with serving(store) as (url, _):
        targets, _ = fanout.fetched_pages(url, 4)
    text = given_token(store)
    plain = [fanout.get(each) for each in targets] * 8
    given = [
        each.replace("\r\n\r\n", f"\r\nAuthorization: Bearer {text}\r\n\r\n") for each in plain
    ]
    rates, per_cpu = [], []
    for number in range(2 * ROUNDS):
        if number % 2:
            bare, checked = read(store, "bare", plain), read(store, "checks", given)
        else:
            checked, bare = read(store, "checks", given), read(store, "bare", plain)
        rates.append(checked.rate / bare.rate)
        per_cpu.append(checked.per_cpu / bare.per_cpu)
    yield "tokens and metrics / neither: bytes a second", between(rates), ">= 0.95"
    yield (
        "tokens and metrics / neither: bytes a second of the publisher's CPU",
        between(per_cpu),
        "",
    )


def read(store: str, what: str, wanted: list[str]) -> Load:
    command = [sys.executable, "-c", _PROGRAM, store, what]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        try:
            port = int(server.stdout.readline())
            load(server.pid, port, wanted, 1)
            return load(server.pid, port, wanted, READERS)
        finally:
            server.terminate()


def between(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


# Stopping


def stopped(work: Path) -> Iterator[Row]:
    """SIGTERM while readers read, and while the feed is pruned."""
    seconds = []
    made = [filling(each, range(10)) for each in range(4)]
    for number in range(STOPS):
        store = fill(work, f"stop-{number}", 4, itertools.islice(itertools.cycle(made), CHUNKS))
        with contextlib.closing(open_store(store)) as opened:
            before = opened.feed("flights").events
            opened.set_retention("flights", replace(opened.retention("flights"), bytes=1))
            with serving(store) as (url, pid), reading(url):
                while opened.feed("flights").events == before:
                    time.sleep(0.01)
                begun = time.perf_counter()
                os.kill(pid, signal.SIGTERM)
                psutil.Process(pid).wait(60)
                seconds.append(time.perf_counter() - begun)
            if opened.feed("flights").events <= 10:
                raise OSError("the publisher had pruned all before it was stopped")
    yield (
        "stop with 8 readers, and while pruning, median and most of 5",
        f"{statistics.median(seconds):.1f}, {max(seconds):.1f} s",
        f"<= {StopTimes().bound:.0f} s",
    )


@contextlib.contextmanager
def reading(url: str) -> Iterator[None]:
    """Eight readers that read the feed's beginning again and again, until the publisher is gone."""
    port, path = urlsplit(url).port or 0, urlsplit(url).path
    wanted = [fanout.get(f"{path}?n=4&cursor0=_first&cursor1=_first&headers=_all")] * 1_000

    def read_on() -> None:
        with contextlib.suppress(OSError):
            fanout.read_all(port, wanted)

    threads = [threading.Thread(target=read_on) for _ in range(8)]
    for each in threads:
        each.start()
    yield
    for each in threads:
        each.join()


def main() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if sys.argv[1] == "greedy":
        be_greedy(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
    else:
        asyncio.run(be_slow(int(sys.argv[2])))


if __name__ == "__main__":
    main()
