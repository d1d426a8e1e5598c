"""What the command `zeh-spark` does: a thin shell around the publisher, and around the clients for
`tail`, `publish` and `producers`.

Exit codes: 0 done, 1 failed, with the reason on standard error, 2 wrong usage. A traceback is
always a bug of ours.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import datetime, timezone
from typing import Any

import click

import zeh_spark as package
from zeh_spark import publish as publishing
from zeh_spark import wire
from zeh_spark.errors import OptionError, StoreError, ZeroEventHubError
from zeh_spark.options import ClientOptions, parse, parse_size
from zeh_spark.publisher import Store, open_store, serving
from zeh_spark.publisher import load as loading
from zeh_spark.publisher.csv_rows import CsvFormat
from zeh_spark.publisher.load import Loaded, Source
from zeh_spark.publisher.store import UnknownFeedError
from zeh_spark.tailing import follow

_NUMBER = re.compile(r"-?[0-9.,]+( [KMG]?i?B)?")


class _Commands(click.Group):
    """Turns our errors into messages; what else there is, is a bug and shows itself."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except OptionError as exc:
            raise click.UsageError(str(exc)) from exc
        except ZeroEventHubError as exc:
            raise click.ClickException(str(exc)) from exc


_store = click.option(
    "--store",
    "url",
    default="sqlite:///feeds.db",
    show_default=True,
    envvar="ZEH_STORE",
    show_envvar=True,
    metavar="URL",
    help="Where the feeds are: sqlite:///FILE.",
)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package.__version__, prog_name="zeh-spark")
def zeh_spark() -> None:
    """Publish ZeroEventHub feeds, and look into them.

    \b
    Examples:
      zeh-spark create flights --partitions 4
      zeh-spark load flights flights.csv --key carrier
      zeh-spark serve --port 8080
      zeh-spark tail http://127.0.0.1:8080/flights --from first
    """


class _Size(click.ParamType):  # type: ignore[type-arg]  # generic in some versions only
    name = "size"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        try:
            return parse_size(str(value))
        except ValueError as exc:
            self.fail(str(exc), param, ctx)


def _name(_ctx: object, _param: object, value: str | None) -> str | None:
    if value is not None and not wire.NAME.fullmatch(value):
        raise click.BadParameter(f"{value!r} is not 1 to 100 letters, digits and . _ : @ = -")
    return value


_key = click.option(
    "--key", metavar="COLUMN", help="Column or field whose value chooses the partition."
)
_envelope = click.option(
    "--envelope", is_flag=True, help='Lines are {"key"?, "partition"?, "headers"?, "data"}.'
)
_batch = click.option(
    "--batch", metavar="NAME", callback=_name,
    help="Publish under this name: doing it again adds nothing, with other events it is refused.",
)  # fmt: skip


@zeh_spark.command()
@_store
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", default=8080, show_default=True, type=click.IntRange(0, 65535), help="0: any."
)
@click.option(
    "--staging-quota", default="64g", show_default=True, type=_Size(), metavar="SIZE",
    help="What each producer may have uploaded and not committed.",
)  # fmt: skip
def serve(url: str, host: str, port: int, staging_quota: int) -> None:
    """Serve the feeds of a store over HTTP, each at /FEED.

    Other commands work on the store meanwhile; new feeds are served at once.

    \b
    Example:
      zeh-spark serve --store sqlite:///feeds.db --host 0.0.0.0 --port 8080
    """
    with _opened(url) as store, serving.only_publisher(url), serving.listen(host, port) as listener:
        shown = f"[{host}]" if ":" in host else host
        base = f"http://{shown}:{listener.getsockname()[1]}"
        click.echo(f"Serving {url} at {base}; Ctrl-C stops.")
        for feed in store.feeds():
            click.echo(f"  {base}/{feed.name}  {_counted(feed.partitions, 'partition')}")
        sys.stdout.flush()
        serving.serve(store, listener, staging_quota)


@zeh_spark.command()
@click.argument("feed")
@click.option(
    "--partitions", default=4, show_default=True, type=int, help="For the feed's whole life."
)
@_store
def create(feed: str, partitions: int, url: str) -> None:
    """Make an empty feed, and the store if there is none.

    \b
    Example:
      zeh-spark create flights --partitions 4 --store sqlite:///feeds.db
    """
    with _opened(url, must_exist=False) as store:
        store.create(feed, partitions)
    click.echo(f"Feed {feed!r} with {_counted(partitions, 'partition')} is in {url}.")


@zeh_spark.command()
@click.argument("feed")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@_store
@_key
@_envelope
@click.option("--delimiter", default=",", show_default=True, metavar="CHAR", help="CSV: its comma.")
@click.option("--null", "nulls", multiple=True, metavar="TEXT", help="CSV: TEXT means null, too.")
@click.option(
    "--text", "texts", multiple=True, metavar="COLUMN",
    help="CSV: leave the numbers of COLUMN text, of every column with '*'.",
)  # fmt: skip
@click.option("--producer", metavar="NAME", callback=_name, help="Who publishes; else 'load'.")
@_batch
def load(
    feed: str,
    files: tuple[str, ...],
    url: str,
    key: str | None,
    envelope: bool,
    delimiter: str,
    nulls: tuple[str, ...],
    texts: tuple[str, ...],
    producer: str | None,
    batch: str | None,
) -> None:
    """Add the rows of files to a feed, all or nothing, also while it is served.

    FILE is NDJSON (.ndjson, .jsonl, .json), CSV with a header (.csv), each also with .gz, Parquet
    (.parquet), or - for NDJSON from standard input. A line or row becomes the data of one event.
    Without --key, and where the key is null, events are spread evenly.

    In CSV a field that is a JSON number stays that number, digit for digit; an empty field is null;
    any other is text (00123 too). Name columns of codes with --text: who reads the number 1.10 as a
    string may get 1.1.

    \b
    Examples:
      zeh-spark load flights 2013-*.parquet --key carrier
      zeh-spark load flights flights.csv --null NA --text tailnum --key carrier
      zeh-spark load flights 2013-01.csv --producer airport --batch 2013-01
      gunzip -c log.gz | zeh-spark load log -
      echo '{"key": "a", "headers": {"h": "1"}, "data": 42}' | zeh-spark load log - --envelope
    """
    if envelope and key:
        raise click.UsageError("--key and --envelope exclude each other: an envelope has its key.")
    if files.count("-") > 1:
        raise click.UsageError("Standard input can be loaded once.")
    if len(delimiter) != 1 or delimiter in '"\r\n':
        raise click.UsageError(f"--delimiter is one character, not {delimiter!r}.")
    stdin, form = sys.stdin.buffer, CsvFormat(delimiter, nulls, texts)
    sources = [Source(name, stdin, key, envelope, form) for name in files]
    begun = time.monotonic()
    with _opened(url) as store, _progress(files) as progress:
        try:
            name = producer or loading.PRODUCER
            call = loading.named_batch(store, feed, name, batch) if batch else None
            call = call or loading.next_batch(store, feed, name)
            loaded = loading.load(store, feed, sources, progress, call)
        except UnknownFeedError as exc:
            raise StoreError(f"{exc}; zeh-spark create {feed} --store {url} makes it") from exc
    seconds = time.monotonic() - begun
    if loaded.repeated:
        click.echo(f"Published before with the same {_counted(loaded.events, 'event')}: no change.")
        return
    click.echo(
        f"Loaded {_counted(loaded.events, 'event')}, {_size(loaded.bytes)}, into {feed!r} in "
        f"{seconds:.1f} s."
    )


@zeh_spark.command()
@_store
def feeds(url: str) -> None:
    """Show the feeds of a store: events, bytes, last commit."""
    with _opened(url) as store:
        rows = [
            (
                each.name,
                f"{each.partitions}",
                f"{each.events:,}",
                _size(each.size),
                _moment(each.time),
            )
            for each in store.feeds()
        ]
    click.echo(_table(("FEED", "PARTITIONS", "EVENTS", "SIZE", "LAST COMMIT"), rows))


@zeh_spark.command()
@click.argument("url")
@click.option(
    "--from", "start", type=click.Choice(["first", "last"]), default="last", show_default=True,
    help="Begin with the first event, or with the next one.",
)  # fmt: skip
@click.option("--headers", is_flag=True, help="Print whole events: partition, headers, data.")
@click.option("--no-follow", is_flag=True, help="Stop at the end instead of waiting for more.")
def tail(url: str, start: str, headers: bool, no_follow: bool) -> None:
    """Print the data of a feed's events, one on a line, as they come.

    \b
    Example:
      zeh-spark tail http://127.0.0.1:8080/flights --from first --no-follow | wc -l
    """
    cursor = wire.FIRST if start == "first" else wire.LAST
    out = sys.stdout.buffer
    try:
        for lines in follow(url, cursor, whole=headers, endless=not no_follow):
            out.writelines(line + b"\n" for line in lines)
            out.flush()
    except KeyboardInterrupt:
        pass  # how a tail ends
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # `| head` has enough


@zeh_spark.command()
@click.argument("url")
@click.option(
    "--producer", metavar="NAME", required=True, callback=_name,
    help="Who publishes: one name for each that does.",
)  # fmt: skip
@_batch
@_key
@_envelope
def publish(url: str, producer: str, batch: str | None, key: str | None, envelope: bool) -> None:
    """Publish standard input, NDJSON, to a running publisher: all of it or nothing, as one batch.

    \b
    Examples:
      zeh-spark publish http://127.0.0.1:8080/orders --producer till-7 < events.ndjson
      zeh-spark publish http://127.0.0.1:8080/orders --producer till-7 --batch 11-20 < day.ndjson
    """
    if envelope and key:
        raise click.UsageError("--key and --envelope exclude each other: an envelope has its key.")
    client = _publish_client(url)
    source, loaded = Source("-", sys.stdin.buffer, key, envelope), Loaded()
    what = (
        publishing.named_batch(producer, batch)
        if batch
        else publishing.plain_batch(client, producer)
    )
    answer = publishing.publish_chunks(
        client, what, lambda partitions: loading.chunks_of([source], partitions, loaded)
    )
    receipt, events = answer["receipt"], _counted(loaded.events, "event")
    if answer["status"] == "already-committed" and receipt["run"] != what.run:
        when = _moment(receipt["time"])
        click.echo(f"Published before, at {when}, with the same {events}: no change.")
        return
    click.echo(f"Published {events} as batch {receipt['batch']} of producer {what.producer!r}.")


@zeh_spark.command()
@click.argument("url")
@click.argument("producer", required=False)
@click.option("--last", default=10, show_default=True, type=click.IntRange(1, 1000), metavar="N")
def producers(url: str, producer: str | None, last: int) -> None:
    """Show who published to a feed; of one PRODUCER its state and its last batches.

    \b
    Examples:
      zeh-spark producers http://127.0.0.1:8080/orders
      zeh-spark producers http://127.0.0.1:8080/orders orders-job --last 3
    """
    client = _publish_client(url)
    found = [client.producer(producer)] if producer else client.producers()
    heads = ("PRODUCER", "LAST BATCH", "BATCHES", "LEVEL", "LAST COMMIT", "INCARNATION")
    rows = [
        (
            each["producer"] + (" (deleted)" if each["deleted"] else ""),
            f"{each['lastBatch']}",
            f"{each['receipts']:,}",
            f"{each['level']}",
            _moment(each["time"] or 0),
            each["incarnation"] or "",
        )
        for each in found
    ]
    click.echo(_table(heads, rows))
    if not producer:
        return
    heads = ("BATCH", "EVENTS", "PARTITION: NUMBERS", "COMMITTED", "CONTENT", "RUN")
    rows = [
        (
            f"{each['batch']}",
            f"{each['events']:,}",
            ", ".join(f"{r['partition']}: {r['first']}-{r['last']}" for r in each["ranges"]),
            _moment(each["time"]),
            each["digest"][:8],
            each["run"],
        )
        for each in client.receipts(producer, last)
    ]
    click.echo("\n" + _table(heads, rows))


@zeh_spark.command()
@click.argument("feed")
@click.argument("producer")
@_store
@click.confirmation_option(prompt="It will never publish again under this name. Go on?")
def delete_producer(feed: str, producer: str, url: str) -> None:
    """Let a producer publish no more, for ever. What it has published stays.

    \b
    Example:
      zeh-spark delete-producer orders till-7 --store sqlite:///feeds.db
    """
    with _opened(url) as store:
        store.delete_producer(feed, producer)
    click.echo(f"Producer {producer!r} of feed {feed!r} is deleted.")


def _publish_client(url: str) -> publishing.PublishClient:
    return publishing.PublishClient(parse(ClientOptions, {"url": url, "retryTimeout": "10s"}))


@contextmanager
def _opened(url: str, *, must_exist: bool = True) -> Iterator[Store]:
    if url == "memory:":
        raise click.UsageError("--store memory: ends with the command; use sqlite:///FILE.")
    with closing(open_store(url, must_exist=must_exist)) as store:
        yield store


@contextmanager
def _progress(files: tuple[str, ...]) -> Iterator[Callable[[int], object]]:
    """A bar by bytes, on a terminal, where the sizes are known."""
    known = all(os.path.isfile(name) for name in files)
    if not (known and sys.stderr.isatty()):
        yield lambda size: None
        return
    total = sum(os.path.getsize(name) for name in files)
    with click.progressbar(length=total, label="Loading", file=sys.stderr) as bar:
        yield bar.update


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as they need to be; numbers to the right."""
    widths = [max(len(cell) for cell in column) for column in zip(heads, *rows, strict=True)]
    align = [
        ">" if rows and all(_NUMBER.fullmatch(cell) for cell in column) else "<"
        for column in zip(*rows, strict=True)
    ] or ["<"] * len(heads)
    lines = []
    for row in [heads, *rows]:
        cells = (f"{cell:{a}{w}}" for cell, a, w in zip(row, align, widths, strict=True))
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _size(size: float) -> str:
    if size < 1024:
        return f"{size:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 1024 or unit == "GiB":
            break
    return f"{size:,.1f} {unit}"


def _moment(time_ms: int) -> str:
    if not time_ms:
        return "never"
    moment = datetime.fromtimestamp(time_ms / 1000, timezone.utc)
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"
