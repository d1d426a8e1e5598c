"""A read request (spec, "Parameters"): it becomes an `Ask`, or the fitting problem.

Parameters that the spec does not know are ignored. Those that it knows must be given once and be
valid. The module has no side effects.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from urllib.parse import parse_qsl

from zeh_spark.service.app.publish_requests import number
from zeh_spark.service.reads.reading import CURSOR
from zeh_spark.service.store.cursor_sets import NAME, NOBODY, parse_consumer
from zeh_spark.service.store.interface import MAX_PARTITIONS
from zeh_spark.service.store.problems import Problem
from zeh_spark.wire import problems, served_lines
from zeh_spark.wire.phrases import counted
from zeh_spark.wire.served_lines import Selection
from zeh_spark.wire.wire import ALL_HEADERS as ALL

MAX_N = 65_536
"""Most partitions that a reader may work with."""

MAX_WAIT = 60.0
"""Most seconds of a long poll; a longer `wait` is shortened to it."""

MAX_HEADERS, MAX_HEADER = 256, 256
"""Most names of headers in a request, and most characters of a name; `_all` needs no names."""

MAX_KEPT = MAX_PARTITIONS
"""Most cursors in a request that names a cursorset: as many as a store's feed has partitions.

Other writers wait while they are kept.
"""

_PRINTABLE = re.compile(r"[ -~]+")
_CURSOR = re.compile(r"cursor(0|[1-9][0-9]{0,8})")
_KNOWN = {"n", "pagesizehint", "headers", "only", "wait", "cursorset", "resume", "store_cursor"}


@dataclass(frozen=True, slots=True)
class Ask:
    """A read request: `cursors` by partition of its `n`, or the partitions to `resume`.

    Attributes:
        resume: Partitions to read from the cursors that the feed keeps under `cursor_set`.
        hint: The page size hint; None if the feed decides.
        only: The events that the reader gets; None for all.
        wait: Seconds to wait for an event, at most MAX_WAIT.
        consumer: The identity that the reader tells; NOBODY if it tells none.
    """

    n: int
    cursors: Mapping[int, str]
    resume: tuple[int, ...]
    hint: int | None
    headers: tuple[str, ...]
    only: Selection | None
    wait: float
    cursor_set: str | None
    consumer: str = NOBODY

    @property
    def may_wait(self) -> bool:
        """Whether the answer may wait for an event."""
        return self.wait > 0 and self.hint != 0


def names_cursor_set(query: bytes) -> bool:
    """Return whether a query names a cursorset, also if it is not valid."""
    if b"cursorset" not in query and b"%" not in query:
        return False  # most queries, some of which name thousands of cursors
    given = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
    return any(name == "cursorset" for name, _ in given)


def parse_query(query: str, partition_count: Callable[[], int], consumer: str | None = None) -> Ask:
    """Return what a request asks for. Raises Problem if it is not valid.

    `partition_count` returns that of the feed, for a refusal that tells it. `consumer` is the
    header ZEH-Consumer.
    """
    given = _parameters(query)
    n = _n(given.get("n"), partition_count)
    cursors = _cursors(given, n)
    cursor_set = _cursor_set(given)
    if cursor_set is not None and len(cursors) > MAX_KEPT:
        raise Problem(
            problems.TOO_MANY_CURSORS,
            f"{len(cursors):,} cursors are to be kept under cursorset {cursor_set!r}; at most "
            f"{MAX_KEPT:,} are allowed in a request. Send them in several requests",
            maximum=MAX_KEPT,
        )
    resume = _resume(given.get("resume"), n)
    if resume and cursors:
        raise Problem(
            problems.RESUME_WITH_CURSORS, "resume and cursorN exclude each other; give one of them"
        )
    if resume and cursor_set is None:
        raise Problem(
            problems.CURSORSET_MISSING,
            "resume needs cursorset, the name under which the cursors were kept",
        )
    if not resume and not cursors:
        raise Problem(
            problems.CURSORS_MISSING,
            f"no partition is asked for: give cursorN for at least one N of 0 to {n - 1}, with a "
            f"cursor, _first or _last",
        )
    return Ask(
        n=n,
        cursors=cursors,
        resume=resume,
        hint=_hint(given.get("pagesizehint")),
        headers=_headers(given.get("headers", "")),
        only=_only(given.get("only")),
        wait=_wait(given.get("wait")),
        cursor_set=cursor_set,
        consumer=parse_consumer(consumer),
    )


def parse_time_query(query: str, partition_count: Callable[[], int]) -> tuple[int, int]:
    """Return n and the time, in ms since 1970, of a request for the cursors at a time.

    Raises Problem if one of them is missing, or is not valid.
    """
    given = _parameters(query, {"n", "time"})
    n = _n(given.get("n"), partition_count)
    text = given.get("time", "")
    if not re.fullmatch(r"[0-9]{1,15}", text):
        raise Problem(
            problems.BAD_TIME,
            f"time is {text!r}; allowed are milliseconds since 1970, like 1795416480329",
        )
    return n, int(text)


def parse_await(query: str) -> tuple[tuple[int, str], str, float] | None:
    """Return a batch (position and tag of its end), a cursor set, and seconds; None without await.

    Raises Problem.
    """
    given = _parameters(query, {"await", "cursorset", "wait"})
    name, wait = _cursor_set(given), _wait(given.get("wait"))
    if (text := given.get("await")) is None:
        return None
    if not (match := CURSOR.fullmatch(text)):
        said = f"await is {text!r}; allowed is the last cursor in the ranges of a receipt"
        raise Problem(problems.BAD_AWAIT, said)
    if name is None:
        said = "await needs cursorset, the name under which the reader keeps its cursors"
        raise Problem(problems.CURSORSET_MISSING, said)
    return (int(match[1]), match[2]), name, wait


def parse_version(query: str) -> int | None:
    """Return the version of a schema that is asked for; None for the latest. Raises Problem."""
    text = _parameters(query, {"version"}).get("version")
    return None if text is None else number("version", text, 10**9 - 1, least=1)


def _parameters(query: str, known: Set[str] = _KNOWN) -> dict[str, str]:
    given: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True, encoding="utf-8", errors="replace"):
        if name not in known and not _CURSOR.fullmatch(name):
            continue
        if name in given:
            raise Problem(
                problems.DUPLICATE_PARAMETER,
                f"{name} is given twice, as {given[name]!r} and {value!r}; give it once",
                parameter=name,
            )
        given[name] = value
    return given


def _n(text: str | None, partition_count: Callable[[], int]) -> int:
    """Return n. Any problem with it tells the partition count: that is the handshake.

    The app adds the feed's identity, if the feed tells one.
    """
    if text is None:
        count = partition_count()
        raise Problem(
            problems.PARTITION_COUNT_MISSING,
            f"n, the number of partitions the reader works with, is missing; the feed has {count}",
            partitionCount=count,
        )
    if not re.fullmatch(r"[0-9]{1,18}", text) or not 1 <= int(text) <= MAX_N:
        count = partition_count()
        raise Problem(
            problems.BAD_PARTITION_COUNT,
            f"n is {text!r}; allowed are whole numbers from 1 to {MAX_N}; the feed has "
            f"{counted(count, 'partition')}",
            partitionCount=count,
            maximum=MAX_N,
        )
    return int(text)


def _cursors(given: Mapping[str, str], n: int) -> dict[int, str]:
    cursors = {}
    for name, text in given.items():
        match = _CURSOR.fullmatch(name)
        if not match:
            continue
        partition = int(match[1])
        if partition >= n:
            raise Problem(
                problems.PARTITION_OUT_OF_RANGE,
                f"{name} is given, but with n={n} there are cursor0 to cursor{n - 1}",
                partition=partition,
                n=n,
            )
        if not _PRINTABLE.fullmatch(text):
            raise Problem(
                problems.MALFORMED_CURSOR,
                f"{name} is {text!r}; allowed are printable ASCII characters, at least one",
                partition=partition,
                cursor=text,
            )
        cursors[partition] = text
    return dict(sorted(cursors.items()))


def _hint(text: str | None) -> int | None:
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise Problem(
            problems.BAD_PAGE_SIZE_HINT,
            f"pagesizehint is {text!r}; allowed are whole numbers from 0",
        )
    return int(text)


def _headers(text: str) -> tuple[str, ...]:
    """Return the names, which have commas between them and perhaps one at the end, each once."""
    names = tuple(dict.fromkeys(name for name in text.split(",") if name))
    longest = max(map(len, names), default=0)
    if len(names) > MAX_HEADERS or longest > MAX_HEADER:
        raise Problem(
            problems.BAD_HEADERS,
            f"headers has {counted(len(names), 'name')}, the longest of {longest:,} characters; at "
            f"most {MAX_HEADERS} names of {MAX_HEADER} characters are allowed. Ask for {ALL} to "
            f"get all headers",
        )
    return names


def _only(text: str | None) -> Selection | None:
    try:
        return None if text is None else served_lines.parse_selection(text)
    except ValueError as exc:
        raise Problem(problems.BAD_ONLY, f"only is {text!r}; it {exc}") from None


def _wait(text: str | None) -> float:
    if text is None:
        return 0.0
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text):
        raise Problem(problems.BAD_WAIT, f"wait is {text!r}; allowed are seconds, like 10 or 0.5")
    return min(float(text), MAX_WAIT)


def _cursor_set(given: Mapping[str, str]) -> str | None:
    name = given.get("cursorset")
    if name is not None and not NAME.fullmatch(name):
        raise Problem(
            problems.BAD_CURSORSET,
            f"cursorset is {name!r}; allowed are 1 to 50 printable ASCII characters",
        )
    store = given.get("store_cursor")
    if store not in (None, "1"):
        raise Problem(problems.BAD_STORE_CURSOR, f"store_cursor is {store!r}; allowed is 1")
    if store and name is None:
        raise Problem(
            problems.CURSORSET_MISSING,
            "store_cursor needs cursorset, the name under which to keep cursors",
        )
    return name


def _resume(text: str | None, n: int) -> tuple[int, ...]:
    if text is None:
        return ()
    numbers = text.removesuffix(",").split(",")
    are_right = all(re.fullmatch(r"[0-9]{1,9}", each) and int(each) < n for each in numbers)
    if not are_right or len(set(map(int, numbers))) != len(numbers):
        raise Problem(
            problems.BAD_RESUME,
            f"resume is {text!r}; allowed are different partitions of 0 to {n - 1} with commas "
            f"between them",
            n=n,
        )
    return tuple(sorted(map(int, numbers)))


def resumed(ask: Ask, kept: Mapping[int, str]) -> dict[int, str]:
    """Return the cursors to resume from. Raises Problem if a partition has no kept cursor."""
    missing = [each for each in ask.resume if each not in kept]
    if missing:
        raise Problem(
            problems.UNKNOWN_CURSORSET,
            f"nothing is kept under cursorset {ask.cursor_set!r} with n={ask.n} for partition "
            f"{missing[0]}; give cursors with cursorset first",
            cursorset=ask.cursor_set,
            partition=missing[0],
        )
    return {each: kept[each] for each in ask.resume}
