"""The options of the source: `spark.readStream` and `spark.read` with format `zeroeventhub`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

import orjson

from zeh_spark.errors import OptionError
from zeh_spark.options import (
    ClientOptions,
    option,
    parse_bool,
    parse_choice,
    parse_count,
    parse_duration,
    parse_partition_count,
    parse_size,
    parse_text,
)
from zeh_spark.protocol import wire
from zeh_spark.protocol.feed_identity import FeedIdentity

Cursors = Literal["first", "last", "quiet"] | dict[int, str]


def parse_start(text: str) -> Cursors:
    """`first`, `last`, or JSON with a cursor for every partition: {"0": "…", "1": "_first"}."""
    return _parse_cursors(text, "first", "last")


def parse_end(text: str) -> Cursors:
    """`last`, `quiet`, or JSON with a cursor for every partition."""
    return _parse_cursors(text, "last", "quiet")


def _parse_cursors(text: str, *words: Literal["first", "last", "quiet"]) -> Cursors:
    if word := next((word for word in words if text.lower() == word), None):
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
    if len(cursors) != len(given) or sorted(cursors) != list(range(len(cursors))) or not cursors:
        raise ValueError(
            f"{complaint}; partitions given: {sorted(cursors)}, needed: every one from 0 without "
            f"a gap"
        )
    if not all(isinstance(cursor, str) and cursor for cursor in cursors.values()):
        raise ValueError(f"{complaint}; each cursor must be a string that is not empty")
    return dict(sorted(cursors.items()))


def parse_headers(text: str) -> tuple[str, ...]:
    """Names of headers to ask for; empty for `none`."""
    if text.lower() == "none":
        return ()
    names = tuple(name.strip() for name in text.split(","))
    if (
        not all(names)
        or len(set(names)) != len(names)
        or (wire.ALL_HEADERS in names and names != (wire.ALL_HEADERS,))
    ):
        raise ValueError("must be _all, none, or different names with commas between them")
    return names


def parse_wait(text: str) -> float:
    if (seconds := parse_duration(text)) % 1:
        raise ValueError("must be whole seconds, as the protocol has them")
    return seconds


def parse_cursor_set(text: str) -> str:
    if not re.fullmatch(r"[ -~]{1,50}", text):
        raise ValueError("must be 1 to 50 printable ASCII characters")
    return text


def parse_staging(text: str) -> str:
    """An absolute path, or a URI that pyarrow.fs knows; `s3a:` and `dbfs:/Volumes` are read as what
    they mean.
    """
    location = re.sub(r"^s3a:", "s3:", re.sub(r"^dbfs:/+Volumes/", "/Volumes/", text)).rstrip("/")
    scheme = re.match(r"^([a-z][a-z0-9+]*):", location)
    if not location.startswith("/") and (
        not scheme or scheme[1] not in {"file", "s3", "gs", "abfs", "abfss"}
    ):
        raise ValueError(
            "must be an absolute path that driver and executors share, or a URI with "
            "file, s3, s3a, gs, abfs or abfss"
        )
    return location


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions(ClientOptions):
    """All options of `spark.readStream` and `spark.read` with format `zeroeventhub`."""

    max_concurrent_requests: int = option(
        parse_count,
        "32",
        "most requests at a time; with more partitions than that there is no long polling",
        query="streaming",
    )
    partition_count: int | None = option(
        parse_partition_count,
        None,
        "number of partitions, the spec's `n`; learned where the publisher tells it",
    )
    starting_cursors: Cursors = option(
        parse_start,
        "first",
        "where a new query starts: `first`, `last`, or JSON with a cursor for every partition",
    )
    ending_cursors: Cursors = option(
        parse_end,
        "last",
        "where a batch query ends: `last`, `quiet`, or JSON with a cursor for every partition",
        query="batch",
    )
    headers: tuple[str, ...] = option(
        parse_headers,
        "_all",
        "event headers to ask for: `_all`, `none`, or names with commas between them",
    )
    page_size_hint: int = option(parse_count, "10000", "events a request asks for")
    max_events_per_trigger: int | None = option(
        parse_count,
        None,
        "most events in a micro-batch, as far as checkpoints allow",
        query="streaming",
    )
    max_bytes_per_trigger: int = option(
        parse_size,
        "128m",
        "most bytes in a micro-batch, as far as checkpoints allow; memory follows it",
        query="streaming",
    )
    min_partitions: int | None = option(
        parse_count,
        None,
        "least number of Spark partitions for a large micro-batch; the driver's cores if not set",
        query="streaming",
    )
    wait: float = option(
        parse_wait,
        "10s",
        "long polling: whole seconds a publisher may hold an answer without events; 0: off",
        query="streaming",
    )
    poll_interval: float = option(
        parse_duration,
        "1s",
        "pause before a partition without news is asked again",
        query="streaming",
    )
    staging_location: str | None = option(
        parse_staging,
        None,
        "directory that driver and executors share: batches wait there until Spark has them",
        query="streaming",
    )
    replay: str = option(
        parse_choice("strict", "accept"),
        "strict",
        "`accept` lets a batch that the feed no longer gives as it was pass once, changed",
        query="streaming",
    )
    feed_id: str | None = option(
        parse_text,
        None,
        "name of the feed in the checkpoint, and in `zeh-feed` if its publisher tells no id, "
        "instead of its URL",
    )
    cursor_set: str | None = option(
        parse_cursor_set,
        None,
        "name under which our publisher keeps what the query has committed; retention can wait "
        "for it",
        query="streaming",
    )
    fail_on_data_loss: bool = option(
        parse_bool,
        "true",
        "`false` continues with the oldest events left when the publisher removed unread ones",
        query="streaming",
    )
    mode: str = option(
        parse_choice("FAILFAST", "PERMISSIVE"),
        "FAILFAST",
        "`PERMISSIVE` puts lines that are not events into the corrupt-record column",
    )
    column_name_of_corrupt_record: str = option(
        parse_text, "_corrupt_record", "that column's name; it has to be in the schema"
    )

    @property
    def feed(self) -> str:
        """The feed's identity in the checkpoint."""
        return self.feed_id or self.url.identity

    def stamping(self, identity: FeedIdentity) -> FeedIdentity | None:
        """Return the identity whose ids the events get as the header `zeh-feed`; None if the query
        asks for no header of the publisher's (`zeh-…`).

        Raises OptionError if the feed has several epochs and `headers` leaves out `zeh-time`, which
        tells in which of them an event was committed.
        """
        if self.headers == (wire.ALL_HEADERS,):
            return identity
        if not any(name.startswith(wire.RESERVED_HEADER) for name in self.headers):
            return None
        if len(identity.epochs) > 1 and wire.TIME_HEADER not in self.headers:
            raise OptionError(
                f"option 'headers' is {','.join(self.headers)!r}, and the feed {self.url} has "
                f"{len(identity.epochs)} epochs, in which producers use the same sequence numbers; "
                f"only 'zeh-time' tells which epoch an event belongs to. Add zeh-time to 'headers'",
                option="headers",
            )
        return identity

    def check_partitions(self, partition_count: int) -> None:
        """Explicit cursors name every partition. Raises OptionError."""
        for name, cursors in (
            ("startingCursors", self.starting_cursors),
            ("endingCursors", self.ending_cursors),
        ):
            if isinstance(cursors, dict) and len(cursors) != partition_count:
                raise OptionError(
                    f"option {name!r} has cursors for {len(cursors)} partitions, but the feed "
                    f"{self.url} has {partition_count}: give one for each of 0 to "
                    f"{partition_count - 1} ('_first' for a partition's beginning)",
                    option=name,
                )

    def check(self) -> None:
        ClientOptions.check(self)  # super() needs __class__, which slots=True has replaced
        if self.wait and self.read_timeout <= self.wait:
            raise OptionError(
                f"option 'readTimeout' ({self.read_timeout:g} s) must be more than 'wait' "
                f"({self.wait:g} s): a publisher may stay silent that long",
                option="readTimeout",
            )
        ends = self.ending_cursors
        if isinstance(ends, dict) and wire.LAST in ends.values():
            raise OptionError(
                "option 'endingCursors' needs real cursors instead of '_last'; "
                "zeh_spark.last_cursors(url) gives them",
                option="endingCursors",
            )
        if self.partition_count is not None:
            self.check_partitions(self.partition_count)
