"""What the command `zeh-spark` does: a thin shell around the publisher, and around the client for
`tail`.

Exit codes: 0 done, 1 failed, with the reason on standard error, 2 wrong usage. A traceback is
always a bug of ours.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import datetime, timezone
from typing import Any

import click

import zeh_spark as package
from zeh_spark import wire
from zeh_spark.errors import OptionError, StoreError, ZeroEventHubError
from zeh_spark.publisher import Store, open_store, serving
from zeh_spark.publisher.csv_rows import CsvFormat
from zeh_spark.publisher.load import Source
from zeh_spark.publisher.load import load as load_sources
from zeh_spark.publisher.store import UnknownFeedError
from zeh_spark.tailing import follow


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


@zeh_spark.command()
@_store
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", default=8080, show_default=True, type=click.IntRange(0, 65535), help="0: any."
)
def serve(url: str, host: str, port: int) -> None:
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
        serving.serve(store, listener)


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
@click.option("--key", metavar="COLUMN", help="Column or field whose value chooses the partition.")
@click.option(
    "--envelope", is_flag=True, help='Lines are {"key"?, "partition"?, "headers"?, "data"}.'
)
@click.option("--delimiter", default=",", show_default=True, metavar="CHAR", help="CSV: its comma.")
@click.option("--null", "nulls", multiple=True, metavar="TEXT", help="CSV: TEXT means null, too.")
@click.option(
    "--text", "texts", multiple=True, metavar="COLUMN",
    help="CSV: leave the numbers of COLUMN text, of every column with '*'.",
)  # fmt: skip
def load(
    feed: str,
    files: tuple[str, ...],
    url: str,
    key: str | None,
    envelope: bool,
    delimiter: str,
    nulls: tuple[str, ...],
    texts: tuple[str, ...],
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
            loaded = load_sources(store, feed, sources, progress)
        except UnknownFeedError as exc:
            raise StoreError(f"{exc}; zeh-spark create {feed} --store {url} makes it") from exc
    seconds = time.monotonic() - begun
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
    align = ["<", ">", ">", ">", "<"]
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
