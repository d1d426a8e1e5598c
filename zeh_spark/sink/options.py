"""The options of the sink: `df.writeStream` and `df.write` with format `zeroeventhub`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from zeh_spark import wire
from zeh_spark.errors import OptionError
from zeh_spark.options import ClientOptions, option, parse, parse_partition_count, parse_size

_LEAST_UPLOAD, _MOST_UPLOAD = 64 << 10, 32 << 20
_OF_SPARK = {"checkpointlocation", "queryname"}
"""What Spark passes on of its own."""


def parse_name(text: str) -> str:
    if not wire.NAME.fullmatch(text):
        raise ValueError("must be 1 to 100 letters, digits and . _ : @ = -")
    return text


def parse_upload_bytes(text: str) -> int:
    if not _LEAST_UPLOAD <= (size := parse_size(text)) <= _MOST_UPLOAD:
        raise ValueError("must be from 64k to 32m")
    return size


def parse_remedy(pattern: str, form: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(f"must be {form}, as the error says that asks for it")
        return text

    return parse


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions(ClientOptions):
    """All options of `df.writeStream` and `df.write` with format `zeroeventhub`."""

    producer_id: str | None = option(
        parse_name, None, "who publishes; for a stream the query's name, if it has one"
    )
    batch_id: str | None = option(
        parse_name,
        None,
        "name of what is written; the same rows again under it add nothing. `none`: no name, each "
        "write adds",
        query="batch",
    )
    partition_count: int | None = option(
        parse_partition_count, None, "number of partitions that the feed has to have"
    )
    upload_bytes: int = option(
        parse_upload_bytes,
        "4m",
        "size of a request (64k to 32m), and half of that of its lines before compression",
    )
    accept_gap: str | None = option(
        parse_remedy(r"[\w-]+@-?\d+:\d+", "<incarnation>@<last>:<batch>"),
        None,
        "let a batch follow that one once, though others between them are missing",
    )
    replace_incarnation: str | None = option(
        parse_remedy(r"[\w-]+@-?\d+:[\w-]+", "<old>@<last>:<new>"),
        None,
        "let a new checkpoint go on once in the place of the old one",
    )
    keep_first: str | None = option(
        parse_remedy(
            r"[\w-]+:\d+:[0-9a-f]{8}|\S+:\d+:[0-9a-f]{8}:[0-9a-f]{8}",
            "<incarnation>:<batch>:<identity>, or <producer>:<batch>:<identity>:<identity now>",
        ),
        None,
        "keep what a batch was published with once, and drop the other rows it has now",
    )

    @property
    def remedies(self) -> dict[str, str]:
        given = {
            "acceptGap": self.accept_gap,
            "replaceIncarnation": self.replace_incarnation,
            "keepFirst": self.keep_first,
        }
        return {name: value for name, value in given.items() if value}


def refused_for_a_write(given: Mapping[str, str]) -> OptionError | None:
    """What stands against these being the options of a write, as far as is known before one."""
    try:
        parse(SinkOptions, _without_those_of_spark(given))
    except OptionError as exc:
        return exc
    return None


def sink_options(given: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Raises OptionError. A stream's query name stands in for `producerId`."""
    ours = _without_those_of_spark(given)
    name = next((value for key, value in given.items() if key.lower() == "queryname"), None)
    known = {each.lower() for each in ours}
    if streaming and name and "producerid" not in known:
        ours["producerId"] = name
    options = parse(SinkOptions, ours)
    if not options.producer_id:
        raise OptionError(
            "option 'producerId' is missing: the name under which this job publishes, for its "
            "whole life (a stream's queryName does the same)",
            option="producerId",
        )
    if streaming and options.batch_id:
        raise OptionError(
            "option 'batchId' is for df.write: a stream's batches have Spark's numbers",
            option="batchId",
        )
    return options


def _without_those_of_spark(given: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in given.items() if name.lower() not in _OF_SPARK}
