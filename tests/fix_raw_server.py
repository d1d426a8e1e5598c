"""A server that sends exactly the bytes a test scripts: every way in which an answer can end, and
some that are wrong.

    raw_server.script(short(body, missing=10), ok(body))        one answer for each request, in this
    order raw_server.respond = lambda request: ok(feed[request.query["cursor0"]])       or by what
    was asked

Connections stay open between answers, as in HTTP/1.1, unless an answer ends otherwise.
"""

from __future__ import annotations

import contextlib
import gzip
import socket
import ssl
import struct
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal
from urllib.parse import parse_qsl, urlsplit

import pytest

NDJSON = "application/x-ndjson"
_PATIENCE = 30
"""Seconds until a test that never sets its condition fails."""


class ForgottenEventError(Exception):
    """A test never set an event that an answer of its script waits for."""


@dataclass(frozen=True)
class Request:
    """What a client sent: header names in lower case, `connection` counted from 0."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    connection: int
    raw: bytes
    """All of it, as it was sent."""

    @property
    def head(self) -> int:
        """Bytes before its body."""
        return len(self.raw) - len(self.body)

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    @property
    def query(self) -> dict[str, str]:
        """Decoded parameters; fails if one is there twice."""
        pairs = parse_qsl(urlsplit(self.target).query, keep_blank_values=True)
        assert len(dict(pairs)) == len(pairs), f"a parameter is there twice: {self.target}"
        return dict(pairs)


@dataclass(frozen=True)
class Answer:
    """Pieces in order: bytes are sent, events waited for; then it is kept, closed or reset."""

    pieces: tuple[bytes | threading.Event, ...]
    end: Literal["keep", "close", "reset"] = "keep"

    def then(self, *pieces: bytes | threading.Event) -> Answer:
        return Answer((*self.pieces, *pieces), self.end)


def head(status: int = 200, **headers: str | int) -> bytes:
    """Status line and headers; `content_type` becomes Content-Type."""
    lines = [f"HTTP/1.1 {status} scripted"]
    lines += [f"{name.replace('_', '-').title()}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode()


def ok(body: bytes = b"", status: int = 200, **headers: str | int) -> Answer:
    """A whole answer with Content-Length."""
    headers = {"content_type": NDJSON, "content_length": len(body), **headers}
    return Answer((head(status, **headers) + body,))


def refused(status: int, text: str = "", **headers: str | int) -> Answer:
    """An error with a text."""
    return ok(text.encode(), status, **{"content_type": "text/plain", **headers})


NO_IDENTITY = refused(400, "handshake error: partition count missing")
"""What a publisher that tells neither partition count nor identity says."""


def redirect(location: str, status: int = 307) -> Answer:
    return ok(b"", status, location=location)


def short(body: bytes, missing: int = 1) -> Answer:
    """Content-Length promises `missing` bytes more than come before the connection is closed."""
    return Answer((head(content_type=NDJSON, content_length=len(body) + missing) + body,), "close")


def until_close(body: bytes) -> Answer:
    """Neither length nor chunks: only the end of the connection ends it."""
    return Answer((head(content_type=NDJSON, connection="close") + body,), "close")


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def chunked(*chunks: bytes | threading.Event, **headers: str | int) -> Answer:
    """A whole answer in chunks; between them it may wait for events."""
    begin = head(**{"content_type": NDJSON, "transfer_encoding": "chunked", **headers})
    pieces = [chunk(each) if isinstance(each, bytes) else each for each in chunks]
    return Answer((begin, *pieces, b"0\r\n\r\n"))


def chunked_without_end(*chunks: bytes | threading.Event) -> Answer:
    """Whole chunks, but the last one, which says that this was all, never comes."""
    return Answer(chunked(*chunks).pieces[:-1], "close")


def chunked_cut(data: bytes, cut: int) -> Answer:
    """One chunk, of which only the first `cut` bytes come."""
    begin = head(content_type=NDJSON, transfer_encoding="chunked")
    return Answer((begin + b"%x\r\n" % len(data) + data[:cut],), "close")


def gzipped(body: bytes, cut: int = 0) -> Answer:
    """Packed, framed as it should be; `cut` bytes of the packed end are left out before framing."""
    packed = gzip.compress(body)
    return ok(packed[: len(packed) - cut], content_encoding="gzip")


def reset(body: bytes = b"", missing: int = 1) -> Answer:
    """The connection is reset, in the middle of an answer or (without a body) before it."""
    begin = head(content_type=NDJSON, content_length=len(body) + missing) if body else b""
    return Answer((begin + body,), "reset")


class Listener(ABC):
    """Takes connections on 127.0.0.1, at a port of its own, and serves each in a thread."""

    def __init__(self) -> None:
        self.port = 0
        self.connections = 0
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self.start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Begin, or begin again at the same port."""
        self._listener = socket.create_server(("127.0.0.1", self.port), backlog=256)
        self.port = int(self._listener.getsockname()[1])
        self._accepting = self._spawn(self._accept, self._listener)

    def stop(self) -> None:
        """Refuse connections, and break those that are open."""
        # shutdown wakes the threads in accept() and recv(), which close() does not
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._accepting.join()  # so each connection that was taken is among the open ones
        with self._lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.stop()
        for thread in self._threads:
            thread.join(_PATIENCE)

    @abstractmethod
    def serve(self, client: socket.socket, number: int) -> None:
        """Do what it is there for; `number` counts connections from 0."""

    def _spawn(self, run: Callable[..., None], *args: object) -> threading.Thread:
        thread = threading.Thread(target=run, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            with self._lock:
                self._open.add(client)
            self._spawn(self._serve, client, self.connections)
            self.connections += 1

    def _serve(self, client: socket.socket, number: int) -> None:
        # What a client or the test's end breaks off is no failure of the server.
        with contextlib.suppress(OSError), self._kept(client):
            self.serve(client, number)

    @contextlib.contextmanager
    def _kept(self, connection: socket.socket) -> Iterator[None]:
        """Have `stop` break a connection; close it at the end."""
        with self._lock:
            self._open.add(connection)
        try:
            yield
        finally:
            with self._lock:
                self._open.discard(connection)
            connection.close()


class RawServer(Listener):
    """Answers requests, and keeps each, in order of arrival."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[Request] = []
        self.discovery: Answer | None = None
        """What a request without the parameter `n` gets. If it is set, such requests are neither
        scripted nor among `requests`."""
        self.discovered = 0
        self.respond: Callable[[Request], Answer] = self._next_scripted
        self._scripted: list[Answer] = []
        self._tls = tls
        self._forgotten: list[str] = []
        super().__init__()

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://localhost:{self.port}/feed/v1"

    def script(self, *answers: Answer) -> None:
        """Answer the next requests with these; the last one is repeated."""
        self._scripted = list(answers)

    def close(self) -> None:
        super().close()
        assert not self._forgotten, self._forgotten

    def serve(self, client: socket.socket, number: int) -> None:
        if self._tls:
            client = self._tls.wrap_socket(client, server_side=True)
        with self._kept(client), client.makefile("rb") as reader:
            try:
                while request := _read_request(reader, number):
                    if not _send(client, self._answer(request)):
                        break
            except ForgottenEventError as exc:
                self._forgotten.append(str(exc))

    def _answer(self, request: Request) -> Answer:
        if self.discovery and request.method == "GET" and "n" not in request.query:
            with self._lock:
                self.discovered += 1
            return self.discovery
        with self._lock:
            self.requests.append(request)
        return self.respond(request)

    def _next_scripted(self, request: Request) -> Answer:
        with self._lock:
            if not self._scripted:
                return refused(500, "the test scripted no answer")
            return self._scripted[0] if len(self._scripted) == 1 else self._scripted.pop(0)


def _read_request(reader, number: int) -> Request | None:
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        line = reader.readline()
        if not line:
            return None
        head += line
    first, *fields = head.decode("latin-1").split("\r\n")[:-2]
    method, target, _ = first.split(" ")
    headers = {}
    for field in fields:
        name, _, value = field.partition(":")
        headers[name.lower()] = value.strip()
    length = int(headers.get("content-length", 0))
    body = reader.read(length)
    if len(body) < length:  # the client gave up
        return None
    return Request(method, target, headers, body, number, head + body)


def _send(connection: socket.socket, answer: Answer) -> bool:
    """Returns whether the connection stays open."""
    for piece in answer.pieces:
        if isinstance(piece, bytes):
            connection.sendall(piece)
        elif not piece.wait(_PATIENCE):
            raise ForgottenEventError("the test never set the event that its answer waits for")
    if answer.end == "reset":
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return answer.end == "keep"


@pytest.fixture
def raw_server() -> Iterator[RawServer]:
    with contextlib.closing(RawServer()) as server:
        yield server


@pytest.fixture
def start_raw_server() -> Iterator[Callable[..., RawServer]]:
    """Start as many as a test needs; with TLS: `start_raw_server(authority.server_context())`."""
    with contextlib.ExitStack() as stack:
        yield lambda tls=None: stack.enter_context(contextlib.closing(RawServer(tls)))
