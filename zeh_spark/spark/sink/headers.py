"""The headers of rows as they are stored: those of the frame, and those that the sink adds.

The sink adds `zeh-origin` (option `keepOrigin`) and `zeh-key` (option `keepKey`). They are stored
with the event, so they are part of the batch's content. All other headers whose names are reserved
for publishers are dropped, so a query may hand on the headers that it has read.

Runs in write tasks; pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Raw

from zeh_spark.wire import event_key, wire
from zeh_spark.wire.arrow_json import (
    TEXT,
    Unfit,
    entries,
    joined,
    json_of,
    object_of,
    or_else,
    refuse,
    utf8,
    within,
)


class _Rest(msgspec.Struct):
    headers: dict[str, str]
    data: Raw


def keys_of(column: pa.Array) -> pa.Array:
    """Return the keys of rows as the texts that are kept; NULL for a row without a key.

    Raises Unfit if a key is not UTF-8, or has more than `event_key.MAX_BYTES` bytes.
    """
    with within("key"):
        texts = utf8(column.cast(TEXT))
        sizes = pc.binary_length(texts)
        longest = pc.max(sizes).as_py() or 0
        if longest > event_key.MAX_BYTES:
            row = pc.index(pc.greater(sizes, event_key.MAX_BYTES), True).as_py()
            raise Unfit(event_key.too_long(sizes[row].as_py()), texts[row].as_py().encode())
        return texts


def stored_headers(column: pa.Array | None, added: Mapping[str, pa.Array]) -> pa.Array | str:
    """Return headers as `wire.event_line` writes them: for each row, or one text for all.

    `added` has for each header that is added its texts, NULL for rows that do not get it. Without a
    column, only the key can be added. Raises Unfit if the headers of a row cannot be published.
    """
    if column is None:
        if not added:
            return "{}"
        ((name, texts),) = added.items()
        return or_else(texts, joined(f'{{"{name}":', json_of(texts), "}"), "{}")
    with within("headers"):
        names, values, offsets = entries(column)
        names = utf8(names)
        kept = pc.invert(pc.starts_with(names, wire.RESERVED_HEADER))
        if not pc.all(kept).as_py():
            offsets = np.append(0, np.cumsum(kept))[offsets]
            names, values = names.filter(kept), values.filter(kept)
        if added:
            values = utf8(values)
            for name, texts in added.items():
                names, values, offsets = _with_header(names, values, offsets, name, texts)
        refuse(values.is_null(), names, "the value of a header is NULL")
        objects = object_of(names, json_of(values), offsets)
        return objects if added else or_else(column, objects, "{}")


def _with_header(
    names: pa.Array, values: pa.Array, offsets: np.ndarray, name: str, texts: pa.Array
) -> tuple[pa.Array, pa.Array, np.ndarray]:
    """Return the headers of all rows with one more, as `arrow_json.object_of` takes them.

    `offsets` say where the headers of each row begin, and the end; `texts` is NULL for a row that
    does not get the header.
    """
    gets = np.asarray(texts.is_valid())
    wider = offsets + np.append(0, np.cumsum(gets))
    rows = int(gets.sum())
    added = np.zeros(len(names) + rows, bool)
    added[wider[1:][gets] - 1] = True
    order = np.empty(len(added), np.int64)
    order[added] = len(names) + np.arange(rows)
    order[~added] = np.arange(len(names))
    all_names = pa.concat_arrays([names, pa.array([name] * rows, TEXT)])
    all_values = pa.concat_arrays([values, texts.drop_null()])
    return all_names.take(pa.array(order)), all_values.take(pa.array(order)), wider


def too_long_with(rest: bytes, added: Collection[str], most: int) -> Sequence[str]:
    """Return the added headers of an event without which it would fit; empty if it would not.

    `rest` is the event as the rest of a line (see `rows.Rendered`), and `most` the bytes that it
    may have.
    """
    event = msgspec.json.decode(b"{" + rest, type=_Rest)
    own = {name: value for name, value in event.headers.items() if name not in added}
    less = len(msgspec.json.encode(event.headers)) - len(msgspec.json.encode(own))
    return sorted(event.headers.keys() - own.keys()) if len(rest) - less <= most else ()
