"""The group `zeh-spark`, and the commands that work on a publisher's store.

They are a thin shell around `publisher`, `store` and `loading`. The command that serves a store is
in `serve_command`, those that talk to a running publisher are in `feed_commands`. Runs on the
publisher's machine.

Rule for editors: exit codes are 0 for done, 1 for failed, with the reason on standard error, and 2
for wrong usage. A traceback is always a bug of ours.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

import zeh_spark as package
from zeh_spark.cli import (
    dead_letter_commands,
    feed_commands,
    outbox_commands,
    retention_commands,
    serve_command,
    store_commands,
    token_commands,
)
from zeh_spark.cli.outbox_commands import CONFIG
from zeh_spark.cli.parameters import (
    ALLOW,
    BATCH,
    ENVELOPE,
    KEEP_KEY,
    KEY,
    STORE,
    counted,
    kept_first,
    moment,
    name_of,
    opened,
    refuse_contradicting_keys,
    size_of,
    table,
)
from zeh_spark.errors import OptionError, PublisherError, StoreError, ZeroEventHubError
from zeh_spark.loading import load as loading
from zeh_spark.loading.csv_rows import CsvFormat
from zeh_spark.loading.load import Source
from zeh_spark.publisher import shown_url
from zeh_spark.publisher.config import Config, load_config, opened_tables
from zeh_spark.store.batches import Overrides, base
from zeh_spark.store.interface import UnknownFeedError


class _Commands(click.Group):
    """Turns our errors into messages. Any other error is a bug, and shows its traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except OptionError as exc:
            raise click.UsageError(_with_help(str(exc), exc)) from exc
        except PublisherError as exc:
            raise click.ClickException(_with_help(str(exc), exc)) from exc
        except ZeroEventHubError as exc:  # without advice on Spark's options
            raise click.ClickException(_with_help(exc.what, exc)) from exc


def _with_help(message: str, exc: ZeroEventHubError) -> str:
    """Return a message, and below it the address of its docs and the id of the request."""
    request = getattr(exc, "request_id", None)
    logged = f" (request id in the publisher's log: {request})" if request else ""
    return f"{message}\nSee {exc.help}{logged}"


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package.__version__, prog_name="zeh-spark")
def zeh_spark() -> None:
    """Publish, serve and inspect ZeroEventHub feeds.

    \b
    Examples:
      zeh-spark create flights --partitions 4
      zeh-spark load flights flights.csv --key carrier
      zeh-spark serve --port 8080
      zeh-spark tail http://127.0.0.1:8080/flights --from first
    """


@zeh_spark.command()
@click.argument("feed")
@click.option(
    "--partitions", default=4, show_default=True, type=int,
    help="Number of partitions, 1 to 1024. It cannot be changed later.",
)  # fmt: skip
@STORE
def create(feed: str, partitions: int, url: str) -> None:
    """Create an empty feed, and the store if it does not exist.

    \b
    Example:
      zeh-spark create flights --partitions 4 --store sqlite:///feeds.db
    """
    with opened(url, must_exist=False) as store:
        store.create(feed, partitions)
    click.echo(f"Feed {feed!r} with {counted(partitions, 'partition')} is in {shown_url(url)}.")


@zeh_spark.command()
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
    (.parquet); - is NDJSON from standard input.

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
    refuse_contradicting_keys(key, envelope, keep_key)
    if files.count("-") > 1:
        raise click.UsageError("Standard input can be loaded once. Give '-' once.")
    if len(delimiter) != 1 or delimiter in '"\r\n':
        raise click.UsageError(
            f"--delimiter has to be one character, not a quote or a line end: {delimiter!r} is "
            "not. Give the character between two fields."
        )
    stdin, form = sys.stdin.buffer, CsvFormat(delimiter, nulls, texts)
    sources = [Source(name, stdin, key, envelope, form, keep_key) for name in files]
    begun = time.monotonic()
    with opened(url) as store, _progress(files) as progress:
        try:
            name = producer or loading.PRODUCER
            call = loading.named_batch(store, feed, name, batch) if batch else None
            call = call or loading.next_batch(store, feed, name)
            overrides = Overrides.named(allowed)
            call = replace(call, overrides=overrides)
            loaded = loading.load(store, feed, sources, progress, call)
        except UnknownFeedError as exc:
            raise StoreError(
                f"{exc}; create it with zeh-spark create {feed} --store {shown_url(url)}",
                anchor="there-is-no-store-or-no-feed",
            ) from exc
    seconds = time.monotonic() - begun
    if loaded.dropped and loaded.receipt:
        kept = counted(loaded.receipt.events, "event")
        click.echo(kept_first(kept, moment(loaded.receipt.time), loaded.dropped))
        return
    if loaded.repeated:
        click.echo(f"Published before with the same {counted(loaded.events, 'event')}: no change.")
        return
    click.echo(
        f"Loaded {counted(loaded.events, 'event')}, {size_of(loaded.bytes)}, into {feed!r} in "
        f"{seconds:.1f} s."
    )


@zeh_spark.command()
@STORE
@CONFIG
def feeds(url: str, file: Path | None) -> None:
    """List the feeds of a store, with their partitions, events, size and last commit.

    With --config, list the tables that are feeds: their histories, and what holds rows back from
    readers.
    """
    if file:
        click.echo(_tables(load_config(file)))
        return
    with opened(url) as store:
        rows = [
            (
                each.name,
                f"{each.partitions}",
                f"{each.events:,}",
                size_of(each.size),
                moment(each.time),
            )
            for each in store.feeds()
        ]
    click.echo(table(("FEED", "PARTITIONS", "EVENTS", "SIZE", "LAST COMMIT"), rows))


def _tables(config: Config) -> str:
    """Return the feeds that are tables, as a table to print."""
    with opened_tables(config) as tables:
        rows = []
        for name, feed in tables.items():
            state = feed.state()
            partitions = f"{feed.partitions}"
            rows.append((name, feed.table.name, partitions, state.history, str(state.held or "-")))
    return table(("FEED", "TABLE", "PARTITIONS", "HISTORY", "HELD BACK BY"), rows)


@zeh_spark.command()
@click.argument("feed")
@click.argument("producer")
@STORE
@click.confirmation_option(
    prompt="It will never publish again under this name. Continue?",
    help="Delete without asking for confirmation.",
)
def delete_producer(feed: str, producer: str, url: str) -> None:
    """Permanently delete a producer: it can never publish to the feed again.

    That holds for its named batches, PRODUCER#NAME, too. The events that it has published stay.

    \b
    Example:
      zeh-spark delete-producer orders till-7 --store sqlite:///feeds.db
    """
    if "#" in producer:
        raise click.UsageError(
            f"{producer} is a named batch, which is deleted with its producer. Give the producer: "
            f"{base(producer)}."
        )
    with opened(url) as store:
        if not any(base(each.name) == producer for each in store.producers(feed)):
            raise StoreError(
                f"producer {producer!r} has never published to feed {feed!r}. Look at the feed's "
                f"producers with zeh-spark producers."
            )
        store.delete_producer(feed, producer)
    click.echo(f"Producer {producer!r} of feed {feed!r} is deleted.")


@contextmanager
def _progress(files: tuple[str, ...]) -> Iterator[Callable[[int], object]]:
    """Show a progress bar by bytes if standard error is a terminal and all sizes are known."""
    known = all(os.path.isfile(name) for name in files)
    if not (known and sys.stderr.isatty()):
        yield lambda size: None
        return
    total = sum(os.path.getsize(name) for name in files)
    with click.progressbar(length=total, label="Loading", file=sys.stderr) as bar:
        yield bar.update


for module in (
    serve_command, feed_commands, dead_letter_commands, retention_commands, store_commands,
    outbox_commands,
):  # fmt: skip
    for each in module.COMMANDS:
        zeh_spark.add_command(each)
zeh_spark.add_command(token_commands.token)
