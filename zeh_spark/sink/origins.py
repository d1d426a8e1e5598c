"""The header `zeh-origin` of events that are relayed (option `keepOrigin`), over columns.

An event that was relayed before keeps the origin that it has. Any other needs the stamps with which
our publisher served it. A row without them is refused: without its identity a consumer could not
recognize it. Runs in write tasks; has no side effects.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zeh_spark.errors import RowError
from zeh_spark.protocol.arrow_json import TEXT, Unfit, entries, refuse, utf8
from zeh_spark.protocol.event_origin import FORM, HEADER
from zeh_spark.protocol.feed_identity import HEADER as FEED

_STAMPS = (FEED, "zeh-producer", "zeh-partition", "zeh-sequence", "zeh-time")
_PARTED = r"^[^/]*/[^/]*/[^/]*/[^/]*/[^/]*/"
"""What an origin with the number of a part begins with."""

_BYTES = pa.large_binary()
"""Headers are looked at as bytes: Spark's STRING holds any."""


def origins_of(headers: pa.Array, parts: pa.Array | None) -> pa.Array:
    """Return the origin of each row, as text.

    Args:
        headers: The headers, as they were read.
        parts: The numbers of the events that a relay makes of one, or None.

    Raises:
        Unfit: A row has no origin and not all stamps, or they have another form.
    """
    known = _header(headers, HEADER)
    for name in _STAMPS:
        if pc.any(pc.and_(known.is_null(), _header(headers, name).is_null())).as_py():
            raise Unfit(
                f"headers: there is no {name}, which keepOrigin needs. Read the feed with "
                f"headers=_all; events without producers have no origin"
            )
    found = utf8(_found(headers, parts))
    refuse(
        pc.invert(pc.match_substring_regex(found, FORM)),
        found,
        f"headers: no {HEADER} of the form feed/producer/partition/number/time",
    )
    return found


def check_parts(headers: pa.Array, parts: pa.Array | None, data: pa.Array) -> None:
    """Raise RowError if two rows of a batch have one origin, and other data.

    Readers would drop one of them. Rows that a relay makes of one event follow each other, so they
    are in one batch as a rule.
    """
    codes = np.asarray(_found(headers, parts).dictionary_encode().indices.fill_null(-1))
    rows = np.flatnonzero(codes >= 0)
    first = np.full(codes.max(initial=-1) + 1, -1)
    first[codes[rows][::-1]] = rows[::-1]
    again = rows[first[codes[rows]] != rows]
    before = first[codes[again]]
    for one, other in zip(before.tolist(), again.tolist(), strict=True):
        if data[one] != data[other]:
            origin = _found(headers.slice(other, 1), None if parts is None else parts[other:])
            shown = origin[0].as_py().decode(errors="replace")
            raise RowError(
                f"two events of a batch have the origin {shown!r}, and other data: "
                f"readers would drop one of them. If the query makes several events of one, number "
                f"them from 0 in a column origin_part",
                row=other,
                reason="its origin is that of another event",
            )


def _found(headers: pa.Array, parts: pa.Array | None) -> pa.Array:
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


def with_origins(
    names: pa.Array, values: pa.Array, offsets: np.ndarray, origins: pa.Array
) -> tuple[pa.Array, pa.Array, np.ndarray]:
    """Return the headers of all rows with their origins, as `arrow_json.object_of` takes them.

    Args:
        names: The names of all rows' headers.
        values: Their values.
        offsets: Where the headers of each row begin, and the end.
        origins: The origin of each row.
    """
    rows = len(origins)
    wider = offsets + np.arange(rows + 1)
    added = np.zeros(len(names) + rows, bool)
    added[wider[1:] - 1] = True
    order = np.empty(len(added), np.int64)
    order[added] = len(names) + np.arange(rows)
    order[~added] = np.arange(len(names))
    all_names = pa.concat_arrays([names, pa.array([HEADER] * rows, TEXT)])
    all_values = pa.concat_arrays([values, origins])
    return all_names.take(pa.array(order)), all_values.take(pa.array(order)), wider
