"""The stamps of an event as typed columns: their names, and the headers that they are made of.

A stamp says who published an event, when, and with which number. Our publisher serves stamps as
headers (`zeh-…`), and the reader adds `zeh-feed`. As columns they have types, so that
`withWatermark("timestamp", …)` works as it does with Kafka.

An event is identified by (feed, producer, storedPartition, sequence). `batch` counts from 0 again
in a new incarnation of its producer, so it never identifies anything.

`key` is no stamp: the writer of an event gave it (see `event_key`). It is a column like those of
stamps, but only for a schema that names it, because many feeds have a field `key` in their data.

Rule for editors: names and types are in users' schemas, so they stay. Pure; runs everywhere.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from zeh_spark.wire import event_key, wire
from zeh_spark.wire.feed_identity import HEADER as FEED

Kind = Literal["timestamp", "string", "bigint", "int"]

MAX_TIME = 253_402_300_799_999
"""The last millisecond of the year 9999, since 1970: a `zeh-time` may not be later."""

MAX_DIGITS = {"timestamp": 15, "bigint": 18, "int": 9}
"""The maximum digits of the number in a header, by the type of its column."""


class StampColumn(NamedTuple):
    """A stamp: the name of its column, its header, and the type of the column in SQL."""

    name: str
    header: str
    kind: Kind


STAMP_COLUMNS = (
    StampColumn("timestamp", wire.TIME_HEADER, "timestamp"),
    StampColumn("feed", FEED, "string"),
    StampColumn("producer", "zeh-producer", "string"),
    StampColumn("storedPartition", "zeh-partition", "int"),
    StampColumn("sequence", "zeh-sequence", "bigint"),
    StampColumn("batch", "zeh-batch", "bigint"),
)

BY_NAME = {each.name: each for each in STAMP_COLUMNS}

KEY = StampColumn("key", event_key.HEADER, "string")
"""The column with the key that an event was published with, if its writer kept it."""

OF_HEADERS = {**BY_NAME, KEY.name: KEY}
"""All columns that are made of headers, by name."""

HEADERS = frozenset(each.header for each in OF_HEADERS.values())
"""Their headers, which the map leaves out if the option `stamps` says so."""

POSITION = "position"
"""The column with the position of an event's chunk in the feed. No header has it."""


def is_number(text: str, kind: Kind) -> bool:
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS[kind]):
        return False
    return kind != "timestamp" or int(text) <= MAX_TIME
