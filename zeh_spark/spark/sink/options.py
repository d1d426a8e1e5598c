"""The options of the sink: `df.writeStream` and `df.write` with format `zeroeventhub`."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from zeh_spark.client.options.client_options import NO_TOKENS, ClientOptions, refuse_two_tokens
from zeh_spark.client.options.given import parse
from zeh_spark.client.options.option_metadata import option, option_name, prefixed
from zeh_spark.errors import OptionError
from zeh_spark.wire import wire
from zeh_spark.wire.option_values import (
    FeedUrl,
    origin,
    parse_bool,
    parse_partition_count,
    parse_size,
    parse_value,
)

_LEAST_UPLOAD, _MOST_UPLOAD = 64 << 10, 32 << 20
DEAD_LETTER = "deadLetter"
"""The prefix of the options for the dead-letter feed."""

OF_SPARK = {"checkpointlocation", "queryname"}
"""Options that Spark passes to the sink of its own accord, in lower case."""

NO_NAME, OF_STREAM = "none", "stream"
"""The `batchId` of a write that adds its rows each time, and of one whose name is the stream's
micro-batch.

Rejected: to take the micro-batch without being told so. Only tasks see whether a write is inside a
foreachBatch, so a forgotten name would be found seconds later, and once in each of them.
"""


def parse_name(text: str) -> str:
    """Return a name of a producer or a batch. Raises ValueError if it is not valid."""
    if not wire.NAME.fullmatch(text):
        raise ValueError("must be 1 to 100 letters, digits and . _ : @ = -")
    return parse_value(text)


def parse_batch(text: str) -> str:
    """Return a batch's name, or one of the words for none, as `parse_name` does."""
    return OF_STREAM if text.lower() == OF_STREAM else parse_name(text)


def parse_upload_bytes(text: str) -> int:
    """Return a size in bytes. Raises ValueError if it is not one from 64k to 32m."""
    if not _LEAST_UPLOAD <= (size := parse_size(text)) <= _MOST_UPLOAD:
        raise ValueError("must be from 64k to 32m")
    return size


def parse_starting(text: str) -> dict[int, int]:
    """Return first numbers by partition. Raises ValueError if the text is not valid."""
    found = [re.fullmatch(r"(\d{1,4}):(\d{1,16})", each.strip()) for each in text.split(",")]
    numbers = {int(each[1]): int(each[2]) for each in found if each}
    if len(numbers) < len(found):
        raise ValueError("must be partitions with their first numbers, like 0:1000,1:2000")
    return numbers


def parse_override(pattern: str, form: str) -> Callable[[str], str]:
    """Return a parser of an override, which has the pattern that an error told."""

    def parse(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(f"must be {form}, copied from the error that names this option")
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
        parse_name,
        "name under which this job publishes, for its whole life; by default a stream's query name",
    )
    batch_id: str | None = option(
        parse_batch,
        "name of a batch, required for `df.write`: the same rows written again under this name add "
        "nothing. With `none` each write adds its rows; with `stream`, in a foreachBatch, the "
        "number of the stream's micro-batch is the name",
        query="batch",
    )
    partition_count: int | None = option(
        parse_partition_count, "number of partitions that the feed must have"
    )
    upload_bytes: int = option(
        parse_upload_bytes,
        "maximum size of a request after compression, from 64k to 32m; before compression, its "
        "lines have at most twice that",
        default="4m",
    )
    accept_gap: str | None = option(
        parse_gap,
        "allow one batch to follow another although batches between them are missing. The error "
        "contains the value",
    )
    replace_incarnation: str | None = option(
        parse_replacement,
        "allow a new checkpoint to replace the old one, once. The error contains the value",
    )
    keep_first: str | None = option(
        parse_kept,
        "keep the rows that a batch was published with, and drop the different rows that it has "
        "now. The error contains the value",
    )
    starting_sequence: Mapping[int, int] | None = option(
        parse_starting,
        "first sequence numbers of a new producer, by partition, like `0:1000,1:2000`, to continue "
        "the numbers of another system. Named batches have numbers of their own",
    )
    keep_origin: bool = option(
        parse_bool,
        "keep where each event was first published, in the header `zeh-origin`: for queries that "
        "relay a feed. The DataFrame needs the column `headers` with all headers of the feed",
        default="false",
    )
    keep_key: bool = option(
        parse_bool,
        "keep the key of each event in the header `zeh-key`, as Kafka does; readers get it in the "
        "column `key`. The DataFrame needs the column `key`; a key has at most 1,024 bytes",
        default="false",
    )
    for_dead_letters: Mapping[str, Any] = prefixed(
        DEAD_LETTER,
        url="feed for the rows that cannot be published; without it, such a row fails the batch",
        token="bearer token for that feed; by default the credentials of `url` if both have the "
        "same origin, otherwise none",
        token_file="file with that token, like `tokenFile`",
        accept_gap="`acceptGap` for that feed; by default the value of `acceptGap`",
        replace_incarnation="`replaceIncarnation` for that feed; by default the value of "
        "`replaceIncarnation`",
        keep_first="`keepFirst` for that feed; by default the value of `keepFirst`",
    )

    @property
    def overrides(self) -> dict[str, str]:
        """The overrides that are given, by their names on the wire."""
        given = self.accept_gap, self.replace_incarnation, self.keep_first
        return {name: value for name, value in zip(wire.REMEDIES, given, strict=True) if value}

    @property
    def dead_letters(self) -> SinkOptions | None:
        """The options of a sink into the dead-letter feed; None if there is no such feed.

        Credentials are for an origin, and are never sent to another one by default. An override
        names the state of one feed: given for `url` it may fit both, after a lost checkpoint. If
        the states differ, each feed needs its own override: with one value for both, each feed
        would refuse what the other one asks for.
        """
        given = self.for_dead_letters
        if "url" not in given:
            return None
        own = replace(self, partition_count=None, for_dead_letters={})
        if origin(self.url.full) != origin(given["url"].full):
            own = replace(
                own,
                **NO_TOKENS,
                client_cert_file=None,
                client_key_file=None,
                http_headers={},
                secret_headers=frozenset(),
            )
        if given.keys() & {"token", "token_file"}:
            headers = {k: v for k, v in own.http_headers.items() if k != "authorization"}
            own = replace(
                own,
                **NO_TOKENS,
                http_headers=headers,
                secret_headers=own.secret_headers & headers.keys(),
            )
        return replace(own, **given)

    def check(self) -> None:
        """Check options that depend on each other. Raises OptionError."""
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
    """Return the error for dead letters that would go to the feed itself."""
    return OptionError(
        f"option 'deadLetterUrl', {options.for_dead_letters['url']}, leads to the feed of 'url', "
        f"{options.url}. Dead letters need a feed of their own, which readers of this one do not "
        f"read: create it with zeh-spark create",
        option="deadLetterUrl",
        anchor="deadletterurl-leads-to-the-feed-of-url",
    )


def sink_options(
    given: Mapping[str, str], *, streaming: bool, also: Collection[str] = frozenset()
) -> SinkOptions:
    """Return the options of a sink. By default `producerId` is a stream's query name.

    `also` has the public names of options that may be given, too, and are passed over.
    """
    ours = {key: value for key, value in given.items() if key.lower() not in OF_SPARK}
    name = next((value for key, value in given.items() if key.lower() == "queryname"), None)
    known = {each.lower() for each in ours}
    if streaming and name and "producerid" not in known:
        ours["producerId"] = name
    options = parse(SinkOptions, ours, also)
    if not options.producer_id:
        raise OptionError(
            "option 'producerId' is missing: the name under which this job publishes, all its "
            "life. Set it, or for a stream queryName, which does the same",
            option="producerId",
            anchor="producerid-is-missing",
        )
    if not streaming and options.batch_id is None:
        raise OptionError(
            "option 'batchId' is missing: df.write needs a name for what it writes, so that the "
            "same rows written again under it add nothing. Set one, like batchId=2026-11-20; "
            "batchId=stream in a foreachBatch; or batchId=none to add the rows each time",
            option="batchId",
            anchor="batchid-is-missing",
        )
    if streaming and options.batch_id:
        raise OptionError(
            "option 'batchId' is for df.write: a stream's batches have Spark's numbers. Remove it",
            option="batchId",
        )
    if options.starting_sequence and options.batch_id not in {None, OF_STREAM}:
        raise OptionError(
            "option 'startingSequence' is for the batches of a stream. Remove it",
            option="startingSequence",
        )
    return options


def _place(url: FeedUrl) -> tuple[object, ...]:
    """Return what is equal for two URLs of the same feed."""
    parts = urlsplit(url.full)
    return origin(url.full), parts.path.rstrip("/"), parts.query
