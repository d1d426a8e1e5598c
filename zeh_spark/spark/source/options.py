"""The options of the source: `spark.readStream` and `spark.read` with format `zeroeventhub`.

Rule for editors: see `zeh_spark.client.options`, which declares and parses options. Runs wherever a
DataSource is made, and touches neither network nor files.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import xxhash

from zeh_spark.client.options.option_metadata import declared, option
from zeh_spark.client.options.reading_options import ReadingOptions
from zeh_spark.errors import OptionError
from zeh_spark.wire.option_values import (
    parse_bool,
    parse_choice,
    parse_count,
    parse_location,
    parse_size,
    parse_text,
    parse_timeout,
)


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions(ReadingOptions):
    """The options of `spark.readStream` and `spark.read` with format `zeroeventhub`."""

    max_concurrent_requests: int = option(
        parse_count,
        "maximum number of requests at a time; no long polling if there are more partitions",
        default="32",
    )
    fetch: str = option(
        parse_choice("auto", "executors", "driver"),
        "who fetches the events: `executors`, only from `zeh-spark serve`; `driver`, page by page; "
        "`auto`: executors if the publisher offers it, and neither `only`, `stagingLocation` nor "
        "a TLS file is set",
        default="auto",
    )
    max_events_per_trigger: int | None = option(
        parse_count,
        "maximum number of events in a micro-batch, as far as checkpoint lines allow",
        query="streaming",
    )
    min_events_per_trigger: int | None = option(
        parse_count,
        "number of events for which a micro-batch waits, unless it is the first one of a run, has "
        "reached a maximum, or has waited for `maxTriggerDelay`",
        query="streaming",
    )
    max_trigger_delay: float = option(
        parse_timeout,
        "how long after the last micro-batch the next one begins, even if it has fewer events than "
        "`minEventsPerTrigger`",
        default="15m",
        query="streaming",
    )
    max_bytes_per_trigger: int | None = option(
        parse_size,
        "maximum size of a micro-batch, in bytes or with a unit, as far as checkpoint lines allow; "
        "by default `512m` if executors fetch, and `128m` if the driver fetches; on Spark 4.0 and "
        "4.1 the first one of a run may be four times as large",
        query="streaming",
    )
    min_partitions: int | None = option(
        parse_count,
        "minimum number of Spark partitions for a large micro-batch, or for a large batch that "
        "executors fetch; by default the driver's cores",
    )
    inline: bool = option(
        parse_bool,
        "`true` has the driver decode a micro-batch of at most 64 KiB, so that it needs no Python "
        "task",
        default="false",
        query="streaming",
    )
    staging_location: str | None = option(
        parse_location,
        "directory (absolute path or URI without credentials) that driver and executors share; it "
        "keeps the bytes of a micro-batch until Spark has processed it",
        query="streaming",
    )
    replay: str = option(
        parse_choice("strict", "accept"),
        "`accept` lets one micro-batch pass with other events, if the feed no longer returns the "
        "same ones",
        default="strict",
        query="streaming",
    )
    fail_on_data_loss: bool = option(
        parse_bool,
        "`false` continues with the oldest events that are left, if unread events were removed",
        default="true",
        query="streaming",
    )
    mode: str = option(
        parse_choice("FAILFAST", "PERMISSIVE"),
        "`PERMISSIVE` puts lines that are not events into the corrupt-record column",
        default="FAILFAST",
    )
    column_name_of_corrupt_record: str = option(
        parse_text,
        "name of the corrupt-record column; it has to be in the schema",
        default="_corrupt_record",
    )

    @property
    def driver_bytes(self) -> int:
        """The maximum size of a micro-batch that the driver fetches."""
        return self.max_bytes_per_trigger or 128 << 20

    @property
    def direct_bytes(self) -> int:
        """The maximum size of a micro-batch that executors fetch."""
        return self.max_bytes_per_trigger or 512 << 20

    @property
    def parallelism(self) -> int:
        """The number of tasks for a large batch: `minPartitions`, or the driver's cores."""
        return self.min_partitions or cores()

    @property
    def fingerprint(self) -> str:
        """What stands in an offset for the options that decide what the rows of a batch hold."""
        text = ",".join(self.headers)
        if self.stamps != "headers":  # the default leaves the text as it was before this option
            text += f"\n{self.stamps}"
        return f"{xxhash.xxh3_64_intdigest(text.encode()):016x}"

    def check(self) -> None:
        ReadingOptions.check(self)  # super() needs __class__, which slots=True has replaced
        of_driver = {"stagingLocation": self.staging_location, "only": self.only}
        if self.fetch == "executors" and (name := next(filter(of_driver.get, of_driver), None)):
            raise OptionError(
                f"option {name!r} works only if the driver fetches, and 'fetch' is executors. "
                f"Remove {name!r}, or set fetch=driver",
                option="fetch",
            )
        least, most = self.min_events_per_trigger or 0, self.max_events_per_trigger
        if most is not None and least > most:
            raise OptionError(
                f"option 'minEventsPerTrigger' ({least}) is more than 'maxEventsPerTrigger' "
                f"({most}). Change one of them",
                option="minEventsPerTrigger",
            )


_ENDLESS = (
    "option 'endingCursors' is for spark.read only: a stream has no end. Remove it, or use the "
    "trigger availableNow, which reads what the feed holds when the run begins"
)


def refuse_of_other_query(given: Mapping[str, str], *, streaming: bool) -> None:
    """Raise OptionError for an option that has no effect on this kind of query.

    `given` has the query's own options. Those of a table are not among them, because a table serves
    both kinds.
    """
    other = "batch" if streaming else "streaming"
    of_other = {
        name.lower(): name for name, each in declared(SourceOptions).items() if each.query == other
    }
    for key in given:
        if name := of_other.get(key.lower()):
            raise OptionError(
                _ENDLESS
                if streaming
                else f"option {name!r} is for spark.readStream only: spark.read has no "
                f"micro-batches, and reads once. Remove it; 'endingCursors' says where a read ends",
                option=name,
                anchor="an-option-of-the-other-kind-of-query",
            )
