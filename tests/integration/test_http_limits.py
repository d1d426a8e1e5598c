"""What a stranger may send costs bounded memory and time, and fills no log."""

from __future__ import annotations

import http.client
import socket
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.fix_publisher import Publisher
from tests.patience import eventually
from zeh_spark.service.network import http_protocol
from zeh_spark.service.network.http_protocol import HEADER_BYTES, URL_BYTES

CHUNKED = b"POST /orders/plan HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
GET = b"GET /orders?n=2&cursor0=_first HTTP/1.1\r\nHost: 127.0.0.1\r\n"


@pytest.fixture
def connection(quiet_publisher: Publisher) -> Iterator[socket.socket]:
    """A raw connection to a publisher."""
    port = int(quiet_publisher.base.rpartition(":")[2])
    with closing(socket.create_connection(("127.0.0.1", port), timeout=30)) as found:
        yield found


def answer(connection: socket.socket) -> bytes:
    """All that the publisher says until it closes."""
    said = b""
    while some := connection.recv(1 << 16):
        said += some
    return said


def status(said: bytes) -> int:
    return int(said.split(b" ", 2)[1])


def is_dropped(connection: socket.socket) -> bool:
    """Whether the publisher has closed it: then what is sent is refused."""
    try:
        connection.send(b"\r\n")
    except OSError:
        return True
    return False


def send_until_closed(connection: socket.socket, piece: bytes, most: int) -> int:
    """How many bytes the publisher took before it closed."""
    sent = 0
    try:
        while sent < most:
            sent += connection.send(piece)
    except OSError:
        pass
    return sent


@pytest.mark.parametrize(
    "begin, piece",
    [
        (b"GET /orders?x=", b"a" * 65_536),
        (GET + b"X: ", b"a" * 65_536),
        (GET, b"X: y\r\n" * 10_000),
        (GET, b"X" * 65_536),
        (GET + b"\r\n" + GET + b"X: ", b"a" * 65_536),
        (GET + b"\r\nGET /", b"a" * 65_536),
        (CHUNKED + b"X: ", b"a" * 65_536),
        (b"", b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n" * 3000),
    ],
    ids=["URL", "one header", "many headers", "a header's name", "a second head", "a second URL",
         "a trailer", "requests whose answers are not read"],
)  # fmt: skip
def test_what_has_no_end_is_cut(connection, begin, piece):
    """A head that grows for ever, or what follows a request, takes no memory of the publisher."""
    connection.sendall(begin)
    sent = send_until_closed(connection, piece, 64 << 20)

    assert sent < 16 << 20  # what the kernel's buffers took, too


def test_a_client_that_takes_nothing_is_dropped(quiet_publisher, monkeypatch):
    monkeypatch.setattr(http_protocol, "STALLED_SECONDS", 0.2)
    port = int(quiet_publisher.base.rpartition(":")[2])
    with socket.socket() as greedy:
        greedy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        greedy.settimeout(30)
        greedy.connect(("127.0.0.1", port))
        for _ in range(30):
            try:
                greedy.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 2)
            except OSError:
                break
        eventually(lambda: is_dropped(greedy))


@pytest.mark.parametrize(
    "head, expected",
    [
        (b"GET /orders?n=2&cursor0=_first&x=%b HTTP/1.1\r\n\r\n" % (b"a" * URL_BYTES), 414),
        (GET + b"X: %b\r\n\r\n" % (b"a" * HEADER_BYTES), 431),
        (GET + b"X: y\r\n" * (HEADER_BYTES // 2) + b"\r\n", 431),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"GET\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nhost: evil.example\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.0\r\nHost: localhost\r\nHost: localhost\r\n\r\n", 400),
    ],
    ids=["URL", "header", "headers", "TLS", "no path", "no Host", "two Hosts", "two in HTTP/1.0"],
)
def test_a_head_that_is_too_large_or_wrong_is_refused_by_name(connection, head, expected, caplog):
    """My client learns why, and the log of the publisher stays empty."""
    connection.sendall(head)
    said = answer(connection)

    assert status(said) == expected
    assert b"application/problem+json" in said and b"urn:zeroeventhub:problem:" in said
    assert caplog.records == []


def test_http_1_0_needs_no_host(connection):
    """The check of a simple load balancer is answered."""
    connection.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")

    assert status(answer(connection)) == 200


@pytest.mark.parametrize(("limit", "refused"), [("URL", 414), ("headers", 431)])
@pytest.mark.parametrize("room", [0, 1])
def test_the_limits_are_exact(connection, limit, refused, room):
    """The largest head that is allowed is answered, and one byte more is not."""
    url, more = b"/orders?n=2&cursor0=_first&x=", b""
    if limit == "URL":
        url += b"a" * (URL_BYTES - len(url) + room)
    else:
        fixed = b"HostlocalhostConnectioncloseX"
        more = b"X: %b\r\n" % (b"a" * (HEADER_BYTES - len(fixed) + room))
    head = b"GET %b HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n%b\r\n"
    connection.sendall(head % (url, more))

    assert status(answer(connection)) == (refused if room else 200)


def test_a_silent_connection_is_closed(connection, monkeypatch):
    monkeypatch.setattr(http_protocol, "HEAD_SECONDS", 0.1)
    port = connection.getpeername()[1]
    with closing(socket.create_connection(("127.0.0.1", port), timeout=30)) as silent:
        assert answer(silent) == b""


def test_a_head_that_drips_is_refused(connection, monkeypatch):
    """A client that sends a byte now and then holds no connection."""
    monkeypatch.setattr(http_protocol, "HEAD_SECONDS", 0.3)
    port = connection.getpeername()[1]
    with closing(socket.create_connection(("127.0.0.1", port), timeout=30)) as slow:
        slow.settimeout(0.05)
        said, begin = b"", time.monotonic()
        while not said and time.monotonic() < begin + 30:
            slow.send(b"G" if time.monotonic() == begin else b"E")
            try:
                said = slow.recv(1 << 16)
            except TimeoutError:
                continue
    assert status(said) in (400, 408)


def test_the_second_head_is_bounded_too(connection, monkeypatch):
    """Also after a request whose body was not read."""
    put = b"PUT /orders/producers/p/batches/0/uploads/x HTTP/1.1\r\nHost: x\r\n"
    connection.sendall(put + b"Content-Length: 5\r\n\r\nhello")
    said = connection.recv(1 << 16)
    while not said.endswith(b"}"):
        more = connection.recv(1 << 16)
        assert more
        said += more
    assert status(said) == 400
    monkeypatch.setattr(http_protocol, "HEAD_SECONDS", 0.1)
    connection.sendall(GET)

    assert status(answer(connection)) == 408


def test_a_connection_is_kept_for_the_next_request(connection):
    """Limits end connections of strangers, not mine."""
    client = http.client.HTTPConnection("127.0.0.1", connection.getpeername()[1], timeout=30)
    with closing(client):
        ports = set()
        for _ in range(3):
            client.request("GET", "/orders?n=2&cursor0=_first")
            answered = client.getresponse()
            assert (answered.status, b'{"partition":0,"cursor":' in answered.read()) == (200, True)
            ports.add(client.sock.getsockname())
    assert len(ports) == 1


def test_pipelined_requests_are_answered_in_order(connection):
    connection.sendall((GET + b"\r\n") * 3 + GET + b"Connection: close\r\n\r\n")

    assert answer(connection).count(b"HTTP/1.1 200") == 4


def test_an_upgrade_is_left_alone(connection, caplog):
    connection.sendall(GET + b"Connection: upgrade, close\r\nUpgrade: websocket\r\n\r\n")

    assert b"HTTP/1.1 200" in connection.recv(1 << 16)
    assert caplog.records == []
