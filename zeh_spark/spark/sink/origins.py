"""The header `zeh-origin` of events that are relayed (option `keepOrigin`), over columns.

An event that was relayed before keeps the origin that it has. Any other needs the stamps with which
our publisher served it. A row without them is refused: without its identity a consumer could not
recognize it. Two events of a task may have one origin only if they are the same event. Runs in
write tasks; pure.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from zeh_spark.errors import RowError
from zeh_spark.wire.arrow_json import TEXT, Unfit, entries, refuse, utf8
from zeh_spark.wire.event_origin import FORM, HEADER
from zeh_spark.wire.feed_identity import HEADER as FEED

_STAMPS = (FEED, "zeh-producer", "zeh-partition", "zeh-sequence", "zeh-time")
_PARTED = r"^[^/]*/[^/]*/[^/]*/[^/]*/[^/]*/"
"""What an origin with the number of a part begins with."""

_BYTES = pa.large_binary()
"""Headers are compared as bytes: Spark's STRING holds any."""


def origins_of(headers: pa.Array, parts: pa.Array | None) -> pa.Array:
    """Return the origin of each row, as text.

    `headers` are as they were read; `parts` are the numbers of the events that a relay makes of
    one. Raises Unfit if a row has no origin and not all stamps, or they have another form.
    """
    known = _header(headers, HEADER)
    for name in _STAMPS:
        if pc.any(pc.and_(known.is_null(), _header(headers, name).is_null())).as_py():
            raise Unfit(
                f"headers: there is no {name}, which keepOrigin needs. Read the feed with "
                f"headers=_all; events without producers have no origin"
            )
    found = utf8(found_origins(headers, parts))
    refuse(
        pc.invert(pc.match_substring_regex(found, FORM)),
        found,
        f"headers: no {HEADER} of the form feed/producer/partition/number/time",
    )
    return found


class SeenOrigins:
    """The origins of a task's events, each with the event that has it.

    They are hashes in sorted runs, 24 bytes for each event: one that is new is looked for in a few
    runs. Rejected: the last origin of each partition that was read, which suffices only for rows in
    the order of their feed; a dict, which takes about 200 bytes for each event.

    Guarantee: of two events of a task with one origin and other content, the second one is found.
    """

    def __init__(self) -> None:
        self._runs: list[np.ndarray] = []

    def add(self, origins: Sequence[bytes], rests: Sequence[bytes]) -> int | None:
        """Add events, and return the first whose origin another one has, with other content.

        `rests` are the stored lines (see `rows.Rendered`).
        """
        names = b"".join(map(xxhash.xxh3_128_digest, origins))
        high, low = np.frombuffer(names, np.uint64).reshape(-1, 2).T
        content = np.fromiter(map(xxhash.xxh3_64_intdigest, rests), np.uint64, len(rests))
        added = np.stack([high, low, content])
        order = np.argsort(high, kind="stable")
        run = added[:, order]
        wrong = [order[1:][_differ(run[:, 1:], run[:, :-1])]]
        for before in self._runs:
            places = np.minimum(np.searchsorted(before[0], high), before.shape[1] - 1)
            wrong.append(np.flatnonzero(_differ(added, before[:, places])))
        self._keep(run)
        found = np.concatenate(wrong)
        return int(found.min()) if len(found) else None

    def _keep(self, run: np.ndarray) -> None:
        """Keep a sorted run. Each run has more than twice the events of the next one."""
        while self._runs and self._runs[-1].shape[1] <= 2 * run.shape[1]:
            both = np.concatenate([self._runs.pop(), run], axis=1)
            run = both[:, np.argsort(both[0], kind="stable")]
        if run.shape[1]:
            self._runs.append(run)


def _differ(some: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return where two events have one origin and other content."""
    same = (some[0] == others[0]) & (some[1] == others[1])
    differ: np.ndarray = same & (some[2] != others[2])
    return differ


def parts_of_one(origin: bytes, row: int) -> RowError:
    """Return the error for an event whose origin another event of the task has."""
    return RowError(
        f"two events of this task have the origin {origin.decode(errors='replace')!r}, and other "
        f"headers or data: readers would drop one of them. If the query makes several events of "
        f"one, number them from 0 in a column origin_part",
        row=row,
        reason="its origin is that of another event",
    )


def found_origins(headers: pa.Array, parts: pa.Array | None) -> pa.Array:
    """Return the origin of each row, whatever its form; NULL where something is missing."""
    feed, *others = (_header(headers, name) for name in _STAMPS)
    for plain, escaped in ((b"%", b"%25"), (b"/", b"%2F")):
        feed = pc.replace_substring(feed, plain, escaped)
    own = pc.binary_join_element_wise(feed, *others, pa.scalar(b"/", _BYTES))
    found = pc.coalesce(_header(headers, HEADER), own)
    if parts is None:
        return found
    numbers = parts.cast(TEXT).cast(_BYTES)
    mark = pc.if_else(
        pc.match_substring_regex(found, _PARTED), pa.scalar(b".", _BYTES), pa.scalar(b"/", _BYTES)
    )
    parted = pc.binary_join_element_wise(found, mark, numbers, pa.scalar(b"", _BYTES))
    return pc.coalesce(parted, found)


def _header(headers: pa.Array, name: str) -> pa.Array:
    """Return the value of a header of each row; NULL if it has none."""
    names, values, offsets = entries(headers)
    here = np.flatnonzero(pc.equal(names.cast(_BYTES), name.encode()))
    places = np.full(len(headers), -1)
    places[np.repeat(np.arange(len(headers)), np.diff(offsets))[here]] = here
    return values.cast(_BYTES).take(pa.array(places, mask=places < 0))
