"""The commands that list feeds, read them, and wait for readers: `feeds`, `tail` and `await`.

They need a publisher's address alone, and not the extra `publisher`. Only `feeds` without an
address looks into a store.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click
from click.core import ParameterSource

from zeh_spark.tools.cli.output import moment, print_result, print_table, write_lines
from zeh_spark.tools.cli.parameters import CONFIG, client_options, connects, opened, store_option
from zeh_spark.wire.option_values import MAX_PARTITIONS
from zeh_spark.wire.phrases import size_of


@click.command()
@click.argument("url", required=False)
@store_option("store_url")
@CONFIG
@connects
@click.pass_context
def feeds(
    ctx: click.Context, url: str | None, store_url: str, file: Path | None, connect: dict[str, str]
) -> None:
    """List the feeds of a running publisher, of a store, or of a settings file.

    With URL, the address of a publisher of zeh-spark without a feed, list the feeds that the token
    may read. Without it, list the feeds of a store, with their partitions, events, size and last
    commit. With --config, list the tables that are feeds: their histories, and what holds rows back
    from readers.

    \b
    Examples:
      zeh-spark feeds http://127.0.0.1:8080
      zeh-spark feeds --store sqlite:///feeds.db
    """
    given = ctx.get_parameter_source("store_url") is ParameterSource.COMMANDLINE
    if url and (file or given):
        raise click.UsageError("URL excludes --store and --config. Give one of them.")
    if url:
        _list_remote(url, connect)
    elif file:
        _list_tables(file)
    else:
        _list_stored(store_url)


def _list_remote(url: str, connect: dict[str, str]) -> None:
    from zeh_spark.client.http.discovery import index
    from zeh_spark.client.http.transport import Transport

    transport = Transport(client_options(url, connect))
    found = index(transport)
    rows = [
        (each["name"], f"{each['partitions']}", "yes" if each["takesBatches"] else "no")
        for each in found["feeds"]
    ]
    none = f"{transport.url} has no feeds that may be read with this token."
    print_table("feeds", ("FEED", "PARTITIONS", "TAKES BATCHES"), rows, found["feeds"], none)


def _list_stored(url: str) -> None:
    with opened(url) as store:
        found = list(store.feeds())
    rows = [
        (
            each.name,
            f"{each.partitions}",
            f"{each.events:,}",
            size_of(each.size),
            moment(each.time),
        )
        for each in found
    ]
    items = [
        {
            "name": each.name,
            "partitions": each.partitions,
            "events": each.events,
            "bytes": each.size,
            "time": each.time or None,
        }
        for each in found
    ]
    print_table("feeds", ("FEED", "PARTITIONS", "EVENTS", "SIZE", "LAST COMMIT"), rows, items)


def _list_tables(file: Path) -> None:
    # It needs the extra `publisher`, which client commands do not.
    from zeh_spark.service.app.config import load_config, opened_tables

    with opened_tables(load_config(file)) as tables:
        items = []
        for name, feed in tables.items():
            state = feed.state()
            held = str(state.held) if state.held else None
            items.append(
                {
                    "name": name,
                    "table": feed.table.name,
                    "partitions": feed.partitions,
                    "history": state.history,
                    "heldBackBy": held,
                }
            )
    rows = [tuple("-" if cell is None else f"{cell}" for cell in each.values()) for each in items]
    print_table("feeds", ("FEED", "TABLE", "PARTITIONS", "HISTORY", "HELD BACK BY"), rows, items)


@click.command()
@click.argument("url")
@click.option(
    "--from", "start", default="last", show_default=True, metavar="CURSOR",
    help="Begin with the first event of the feed (first), with the next one that is published "
    "(last), or after a cursor, which needs --partition in a feed of several partitions.",
)  # fmt: skip
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    metavar="N",
    help="Stop after N events of all partitions.",
)
@click.option(
    "--partition", type=click.IntRange(min=0), metavar="P",
    help="Only this partition, from 0.",
)  # fmt: skip
@click.option(
    "--partitions", type=click.IntRange(1, MAX_PARTITIONS), metavar="N",
    help="The number of partitions, for a publisher that does not tell it.",
)  # fmt: skip
@click.option("--headers", is_flag=True, help="Print whole events: partition, headers and data.")
@click.option(
    "--no-follow", is_flag=True, help="Stop at the end of the feed, instead of waiting for events."
)
@connects
def tail(
    url: str,
    start: str,
    limit: int | None,
    partition: int | None,
    partitions: int | None,
    headers: bool,
    no_follow: bool,
    connect: dict[str, str],
) -> None:
    """Print the data of a feed's events, one event on each line, as they arrive.

    \b
    Examples:
      zeh-spark tail http://127.0.0.1:8080/flights --from first --no-follow | wc -l
      zeh-spark tail http://127.0.0.1:8080/flights --from first --limit 10 --partition 2
    """
    from zeh_spark.client.http.tail import follow
    from zeh_spark.wire import wire

    cursor = {"first": wire.FIRST, "last": wire.LAST}.get(start, start)
    left = limit
    found = follow(
        url, cursor, connect, whole=headers, endless=not no_follow, partition=partition,
        partition_count=partitions,
    )  # fmt: skip
    try:
        for lines in found:
            write_lines(lines[:left])
            sys.stdout.flush()
            left = None if left is None else left - len(lines)
            if left is not None and left <= 0:
                break
    except KeyboardInterrupt:
        pass  # how a tail ends
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # `| head` has enough


@click.command("await")
@click.argument("url")
@click.argument("receipt")
@click.option(
    "--cursorset", required=True, metavar="NAME",
    help="The reader: the name under which it keeps its positions (option cursorSet).",
)  # fmt: skip
@click.option(
    "--timeout", type=click.FloatRange(0), default=60, show_default=True, metavar="SECONDS",
    help="How long to wait.",
)  # fmt: skip
@connects
def await_batch(
    url: str, receipt: str, cursorset: str, timeout: float, connect: dict[str, str]
) -> None:
    """Wait until a reader has committed a batch, and everything before it.

    RECEIPT is the cursor that `publish --json` prints. If the time is over, the command says how
    far the reader is, with exit code 3.

    \b
    Example:
      zeh-spark await http://127.0.0.1:8080/orders 17.0a1b2c3d --cursorset warehouse --timeout 300
    """
    from zeh_spark.client.visibility import wait_for

    wait_for(receipt, url, cursor_set=cursorset, timeout=timeout, **connect)
    said = f"The reader {cursorset!r} has committed the batch that ends at {receipt}."
    print_result(said, cursor=receipt, cursorset=cursorset, committed=True)
