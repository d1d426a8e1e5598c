"""A relay between tasks and their publisher that changes answers with chunks, byte for byte."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest
import requests

from tests.fix_raw_server import Answer, RawServer, Request, chunked, head, ok, refused
from tests.patience import PATIENCE
from zeh_spark.wire import direct_reads as wire

TYPE = {"content_type": wire.CONTENT_TYPE}
_PIECE = 64 << 10

Change = Callable[[wire.ChunksRequest, bytes], Answer]


def whole(asked: wire.ChunksRequest, body: bytes) -> Answer:
    return ok(body, **TYPE)


@dataclass
class Relay:
    """Passes requests for a feed on to the publisher at `base`.

    `change(asked, body)` is the answer to a request for chunks, given what the publisher sent;
    `asked` are all requests for chunks. With `older` the publisher is one that does not know direct
    reads. Headers of requests and answers are not passed on.
    """

    server: RawServer
    base: str = ""
    feed: str = "orders"
    change: Change = whole
    older: bool = False
    asked: list[wire.ChunksRequest] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.server.respond = self._respond

    @property
    def url(self) -> str:
        return self.server.url

    def script(self, *changes: Callable[[bytes], Answer]) -> None:
        """One for each of the next answers with chunks; then they pass as they are."""
        left = iter(changes)

        def change(asked: wire.ChunksRequest, body: bytes) -> Answer:
            chosen = next(left, None)
            return chosen(body) if chosen else whole(asked, body)

        self.change = change

    def _respond(self, request: Request) -> Answer:
        target = request.target.removeprefix("/feed/v1")
        if self.older and request.path.endswith(("/plan", "/chunks")):
            return refused(404, "no such thing")
        found = requests.request(
            request.method, f"{self.base}/{self.feed}{target}", data=request.body, timeout=PATIENCE
        )
        if not request.path.endswith("/chunks") or found.status_code != 200:
            text, kind = found.content, found.headers["Content-Type"]
            if self.older and request.method == "GET" and found.status_code == 400:  # handshake
                told = found.json()
                del told["feed"]["reads"]
                text = json.dumps(told).encode()
            return ok(text, found.status_code, content_type=kind)
        asked = wire.decode_chunks_request(request.body)
        self.asked.append(asked)
        try:
            return self.change(asked, found.content)
        except Exception as exc:  # noqa: BLE001 - a mistake of the test, which its task shows
            return refused(400, f"the test's change of an answer failed: {exc!r}")


@pytest.fixture
def relay(raw_server: RawServer) -> Relay:
    """A relay; the test says before which publisher: `relay.base = …`."""
    return Relay(raw_server)


# What an answer with chunks consists of


@dataclass(frozen=True)
class Part:
    """A group, or the line that ends a range, and where its bytes are in the answer.

    `line`: the offset after its line; `headers`, `tables`: after the headers and places, and after
    the table of frames; `frames`: where frames begin, and the last one ends.
    """

    begin: int
    line: int
    headers: int
    tables: int
    frames: tuple[int, ...]
    end: int

    @property
    def is_group(self) -> bool:
        return bool(self.frames)


def parts_of(body: bytes) -> list[Part]:
    """The parts of an answer, read by its description and not by our own parser."""
    found, at = [], body.index(b"\n") + 1
    while at < len(body):
        line = body.index(b"\n", at) + 1
        head = json.loads(body[at:line])
        if "to" in head:
            found.append(Part(at, line, line, line, (), line))
        else:
            headers = line + head["chunks"] * wire.HEADERS.itemsize
            headers += head["chunks"] * wire.PLACES.itemsize
            table = np.frombuffer(body, wire.FRAMES, head["frames"], headers)
            ends = np.cumsum([headers + table.nbytes, *table["bytes"].tolist()])
            found.append(Part(at, line, headers, int(ends[0]), tuple(ends.tolist()), int(ends[-1])))
        at = found[-1].end
    return found


def place(body: bytes, name: str) -> int:
    """The offset in an answer of at least two ranges that this name describes."""
    parts = parts_of(body)
    groups = [each for each in parts if each.is_group]
    ends = [each for each in parts if not each.is_group]
    late = next(each for each in groups[1:] if len(each.frames) > 2)  # tags decide how long it is
    begin, after = list(pairwise(late.frames))[1]
    return {
        "before any byte": 0,
        "in the first line": body.index(b"\n") // 2,
        "before the first group": groups[0].begin,
        "in the line of a group": (late.begin + late.line) // 2,
        "in a header record": late.line + wire.HEADERS.itemsize * 3 // 2,
        "in the length of a frame": late.headers + wire.FRAMES.itemsize + 2,
        "in the hash of a frame": late.headers + wire.FRAMES.itemsize + 7,
        "in a frame": (begin + after) // 2,
        "between two frames": after,
        "between two groups": late.begin,
        "before a range ends": ends[0].begin,
        "in the line that ends a range": (ends[0].begin + ends[0].end) // 2,
        "between two ranges": ends[0].end,
        "before the last line": ends[-1].begin,
        "before the last byte": len(body) - 1,
    }[name]


PLACES = (
    "before any byte", "in the first line", "before the first group", "in the line of a group",
    "in a header record", "in the length of a frame", "in the hash of a frame", "in a frame",
    "between two frames", "between two groups", "before a range ends",
    "in the line that ends a range", "between two ranges", "before the last line",
    "before the last byte",
)  # fmt: skip


# How a part of an answer is sent


def closed(body: bytes, size: int) -> Answer:
    """So many bytes of it, then the connection is closed before Content-Length is reached."""
    return Answer((head(**TYPE, content_length=len(body)) + body[:size],), "close")


def reset(body: bytes, size: int) -> Answer:
    return Answer(closed(body, size).pieces, "reset")


def without_last_chunk(body: bytes, size: int) -> Answer:
    """In whole chunks of HTTP, of which the last one never comes."""
    pieces = [body[at : min(at + _PIECE, size)] for at in range(0, size, _PIECE)]
    return Answer(chunked(*pieces, **TYPE).pieces[:-1], "close")


def within_chunk(body: bytes, size: int) -> Answer:
    """In one chunk of HTTP, which is cut."""
    begin = head(**TYPE, transfer_encoding="chunked")
    return Answer((begin + b"%x\r\n" % len(body) + body[:size],), "close")


def ended_by_length(body: bytes, size: int) -> Answer:
    """HTTP says that this is all."""
    return ok(body[:size], **TYPE)


def ended_by_chunk(body: bytes, size: int) -> Answer:
    """HTTP says that this is all."""
    return chunked(*[body[:size]] if size else [], **TYPE)


CUT = (closed, reset, without_last_chunk, within_chunk)
ENDED = (ended_by_length, ended_by_chunk)
