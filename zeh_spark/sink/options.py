"""The options of the sink: `df.writeStream` and `df.write` with format `zeroeventhub`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from zeh_spark.errors import OptionError
from zeh_spark.options import (
    ClientOptions,
    FeedUrl,
    option,
    option_name,
    origin,
    parse,
    parse_partition_count,
    parse_size,
    prefixed,
    refuse_two_tokens,
)
from zeh_spark.protocol import wire

_LEAST_UPLOAD, _MOST_UPLOAD = 64 << 10, 32 << 20
DEAD_LETTER = "deadLetter"
"""The prefix of options that are for the dead-letter feed."""

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


def parse_override(pattern: str, form: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(f"must be {form}, as the error says that asks for it")
        return text

    return parse


parse_gap = parse_override(r"[\w-]+@-?\d+:\d+", "<incarnation>@<last>:<batch>")
parse_replacement = parse_override(r"[\w-]+@-?\d+:[\w-]+", "<old>@<last>:<new>")
parse_kept = parse_override(
    r"[\w-]+:\d+:[0-9a-f]{8}|\S+:\d+:[0-9a-f]{8}:[0-9a-f]{8}",
    "<incarnation>:<batch>:<identity>, or <producer>:<batch>:<identity>:<identity now>",
)


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
        parse_gap,
        None,
        "let a batch follow that one once, though others between them are missing",
    )
    replace_incarnation: str | None = option(
        parse_replacement,
        None,
        "let a new checkpoint go on once in the place of the old one",
    )
    keep_first: str | None = option(
        parse_kept,
        None,
        "keep what a batch was published with once, and drop the other rows it has now",
    )
    for_dead_letters: Mapping[str, Any] = prefixed(
        DEAD_LETTER,
        url="feed that gets the rows which cannot be published; without it they fail the batch",
        token="bearer token for that feed; without one it gets the credentials of `url` if it has "
        "the same origin, else none",
        token_file="file that holds that token, as `tokenFile`",
        accept_gap="`acceptGap` for that feed; without it `acceptGap` is for both",
        replace_incarnation="`replaceIncarnation` for that feed; else as above",
        keep_first="`keepFirst` for that feed; else as above",
    )

    @property
    def overrides(self) -> dict[str, str]:
        given = self.accept_gap, self.replace_incarnation, self.keep_first
        return {name: value for name, value in zip(wire.REMEDIES, given, strict=True) if value}

    @property
    def dead_letters(self) -> SinkOptions | None:
        """Those of a sink into the dead-letter feed, if there is one.

        Credentials are for an origin, and are never sent to another one by themselves. An override
        names the state of one feed: given for `url` it may fit both, after a lost checkpoint. Where
        they differ each needs its own: with one value for both, each feed would refuse what the
        other one asks for.
        """
        given = self.for_dead_letters
        if "url" not in given:
            return None
        own = replace(self, partition_count=None, for_dead_letters={})
        if origin(self.url.full) != origin(given["url"].full):
            own = replace(
                own,
                token=None,
                token_file=None,
                client_cert_file=None,
                client_key_file=None,
                http_headers={},
                secret_headers=frozenset(),
            )
        if given.keys() & {"token", "token_file"}:
            headers = {k: v for k, v in own.http_headers.items() if k != "authorization"}
            own = replace(
                own,
                token=None,
                token_file=None,
                http_headers=headers,
                secret_headers=own.secret_headers & headers.keys(),
            )
        return replace(own, **given)

    def check(self) -> None:
        ClientOptions.check(self)  # super() needs __class__, which slots=True has replaced
        given = self.for_dead_letters
        refuse_two_tokens(given, DEAD_LETTER)
        if "url" not in given:
            for name in given:
                public = option_name(name, DEAD_LETTER)
                raise OptionError(f"option {public!r} needs 'deadLetterUrl'", option=public)
        elif _place(given["url"]) == _place(self.url):
            raise same_feed(self)


def same_feed(options: SinkOptions) -> OptionError:
    return OptionError(
        f"option 'deadLetterUrl', {options.for_dead_letters['url']}, leads to the feed of 'url', "
        f"{options.url}: dead letters need a feed of their own, which readers of this one do not "
        f"read; zeh-spark create makes it",
        option="deadLetterUrl",
        anchor="deadletterurl-leads-to-the-feed-of-url",
    )


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
            anchor="producerid-is-missing",
        )
    if streaming and options.batch_id:
        raise OptionError(
            "option 'batchId' is for df.write: a stream's batches have Spark's numbers",
            option="batchId",
        )
    return options


def _place(url: FeedUrl) -> tuple[object, ...]:
    """Where a feed is, however it is written."""
    parts = urlsplit(url.full)
    return origin(url.full), parts.path.rstrip("/"), parts.query


def _without_those_of_spark(given: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in given.items() if name.lower() not in _OF_SPARK}
