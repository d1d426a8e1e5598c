"""Many readers: of the same pages, beside nginx, which sends them from files; and such as wait.

The readers are raw sockets, so that they cost little beside the server on the same cores. nginx is
left out where it is not installed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from tests.ports import free_port

READERS = 16
WAITING = 1000
WAIT = 60
IDLE_SECONDS = 20

_LAST_CURSOR = re.compile(rb'"cursor":"([^"]+)"')


def get(target: str, coding: str = "") -> str:
    """A request, as it is sent."""
    accepted = f"Accept-Encoding: {coding}\r\n" if coding else ""
    return f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1\r\n{accepted}\r\n"


def post(target: str, body: str) -> str:
    """The same with a body."""
    head = f"POST {target} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Content-Type: application/json\r\n\r\n{body}"


def received(reader: socket.socket, into: memoryview) -> int:
    """Take one answer; give its size with its head."""
    size = reader.recv_into(into)
    begun = bytes(into[:4096])
    if not begun.startswith(b"HTTP/1.1 200"):
        raise OSError(begun[:200])
    head, _, _ = begun.partition(b"\r\n\r\n")
    found = re.search(rb"(?i)content-length: (\d+)", head)
    whole = len(head) + 4 + int(found[1]) if found else None
    tail = bytes(into[max(0, size - 7) : size])
    while size < whole if whole is not None else tail != b"\r\n0\r\n\r\n":
        if not (count := reader.recv_into(into)):
            raise OSError("the answer broke off")
        size += count
        tail = (tail + bytes(into[max(0, count - 7) : count]))[-7:]
    return size


def read_all(port: int, requests: list[str]) -> int:
    """Send these one after the other on one connection; give the bytes received."""
    buffer = memoryview(bytearray(1 << 20))
    with socket.create_connection(("127.0.0.1", port)) as reader:
        total = 0
        for each in requests:
            reader.sendall(each.encode())
            total += received(reader, buffer)
    return total


def fetched_pages(url: str, partitions: int) -> tuple[list[str], list[bytes]]:
    """The targets of all pages of a feed, as one reader asks for them, and their bodies."""
    import requests

    path, cursors = urlsplit(url).path, dict.fromkeys(range(partitions), "_first")
    targets, bodies = [], []
    while True:
        query = "&".join(f"cursor{each}={cursor}" for each, cursor in cursors.items())
        target = f"{path}?n={partitions}&headers=_all&{query}"
        body = requests.get(f"{url.removesuffix(path)}{target}", timeout=60).content
        lines = [json.loads(line) for line in body.split(b"\n") if line.find(b'"cursor"') > 0]
        if body.count(b"\n") == partitions:
            return targets, bodies
        targets.append(target)
        bodies.append(body)
        cursors |= {line["partition"]: line["cursor"] for line in lines}


@dataclass
class Load:
    """What readers took, and what the server's processes spent on it."""

    bytes: int
    seconds: float
    cpu: float

    @property
    def rate(self) -> float:
        return self.bytes / self.seconds

    @property
    def per_cpu(self) -> float:
        return self.bytes / max(self.cpu, 0.001)


def cpu_of(pid: int) -> float:
    """CPU seconds of a process and its children."""
    parent = psutil.Process(pid)
    return sum(sum(each.cpu_times()[:2]) for each in [parent, *parent.children(recursive=True)])


def load(pid: int, port: int, requests: list[str], readers: int) -> Load:
    """Send all requests by each of some readers at once, in a process of their own."""
    before = cpu_of(pid)
    command = [sys.executable, "-m", "benchmarks.fanout", str(port), str(readers)]
    done = subprocess.run(
        command, input=json.dumps(requests), text=True, check=True, capture_output=True
    )
    size, seconds = done.stdout.split()
    return Load(int(size), float(seconds), cpu_of(pid) - before)


def read_at_once(port: int, requests: list[str], readers: int) -> tuple[int, float]:
    sizes: list[int] = []
    threads = [
        threading.Thread(target=lambda: sizes.append(read_all(port, requests)))
        for _ in range(readers)
    ]
    began = time.perf_counter()
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    if len(sizes) < readers:
        raise OSError(f"{readers - len(sizes)} readers failed")
    return sum(sizes), time.perf_counter() - began


@contextlib.contextmanager
def nginx(folder: Path, bodies: list[bytes]) -> Iterator[tuple[int, int, list[str]]]:
    """nginx with bodies as files; gives its process, its port, and the requests for them."""
    port = free_port()
    folder.mkdir(exist_ok=True)
    for number, body in enumerate(bodies):
        (folder / f"{number}.page").write_bytes(body)
    folder.chmod(0o755)
    settings = folder / "nginx.conf"
    settings.write_text(
        f"daemon off; worker_processes 2; pid {folder}/pid; error_log stderr crit;"
        "events { worker_connections 512; }"
        f"http {{ access_log off; sendfile on; tcp_nopush on; server {{ listen 127.0.0.1:{port};"
        f" root {folder}; }} }}" + (" user root;" if os.geteuid() == 0 else "")
    )
    with subprocess.Popen([shutil.which("nginx") or "nginx", "-c", str(settings)]) as server:
        try:
            while server.poll() is None:
                with contextlib.suppress(OSError):
                    socket.create_connection(("127.0.0.1", port)).close()
                    break
                time.sleep(0.05)
            yield server.pid, port, [get(f"/{number}.page") for number in range(len(bodies))]
        finally:
            server.terminate()


class Waiter(asyncio.Protocol):
    """Long polls on one connection: asks again after each answer, as readers do."""

    def __init__(self, path: str, cursor: str, woken: list[float]) -> None:
        self._path, self._cursor, self._woken = path, cursor, woken
        self._got = b""
        self.ready = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._ask()

    def _ask(self) -> None:
        target = f"{self._path}?n=4&cursor0={self._cursor}&headers=_all&wait={WAIT}"
        self._transport.write(
            f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            f"Accept-Encoding: identity\r\n\r\n".encode()
        )

    def data_received(self, data: bytes) -> None:
        self._got += data
        head, _, body = self._got.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: (\d+)", head)
        if not (len(body) >= int(length[1]) if length else body.endswith(b"0\r\n\r\n")):
            return
        if not head.startswith(b"HTTP/1.1 200"):
            raise OSError(head)
        if b'"data"' in body:
            self._woken.append(time.time())
        self._cursor = _LAST_CURSOR.findall(body)[-1].decode()
        self._got = b""
        self._ask()


@dataclass
class Waited:
    """CPU of the server while readers wait, and while a commit wakes them; when they had it.

    `memory` is what the readers add to the server's, `resident` all that it has then.
    """

    idle: float
    memory: int
    resident: int
    wake_cpu: list[float]
    spread: list[float]
    last: list[float]


def waiting(url: str, pid: int, commit: list[str], readers: int = WAITING) -> Waited:
    """Let readers wait at the end of partition 0, then commit an event, five times.

    Args:
        url: The feed.
        pid: The publisher's process.
        commit: The command that commits an event to partition 0 for each line that it reads, and
            answers with the time.
        readers: How many.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return asyncio.run(_waiting(url, pid, commit, readers))


async def _waiting(url: str, pid: int, commit: list[str], readers: int) -> Waited:
    import requests

    loop, found = asyncio.get_running_loop(), urlsplit(url)
    answer = requests.get(f"{url}?n=4&cursor0=_last&pagesizehint=0", timeout=30).content
    cursor = _LAST_CURSOR.findall(answer)[-1].decode()
    woken: list[float] = []
    before = psutil.Process(pid).memory_info().rss
    connections = []
    for number in range(readers):
        connection, _ = await loop.create_connection(
            lambda: Waiter(found.path, cursor, woken), found.hostname, found.port
        )
        connections.append(connection)
        if number % 50 == 49:  # WAIT ends for them at different times, as in life
            await asyncio.sleep(0.25)
    await asyncio.sleep(3)
    memory = psutil.Process(pid).memory_info().rss - before
    begun, spent = time.perf_counter(), cpu_of(pid)
    await asyncio.sleep(IDLE_SECONDS)
    idle = (cpu_of(pid) - spent) / (time.perf_counter() - begun)
    result = Waited(idle, memory, psutil.Process(pid).memory_info().rss, [], [], [])
    with subprocess.Popen(
        commit, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdin and writer.stdout
        for _ in range(6):
            woken.clear()
            spent = cpu_of(pid)
            print("go", file=writer.stdin, flush=True)
            committed = float(await asyncio.to_thread(writer.stdout.readline))
            while len(woken) < readers:
                await asyncio.sleep(0.1)
            await asyncio.sleep(2)
            result.wake_cpu.append(cpu_of(pid) - spent)
            result.spread.append(woken[-1] - woken[0])
            result.last.append(woken[-1] - committed)
        writer.stdin.close()
    for each in connections:
        each.abort()
    await asyncio.sleep(0.1)  # in which the loop closes them
    return result


COMMIT = """
import sys, time
from zeh_spark.publisher import open_store
from zeh_spark.testing import publish
store = open_store(sys.argv[1])
for line in sys.stdin:
    publish(store, "flights", [{"i": 1}], partition=0)
    print(time.time(), flush=True)
"""


def main() -> None:
    port, readers = int(sys.argv[1]), int(sys.argv[2])
    print(*read_at_once(port, json.load(sys.stdin), readers))


if __name__ == "__main__":
    main()
