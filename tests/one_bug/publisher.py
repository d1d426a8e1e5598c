"""A small publisher that is correct: four partitions, read as one, two or four, in pages.

Its log is a list of events; a cursor is a place in the log, the same one for each number of
partitions. So another number of partitions is only another choice from the log. Cursors have
characters that a client has to encode.
"""

from __future__ import annotations

import gzip
import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tests.fix_raw_server import Answer, Request, ok, refused

Line = dict[str, Any]
Bug = TypeVar("Bug", bound="type[Publisher]")


class RefusalError(Exception):
    """The publisher refuses a request."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True)
class Asked:
    """What a request asks for. `hint` is None, and `headers` empty, if they were left out."""

    n: int
    cursors: dict[int, str]
    hint: int | None
    headers: frozenset[str] = frozenset()
    wait: int = 0
    packed: bool = False
    accept: str = ""
    connection: int = 0

    @property
    def limit(self) -> int:
        """Most events of each partition in the page."""
        return 100 if self.hint is None else self.hint


@dataclass(frozen=True)
class Event:
    """An event of the log; `home` is its partition, if they are read as four."""

    home: int
    data: Any
    headers: dict[str, str] = field(default_factory=dict)


class Publisher:
    """Answers as the specification says; subclasses change a method."""

    native = 4
    accepts = (1, 2, 4)
    every = 10
    """Events from one checkpoint to the next."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.answers = 0
        self.log = [self.made(at) for at in range(800)]

    def made(self, at: int) -> Event:
        """The event at a place of the log: partition 0 has twice as many as the others."""
        headers = {"type": "order", "trace": f"t{at}"} if at % 3 else {}
        return Event(at % 5 % 4, {"id": at, "text": "æ \\ \u2028 😀"}, headers)

    def respond(self, request: Request) -> Answer:
        with self.lock:
            self.answers += 1
        try:
            asked = self.asked(request)
            return self.framed(asked, self.body(asked, self.page(asked)))
        except RefusalError as exc:
            return refused(exc.status, str(exc))

    def asked(self, request: Request) -> Asked:
        query = request.query
        if "n" not in query:
            raise RefusalError(400, "n is missing")
        n = int(query["n"])
        found = {
            int(name.removeprefix("cursor")): cursor
            for name, cursor in query.items()
            if re.fullmatch("cursor[0-9]+", name)
        }
        asked = Asked(
            n,
            dict(sorted(found.items())),
            int(query["pagesizehint"]) if "pagesizehint" in query else None,
            frozenset(filter(None, query.get("headers", "").split(","))),
            int(query.get("wait", 0)),
            "gzip" in request.headers.get("accept-encoding", ""),
            request.headers.get("accept", ""),
            request.connection,
        )
        self.check(asked)
        return asked

    def check(self, asked: Asked) -> None:
        if asked.n not in self.accepts:
            raise RefusalError(400, f"n is {self.native}")
        if not asked.cursors or not all(each < asked.n for each in asked.cursors):
            raise RefusalError(400, "no cursor of a partition")

    def page(self, asked: Asked) -> list[Line]:
        found: list[Line] = []
        for partition, cursor in asked.cursors.items():
            found += self.part(asked, partition, self.start(asked, cursor))
        return found

    def start(self, asked: Asked, cursor: str) -> int:
        """The place in the log that a cursor means."""
        if cursor in ("_first", "_last"):
            return 0 if cursor == "_first" else len(self.log)
        if not (found := re.fullmatch(r"at ([0-9]+)\+/=&%", cursor)):
            raise RefusalError(400, "this is no cursor of this feed")
        return int(found[1])

    def cursor(self, at: int) -> str:
        return f"at {at}+/=&%"

    def chosen(self, asked: Asked, partition: int, start: int) -> list[int]:
        """The places of the events of a page."""
        mine = (at for at in range(start, len(self.log)) if self.has(asked, partition, at))
        return [at for at, _ in zip(mine, range(asked.limit), strict=False)]

    def has(self, asked: Asked, partition: int, at: int) -> bool:
        return self.log[at].home % asked.n == partition

    def part(self, asked: Asked, partition: int, start: int) -> list[Line]:
        places = self.chosen(asked, partition, start)
        if not places:
            return [self.idle(partition, start)]
        return list(self.lines(asked, partition, places))

    def lines(self, asked: Asked, partition: int, places: list[int]) -> Iterator[Line]:
        for number, at in enumerate(places, 1):
            yield self.event(asked, partition, at)
            if number % self.every == 0 or number == len(places):
                yield self.checkpoint(asked, partition, places, number)

    def event(self, asked: Asked, partition: int, at: int) -> Line:
        line: Line = {"partition": partition}
        event = self.log[at]
        if headers := self.headers(asked, event):
            line["headers"] = headers
        return {**line, "data": event.data}

    def headers(self, asked: Asked, event: Event) -> dict[str, str]:
        wanted = asked.headers
        return {k: v for k, v in event.headers.items() if "_all" in wanted or k in wanted}

    def checkpoint(self, asked: Asked, partition: int, places: list[int], number: int) -> Line:
        """The checkpoint after that many events of a page."""
        return {"partition": partition, "cursor": self.cursor(places[number - 1] + 1)}

    def idle(self, partition: int, start: int) -> Line:
        return {"partition": partition, "cursor": self.cursor(start)}

    def body(self, asked: Asked, lines: list[Line]) -> bytes:
        return b"".join(self.line(each) + b"\n" for each in lines)

    def line(self, line: Line) -> bytes:
        return json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode()

    def framed(self, asked: Asked, body: bytes) -> Answer:
        if asked.packed:
            return ok(self.pack(asked, body), content_encoding="gzip")
        return ok(body)

    def pack(self, asked: Asked, body: bytes) -> bytes:
        return gzip.compress(body)


def table() -> tuple[dict[str, tuple[type[Publisher], str]], Callable[[str], Callable[[Bug], Bug]]]:
    """A table of publishers by name, and what adds a class to it, with the rule that tells of it.

    >>> BUGS, told_by = table()
    """
    entries: dict[str, tuple[type[Publisher], str]] = {}

    def told_by(rule: str) -> Callable[[Bug], Bug]:
        def add(kind: Bug) -> Bug:
            assert kind.__doc__, f"{kind.__name__} does not say what it does"
            entries[kind.__name__] = kind, rule
            return kind

        return add

    return entries, told_by
