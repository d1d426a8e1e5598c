"""The commands that list feeds, read them, and look at readers.

They need a publisher's address, or a query's checkpoint, and not the extra `publisher`. Only
`feeds` without an address looks into a store.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click
from click.core import ParameterSource

from zeh_spark.errors import StoreError
from zeh_spark.tools.cli.output import moment, print_result, print_table, write_lines
from zeh_spark.tools.cli.parameters import CONFIG, client_options, connects, opened, store_option
from zeh_spark.wire.option_values import MAX_PARTITIONS, parse_partitions
from zeh_spark.wire.phrases import in_ranges, size_of
from zeh_spark.wire.wire import by_partition

if TYPE_CHECKING:
    from zeh_spark.spark.source.offsets import Reached


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


@click.command()
@click.argument(
    "checkpoints", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="CHECKPOINT..."
)
@click.option(
    "--partitions", "lists", multiple=True, metavar="LIST",
    help="The partitions of a new query, like 0-3; once for each. Without it, one query gets all.",
)  # fmt: skip
@click.option(
    "--feed", metavar="NAME",
    help="The feed's name in the checkpoints: the option feedId, or the URL. Needed if the queries "
    "read several feeds.",
)  # fmt: skip
def cursors(checkpoints: tuple[Path, ...], lists: tuple[str, ...], feed: str | None) -> None:
    """Print the startingCursors with which new queries continue others: to split or merge them.

    CHECKPOINT is the checkpointLocation of a query that was stopped, a folder on this machine. Give
    those of all queries that the new ones continue. There is a line for each new query.

    A batch that is not committed is refused, because the sink may have a part of it. Each partition
    of the old queries has to be in one of the new ones, and the other way round.

    \b
    Examples:
      zeh-spark cursors checkpoints/orders --partitions 0-1 --partitions 2-3
      zeh-spark cursors checkpoints/orders-0-1 checkpoints/orders-2-3
    """
    stands = {path: committed_cursors(path, feed, complete=True) for path in checkpoints}
    _, n, reader = stands[checkpoints[0]]
    found: dict[int, str] = {}
    for path, (_, count, at) in stands.items():
        if (at.feed, at.id, count) != (reader.feed, reader.id, n):
            raise StoreError(
                f"{checkpoints[0]} reads {reader.feed!r} ({reader.id}) in {n} partitions, and "
                f"{path} reads {at.feed!r} ({at.id}) in {count}. Give checkpoints of one feed; if "
                f"it has moved, set feedId, and let each query commit a batch"
            )
        if twice := found.keys() & at.positions.keys():
            raise StoreError(
                f"partition {min(twice)} is in {path}, and in another of the checkpoints. Leave "
                f"one of them out"
            )
        found |= at.positions
    try:
        targets = [parse_partitions(each) for each in lists] or [tuple(range(n))]
    except ValueError as exc:
        raise click.UsageError(f"--partitions {exc}.") from None
    named = sorted(each for target in targets for each in target)
    if named != sorted(found):
        raise StoreError(
            f"the checkpoints have the partitions {in_ranges(sorted(found))} of {n}, and the new "
            f"queries {in_ranges(named)}. Each has to be in one new query: give the other "
            f"checkpoints, too, or other --partitions"
        )
    starts = [by_partition({each: found[each] for each in target}) for target in targets]
    print_result(
        "\n".join(map(json.dumps, starts)),
        feed=reader.feed,
        partitionCount=n,
        queries=[
            {"partitions": in_ranges(target), "startingCursors": start}
            for target, start in zip(targets, starts, strict=True)
        ],
    )


class Committed(NamedTuple):
    """The newest batch that a query has committed, the feed's number of partitions, and where."""

    batch: int
    n: int
    at: Reached


def committed_cursors(checkpoint: Path, feed: str | None, *, complete: bool = False) -> Committed:
    """Return what a query has committed of a feed.

    `feed` is its name in the checkpoint: the option `feedId`, or its URL; None if there is only
    one. With `complete`, a newer batch that was planned is refused.
    """
    from zeh_spark.spark.source.offsets import is_of_a_feed, reached, source_offsets

    def newest(folder: str) -> int:
        found = (each.name for each in (checkpoint / folder).iterdir())
        return max((int(each) for each in found if each.isdigit()), default=-1)

    try:
        batch = newest("commits")
        planned = newest("offsets") if complete else batch
        text = (checkpoint / "offsets" / str(batch)).read_text() if batch >= 0 else ""
        offsets = list(filter(is_of_a_feed, source_offsets(text) if text else ()))
    except (OSError, ValueError) as exc:
        raise StoreError(
            f"{checkpoint} is no checkpoint that can be read here: {exc}. Give the query's "
            f"checkpointLocation; copy it to this machine if it is elsewhere"
        ) from exc
    if complete and planned > batch:
        raise StoreError(
            f"batch {planned} of {checkpoint} was planned, and is not committed. Start the query "
            f"with its old options and the trigger availableNow, and try again when it has ended"
        )
    if batch < 0:
        raise StoreError(
            f"the query of {checkpoint} has committed no batch yet. Wait for the first one"
        )
    named = [each for each in offsets if feed in (None, each["feed"])]
    if len(named) != 1:
        known = ", ".join(repr(each["feed"]) for each in offsets) or "no feed"
        raise StoreError(
            f"the checkpoint {checkpoint} has {'several' if named else 'no'} committed offsets of "
            f"{repr(feed) if feed else 'feeds'}; it has {known}. Give the URL as in the query, or "
            f"its option feedId"
        )
    at, count = reached(named[0]), named[0]["partitionCount"] or 0
    if not count:
        raise StoreError(
            f"the checkpoint {checkpoint} has no cursors of {at.feed!r} yet. Wait for the first "
            f"batch"
        )
    return Committed(batch, count, at)
