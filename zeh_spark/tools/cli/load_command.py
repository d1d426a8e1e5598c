"""The command `load`, which loads files into a feed of a store: a thin shell around `loading`.

It works on the store itself, also while it is served.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from zeh_spark.errors import StoreError
from zeh_spark.tools.cli.output import print_result, progress
from zeh_spark.tools.cli.parameters import (
    ALLOW,
    BATCH,
    ENVELOPE,
    KEEP_KEY,
    KEY,
    STORE,
    name_of,
    opened,
    operator,
    refuse_contradicting_keys,
)
from zeh_spark.wire.phrases import counted, size_of

if TYPE_CHECKING:
    from zeh_spark.tools.loading.load import Loaded


@click.command()
@click.argument("feed")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@STORE
@KEY
@KEEP_KEY
@ENVELOPE
@click.option(
    "--delimiter", default=",", show_default=True, metavar="CHAR",
    help="CSV: the character between two fields.",
)  # fmt: skip
@click.option(
    "--null", "nulls", multiple=True, metavar="TEXT",
    help="CSV: a field TEXT means null, too. Can be repeated.",
)  # fmt: skip
@click.option(
    "--text", "texts", multiple=True, metavar="COLUMN",
    help="CSV: keep the numbers of COLUMN as text; '*' stands for every column. Can be repeated.",
)  # fmt: skip
@click.option(
    "--producer", metavar="NAME", callback=name_of,
    help="The producer's name, under which the events are published.  [default: load]",
)  # fmt: skip
@BATCH
@ALLOW
def load(
    feed: str,
    files: tuple[str, ...],
    url: str,
    key: str | None,
    keep_key: bool,
    envelope: bool,
    delimiter: str,
    nulls: tuple[str, ...],
    texts: tuple[str, ...],
    producer: str | None,
    batch: str | None,
    allowed: dict[str, str],
) -> None:
    """Load files into a feed of a store: all of their rows, or nothing.

    The feed may be served at the same time. A line or row becomes the data of one event. FILE is
    NDJSON (.ndjson, .jsonl, .json) or CSV with a header (.csv), either also with .gz, or Parquet
    (.parquet); - is NDJSON from standard input. Input without events is an error.

    An event without a key (no --key, or the key is null) goes to the next partition in turn: 1,000
    events to each. Each load begins with another partition.

    In CSV, a field that is a JSON number stays that number, digit for digit. An empty field is
    null. Any other field is text, 00123 too. Name columns of codes with --text: a reader that takes
    the number 1.10 as a string may get 1.1.

    \b
    Examples:
      zeh-spark load flights 2013-*.parquet --key carrier
      zeh-spark load flights flights.csv --null NA --text tailnum --key carrier
      zeh-spark load flights 2013-01.csv --producer airport --batch 2013-01
      gunzip -c log.gz | zeh-spark load log -
      echo '{"key": "a", "headers": {"h": "1"}, "data": 42}' | zeh-spark load log - --envelope
    """
    from zeh_spark.service.databases import shown_url
    from zeh_spark.service.store.batches import Overrides
    from zeh_spark.service.store.interface import UnknownFeedError
    from zeh_spark.tools.loading import load as loading
    from zeh_spark.tools.loading.csv_rows import CsvFormat
    from zeh_spark.tools.loading.load import Source
    from zeh_spark.tools.loading.one_batch import named_batch, next_batch

    refuse_contradicting_keys(key, envelope, keep_key)
    if files.count("-") > 1:
        raise click.UsageError("Standard input can be loaded once. Give '-' once.")
    if len(delimiter) != 1 or delimiter in '"\r\n':
        raise click.UsageError(
            f"--delimiter has to be one character, not a quote or a line end: {delimiter!r} is "
            "not. Give the character between two fields."
        )
    form = CsvFormat(delimiter, nulls, texts)
    stdin = Source("standard input", sys.stdin.buffer, key, envelope, form, keep_key)
    sources = [stdin if name == "-" else replace(stdin, name=name, stream=None) for name in files]
    begun = time.monotonic()
    with opened(url) as store:
        with progress("Loading", _size(files)) as bar:
            try:
                name = producer or loading.PRODUCER
                call = (
                    named_batch(store, feed, name, batch)
                    if batch
                    else next_batch(store, feed, name)
                )
                call = replace(call, overrides=Overrides.named(allowed), by=operator())
                loaded = loading.load(store, feed, sources, bar, call)
            except UnknownFeedError as exc:
                raise StoreError(
                    f"{exc}; create it with zeh-spark create {feed} --store {shown_url(url)}",
                    anchor="there-is-no-store-or-no-feed",
                ) from exc
        # Before the store is closed: Ctrl-C must not hide that the events are published.
        _print(loaded, feed, time.monotonic() - begun)


def _print(loaded: Loaded, feed: str, seconds: float) -> None:
    events = counted(loaded.events, "event")
    outcome = "published"
    said = f"Loaded {events}, {size_of(loaded.bytes)}, into {feed!r} in {seconds:.1f} s."
    if loaded.dropped and loaded.receipt:
        outcome, why = "dropped", loaded.content.dropped("keepFirst", loaded.receipt)
        said = f"Batch {loaded.receipt.producer!r}: {why}. Nothing was added."
    elif loaded.repeated:
        outcome, said = "repeated", f"Published before with the same {events}: no change."
    print_result(
        said, feed=feed, outcome=outcome, events=loaded.events, bytes=loaded.bytes,
        dropped=loaded.dropped, seconds=round(seconds, 3),
    )  # fmt: skip


def _size(files: tuple[str, ...]) -> int | None:
    """Return the bytes of all files; None if one of them is no file on disk."""
    known = all(os.path.isfile(name) for name in files)
    return sum(os.path.getsize(name) for name in files) if known else None
