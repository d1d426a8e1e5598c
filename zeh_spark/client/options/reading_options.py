"""The options that say which events of a feed to read, in Spark and without it.

Rule for editors: see `zeh_spark.client.options`. Runs wherever a reader is made, and touches
neither network nor files.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Literal

import orjson

from zeh_spark.client.options.client_options import ClientOptions
from zeh_spark.client.options.option_metadata import option
from zeh_spark.errors import OptionError
from zeh_spark.wire import served_lines, wire
from zeh_spark.wire.feed_identity import HEADER as FEED_HEADER
from zeh_spark.wire.feed_identity import FeedIdentity
from zeh_spark.wire.option_values import (
    parse_choice,
    parse_count,
    parse_duration,
    parse_partition_count,
    parse_partitions,
    parse_text,
    parse_value,
)
from zeh_spark.wire.phrases import counted, in_ranges
from zeh_spark.wire.served_lines import Selection
from zeh_spark.wire.stamp_columns import HEADERS as STAMP_HEADERS
from zeh_spark.wire.stamp_columns import OF_HEADERS

Cursors = Literal["first", "last", "quiet"] | dict[int, str]
_1970 = datetime(1970, 1, 1, tzinfo=timezone.utc)
_OF_KAFKA = {"earliest": "first", "latest": "last"}
"""What Spark's Kafka source calls the words for a feed's first and last event."""


def parse_cursors(words: Sequence[Literal["first", "last", "quiet"]], text: str) -> Cursors:
    """Parse one of these words, or JSON with a cursor for every partition."""
    given_word = _OF_KAFKA.get(text.lower(), text.lower())
    if word := next((word for word in words if given_word == word), None):
        return word
    complaint = (
        f"must be {', '.join(words)}, or JSON with a cursor for every partition, "
        'like {"0": "17.0a1b2c3d", "1": "_first"}'
    )
    try:
        given = orjson.loads(text)
        cursors = {int(partition): cursor for partition, cursor in given.items()}
    except (ValueError, AttributeError):
        raise ValueError(complaint) from None
    if not cursors or wire.by_partition(cursors).keys() != given.keys():
        raise ValueError(f"{complaint}; partitions given: {[*given]}")
    if not all(isinstance(cursor, str) and cursor for cursor in cursors.values()):
        raise ValueError(f"{complaint}; each cursor must be a string that is not empty")
    return dict(sorted(cursors.items()))


def parse_timestamp(text: str) -> int:
    """Return the ms since 1970 of a time: that number, as Kafka has it, or ISO 8601 with offset."""
    if re.fullmatch(r"[0-9]{1,15}", text.strip()):
        return int(text)
    try:
        time = datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", text.strip()))
    except ValueError:
        time = datetime.min
    if time.tzinfo is None or time.year < 1970:
        raise ValueError(
            "must be milliseconds since 1970, or a time with its offset from UTC, like "
            "2026-11-22T08:00:00+01:00"
        )
    return (time - _1970) // timedelta(milliseconds=1)


def parse_headers(text: str) -> tuple[str, ...]:
    """Return the names of the headers to ask for; empty for `none`."""
    if parse_value(text) == "none":
        return ()
    names = tuple(name.strip() for name in text.split(","))
    if (
        text.lstrip().startswith("[")  # of a list in Python
        or not all(names)
        or len(set(names)) != len(names)
        or (wire.ALL_HEADERS in names and names != (wire.ALL_HEADERS,))
    ):
        raise ValueError("must be _all, none, or different names with commas between them")
    return names


def parse_wait(text: str) -> float:
    """Return whole seconds, because the protocol's `wait` has no fractions."""
    if (seconds := parse_duration(text)) % 1:
        raise ValueError("must be whole seconds, as the protocol has them")
    return seconds


def parse_cursor_set(text: str) -> str:
    if not re.fullmatch(r"[ -~]{1,50}", text):
        raise ValueError("must be 1 to 50 printable ASCII characters")
    return parse_value(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingOptions(ClientOptions):
    """The options that say where a read starts and ends, and what its events show."""

    partition_count: int | None = option(
        parse_partition_count,
        "number of partitions, the spec's `n`; not needed if the publisher returns it",
    )
    partitions: tuple[int, ...] | None = option(
        parse_partitions,
        "the partitions to read, like `0-3` or `0,2,5-7`; all by default",
    )
    starting_cursors: Cursors = option(
        partial(parse_cursors, ("first", "last")),
        "where a new query starts: `first` (or `earliest`), `last` (or `latest`), or JSON with a "
        "cursor for every partition",
        default="first",
    )
    starting_timestamp: int | None = option(
        parse_timestamp,
        "where a new query starts, instead of `startingCursors`: at the first event that was "
        "committed at this time or later; milliseconds since 1970, or a time in the form "
        "`2026-11-22T08:00:00+01:00`; only with `zeh-spark serve`",
    )
    ending_cursors: Cursors = option(
        partial(parse_cursors, ("last", "quiet")),
        "where a batch query ends: `last` (or `latest`), `quiet`, or JSON with a cursor for every "
        "partition",
        default="last",
        query="batch",
    )
    headers: tuple[str, ...] = option(
        parse_headers,
        "event headers to request: `_all`, `none`, or names with commas between them",
        default="_all",
    )
    only: Selection | None = option(
        served_lines.parse_selection,
        "the events to read: JSON with one header, or `zeh-key`, and at most 16 of its values, "
        'like `{"type": ["paid", "refunded"]}`; all by default; only with `zeh-spark serve`',
    )
    stamps: str = option(
        parse_choice("headers", "columns", "none"),
        "where the publisher's stamps (time, producer, sequence number …) go: `headers` "
        "keeps them in the column `headers`; `columns` puts them into typed columns; `none` omits "
        "them. Columns that the schema names are always filled",
        default="headers",
    )
    page_size_hint: int = option(
        parse_count, "number of events that one request asks for", default="10000"
    )
    wait: float = option(
        parse_wait,
        "long polling: how long the publisher may hold an answer without events, in whole seconds; "
        "`0` turns it off",
        default="10s",
        query="streaming",
    )
    poll_interval: float = option(
        parse_duration,
        "pause before the next request for a partition without new events",
        default="1s",
        query="streaming",
    )
    feed_id: str | None = option(
        parse_text,
        "name of the feed in the checkpoint instead of its URL; also in `zeh-feed`, if the "
        "publisher sends no id",
    )
    cursor_set: str | None = option(
        parse_cursor_set,
        "name under which `zeh-spark serve` keeps the positions that the query has committed; "
        "retention can wait for them",
        query="streaming",
    )
    columns: tuple[str, ...] = ()
    """The columns of the query. They are no option, but the user's schema."""

    @property
    def requested_headers(self) -> tuple[str, ...]:
        """The headers to ask the publisher for: those of `headers`, and those of columns."""
        if self.headers == (wire.ALL_HEADERS,):
            return self.headers
        needed = [each.header for each in OF_HEADERS.values() if each.name in self.columns]
        # The reader adds the header zeh-feed by an event's time.
        of_publisher = [wire.TIME_HEADER if name == FEED_HEADER else name for name in needed]
        return tuple(dict.fromkeys((*self.headers, *of_publisher)))

    @property
    def selected(self) -> str:
        """The option `only` as it is sent; empty for all events."""
        return self.only.text if self.only else ""

    @property
    def hidden_headers(self) -> tuple[str, ...]:
        """The headers that come with events, and that the column `headers` does not show."""
        if self.stamps != "headers":
            return tuple(sorted(STAMP_HEADERS))
        if self.headers == (wire.ALL_HEADERS,):
            return ()
        shown = {*self.headers, *([FEED_HEADER] if self._shows_stamps else [])}
        return tuple(sorted({*self.requested_headers, FEED_HEADER} - shown))

    @property
    def _shows_stamps(self) -> bool:
        """Whether the column `headers` has headers of the publisher's."""
        return self.stamps == "headers" and any(
            name == wire.ALL_HEADERS or name.startswith(wire.RESERVED_HEADER)
            for name in self.headers
        )

    @property
    def feed(self) -> str:
        """The feed's name in a checkpoint: the option `feedId`, or the URL."""
        return self.feed_id or self.url.identity

    def stamping(self, identity: FeedIdentity) -> FeedIdentity | None:
        """Return the identity whose ids the events get as the header `zeh-feed`.

        It returns None if the query shows no header of the publisher's (`zeh-…`) and no column
        `feed`. Raises OptionError if the feed has several epochs, and `headers` leaves out
        `zeh-time`, which tells in which of them an event was committed.
        """
        if not (self._shows_stamps or "feed" in self.columns):
            return None
        asked = self.requested_headers
        if len(identity.epochs) > 1 and not {wire.ALL_HEADERS, wire.TIME_HEADER} & {*asked}:
            raise OptionError(
                f"option 'headers' is {','.join(self.headers)!r}, and the feed {self.url} has "
                f"{len(identity.epochs)} epochs, in which producers use the same sequence numbers; "
                f"only 'zeh-time' tells which epoch an event belongs to. Add zeh-time to 'headers'",
                option="headers",
                anchor="headers-without-zeh-time",
            )
        return identity

    def chosen(self, partition_count: int) -> Sequence[int]:
        """Return the partitions that the query reads, in ascending order."""
        return self.partitions or range(partition_count)

    def check_partitions(self, partition_count: int | None) -> None:
        """Refuse partitions that the feed does not have, and cursors of others than are read.

        The number of partitions is None while it is not known. Raises OptionError.
        """
        if self.partitions and partition_count and self.partitions[-1] >= partition_count:
            raise OptionError(
                f"option 'partitions' is {in_ranges(self.partitions)}, but the feed {self.url} has "
                f"{counted(partition_count, 'partition')}. Name some of 0 to {partition_count - 1}",
                option="partitions",
            )
        for name, cursors in (
            ("startingCursors", self.starting_cursors),
            ("endingCursors", self.ending_cursors),
        ):
            if not isinstance(cursors, dict):
                continue
            needed = self.chosen(partition_count or len(cursors))
            if [*cursors] != [*needed]:
                why = f"the feed {self.url} has {partition_count}"
                if self.partitions or not partition_count:
                    why = f"option 'partitions' is {in_ranges(self.partitions or ()) or 'not set'}"
                raise OptionError(
                    f"option {name!r} has cursors for {counted(len(cursors), 'partition')} "
                    f"({in_ranges(cursors)}), but {why}. Give one for each of {in_ranges(needed)} "
                    f"('_first' for a partition's beginning)",
                    option=name,
                )

    def check_stream(self) -> None:
        """Refuse options that contradict each other in a stream alone. Raises OptionError."""
        if self.wait and self.read_timeout <= self.wait:
            raise OptionError(
                f"option 'readTimeout' ({self.read_timeout:g} s) must be more than 'wait' "
                f"({self.wait:g} s), because a publisher may be silent that long. Change one of "
                f"them",
                option="readTimeout",
            )

    def check(self) -> None:
        ClientOptions.check(self)  # super() needs __class__, which slots=True has replaced
        if self.starting_timestamp is not None and self.starting_cursors != "first":
            raise OptionError(
                "options 'startingTimestamp' and 'startingCursors' exclude each other. Set one of "
                "them",
                option="startingTimestamp",
            )
        if self.stamps != "headers" and (given := sorted(STAMP_HEADERS & {*self.headers})):
            raise OptionError(
                f"option 'headers' names {given[0]!r}, which stamps={self.stamps} leaves out of "
                f"the column headers. Remove it there, or set stamps=headers",
                option="headers",
            )
        ends = self.ending_cursors
        if isinstance(ends, dict) and wire.LAST in ends.values():
            raise OptionError(
                "option 'endingCursors' needs real cursors instead of '_last'. "
                "zeh_spark.last_cursors(url) gives them",
                option="endingCursors",
            )
        self.check_partitions(self.partition_count)
