"""Parts of answers that go to the socket from where they are in memory."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import closing

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.fix_publisher import connected
from tests.patience import eventually
from tests.scratch_store import ScratchStore
from zeh_spark.service.app.answers import Answer, Taken, taken
from zeh_spark.service.network.shares import Unsent
from zeh_spark.testing import running_publisher

ANSWER = [bytes([number]) * (500_000 + number) for number in range(1, 20)]
"""More than the kernel keeps of an answer, in pieces that tell where they belong."""

ASK = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


class Served:
    """A server whose only answer is ANSWER, in parts."""

    def __init__(self, sizes: Sequence[int | None]) -> None:
        """`sizes`: bytes of each part; None for all the rest."""
        self.unsent = Unsent()
        self.ended = 0
        self._sizes = sizes

    async def answer(self, request: Request) -> Response:
        sizes = iter(self._sizes)

        def part(pieces: Iterator[Sequence[bytes]]) -> Taken:
            return taken(pieces, next(sizes) or sum(map(len, ANSWER)) + 1)

        async def take(rest: Iterator[Sequence[bytes]], client: str) -> Taken:
            found = part(rest)
            self.unsent.hold(client, found.size)
            return found

        begun = part([each] for each in ANSWER)
        return Answer(
            begun, take, {}, "text/plain", send_timeout=60, unsent=self.unsent, ended=self.end
        )

    def end(self) -> None:
        self.ended += 1


def body_of(link: socket.socket, at_a_time: int) -> bytes:
    """Take one answer, whose length its head tells, or the last chunk."""
    said = bytearray()
    while b"\r\n\r\n" not in said:
        said += link.recv(1000)
    head, _, body = said.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head)
    while len(body) < int(length[1]) if length else not body.endswith(b"\r\n0\r\n\r\n"):
        body += link.recv(at_a_time)
    if length:
        return bytes(body)
    whole, begin = b"", 0
    while size := int(body[begin : (end := body.index(b"\r\n", begin))], 16):
        whole += body[end + 2 : end + 2 + size]
        begin = end + 2 + size + 2
    assert len(body) == begin + len(b"0\r\n\r\n")
    return whole


@pytest.mark.parametrize("sizes", [[None], [1, None], [1, 2_000_000, 3_000_000, None]])
@pytest.mark.parametrize("at_a_time", [40_000, 1 << 20])
def test_every_byte_arrives_in_its_place(sizes: list[int | None], at_a_time: int) -> None:
    """Whole or in parts, whether the client is quick or slow, and again on the same connection."""
    served = Served(sizes)
    app = Starlette(routes=[Route("/", served.answer)])
    with running_publisher(ScratchStore(), app) as base, connected(base, "127.0.0.1") as link:
        for _ in range(2):
            link.sendall(ASK)
            assert b"".join(ANSWER) == body_of(link, at_a_time)
        eventually(lambda: served.unsent.total == 0)


def test_an_empty_last_part_does_not_end_an_answer_twice() -> None:
    """A part may be full just when all was taken: then nothing is left for the next one."""
    served = Served([sum(map(len, ANSWER)), None])
    app = Starlette(routes=[Route("/", served.answer)])
    with running_publisher(ScratchStore(), app) as base, connected(base, "127.0.0.1") as link:
        for _ in range(2):
            link.sendall(ASK)
            assert b"".join(ANSWER) == body_of(link, 1 << 20)


def test_a_client_that_leaves_holds_nothing() -> None:
    """In the middle of a part; the other connections go on."""
    served = Served([None])
    app = Starlette(routes=[Route("/", served.answer)])
    with running_publisher(ScratchStore(), app) as base, connected(base, "127.0.0.1") as other:
        with closing(connected(base, "127.0.0.1")) as link:
            link.sendall(ASK)
            link.recv(100)
        eventually(lambda: (served.ended, served.unsent.total) == (1, 0))
        other.sendall(ASK)
        assert b"".join(ANSWER) == body_of(other, 1 << 20)


@pytest.mark.parametrize("size", [1, 400_000])
def test_the_head_of_an_answer_comes_with_its_body(size: int) -> None:
    """Alone it would wake a client for nothing. Thousands may wait for the same small page."""

    async def answer(_: Request) -> Response:
        begun = Taken([b"x" * size], None)
        return Answer(begun, None, {}, "text/plain", send_timeout=60, unsent=Unsent())  # type: ignore[arg-type]

    app = Starlette(routes=[Route("/", answer)])
    with running_publisher(ScratchStore(), app) as base, connected(base, "127.0.0.1") as link:
        for _ in range(20):
            link.sendall(ASK)
            head, _, body = link.recv(10_000).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200") and body
            while len(body) < size:
                body += link.recv(1 << 20)
