"""The options of the sink: `df.writeStream` and `df.write` with format `zeroeventhub`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from zeh_spark.errors import OptionError
from zeh_spark.options import (
    ClientOptions,
    FeedUrl,
    option,
    origin,
    parse,
    parse_partition_count,
    parse_size,
    parse_text,
    parse_token,
    parse_url,
)
from zeh_spark.protocol import wire

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


parse_gap = parse_remedy(r"[\w-]+@-?\d+:\d+", "<incarnation>@<last>:<batch>")
parse_replacement = parse_remedy(r"[\w-]+@-?\d+:[\w-]+", "<old>@<last>:<new>")
parse_kept = parse_remedy(
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
    dead_letter_url: FeedUrl | None = option(
        parse_url,
        None,
        "feed that gets the rows which cannot be published; without it they fail the batch",
    )
    dead_letter_token: str | None = option(
        parse_token,
        None,
        "bearer token for that feed; without one it gets the credentials of `url` if it has the "
        "same origin, else none",
        repr=False,
    )
    dead_letter_token_file: str | None = option(
        parse_text, None, "file that holds that token, as `tokenFile`", repr=False
    )
    dead_letter_accept_gap: str | None = option(
        parse_gap, None, "`acceptGap` for that feed; without it `acceptGap` is for both"
    )
    dead_letter_replace_incarnation: str | None = option(
        parse_replacement, None, "`replaceIncarnation` for that feed; else as above"
    )
    dead_letter_keep_first: str | None = option(
        parse_kept, None, "`keepFirst` for that feed; else as above"
    )

    @property
    def overrides(self) -> dict[str, str]:
        given = self.accept_gap, self.replace_incarnation, self.keep_first
        return {name: value for name, value in zip(wire.REMEDIES, given, strict=True) if value}

    @property
    def dead_letters(self) -> SinkOptions | None:
        """Those of a sink into the dead-letter feed, if there is one.

        Credentials are for an origin, and are never sent to another one by themselves. A remedy
        names the state of one feed: given for `url` it may well fit both [after a lost checkpoint],
        but where they differ each needs its own [with one value for both, each feed would refuse
        what the other one asks for].
        """
        if self.dead_letter_url is None:
            return None
        own = replace(
            self,
            url=self.dead_letter_url,
            dead_letter_url=None,
            partition_count=None,
            accept_gap=self.dead_letter_accept_gap or self.accept_gap,
            replace_incarnation=self.dead_letter_replace_incarnation or self.replace_incarnation,
            keep_first=self.dead_letter_keep_first or self.keep_first,
        )
        if origin(self.url.full) != origin(self.dead_letter_url.full):
            own = replace(
                own,
                token=None,
                token_file=None,
                client_cert_file=None,
                client_key_file=None,
                http_headers={},
                secret_headers=frozenset(),
            )
        if self.dead_letter_token or self.dead_letter_token_file:
            headers = {k: v for k, v in own.http_headers.items() if k != "authorization"}
            own = replace(
                own,
                token=self.dead_letter_token,
                token_file=self.dead_letter_token_file,
                http_headers=headers,
                secret_headers=own.secret_headers & headers.keys(),
            )
        return own

    def check(self) -> None:
        ClientOptions.check(self)  # super() needs __class__, which slots=True has replaced
        if self.dead_letter_token and self.dead_letter_token_file:
            raise OptionError(
                "options 'deadLetterToken' and 'deadLetterTokenFile' exclude each other",
                option="deadLetterTokenFile",
            )
        if self.dead_letter_url is None:
            for name, value in (
                ("deadLetterToken", self.dead_letter_token),
                ("deadLetterTokenFile", self.dead_letter_token_file),
                ("deadLetterAcceptGap", self.dead_letter_accept_gap),
                ("deadLetterReplaceIncarnation", self.dead_letter_replace_incarnation),
                ("deadLetterKeepFirst", self.dead_letter_keep_first),
            ):
                if value:
                    raise OptionError(f"option {name!r} needs 'deadLetterUrl'", option=name)
        elif _place(self.dead_letter_url) == _place(self.url):
            raise same_feed(self)


def same_feed(options: SinkOptions) -> OptionError:
    return OptionError(
        f"option 'deadLetterUrl', {options.dead_letter_url}, leads to the feed of 'url', "
        f"{options.url}: dead letters need a feed of their own, which readers of this one do not "
        f"read; zeh-spark create makes it",
        option="deadLetterUrl",
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
