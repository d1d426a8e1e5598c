"""The commands that talk to a running publisher: `tail`, `publish`, `producers`, `audit`.

They need its address alone, never its store.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from zeh_spark.audit.auditing import Audit
from zeh_spark.audit.findings import Difference
from zeh_spark.cli.parameters import (
    ALLOW,
    BATCH,
    ENVELOPE,
    KEEP_KEY,
    KEY,
    PATIENCE,
    connects,
    counted,
    kept_first,
    moment,
    name_of,
    refuse_contradicting_keys,
    table,
)
from zeh_spark.cli.tail import follow
from zeh_spark.client.publish_client import PublishClient
from zeh_spark.errors import PublishError, RowError, StoreError
from zeh_spark.loading.load import Loaded, Source, bad_line, events_of
from zeh_spark.options import ClientOptions, parse
from zeh_spark.protocol import wire
from zeh_spark.protocol.problems import FORBIDDEN
from zeh_spark.publish import Producer


@click.command()
@click.argument("url")
@click.option(
    "--from", "start", type=click.Choice(["first", "last"]), default="last", show_default=True,
    help="Begin with the first event of the feed, or with the next one that is published.",
)  # fmt: skip
@click.option("--headers", is_flag=True, help="Print whole events: partition, headers and data.")
@click.option(
    "--no-follow", is_flag=True, help="Stop at the end of the feed, instead of waiting for events."
)
@connects
def tail(url: str, start: str, headers: bool, no_follow: bool, connect: dict[str, str]) -> None:
    """Print the data of a feed's events, one event on each line, as they arrive.

    \b
    Example:
      zeh-spark tail http://127.0.0.1:8080/flights --from first --no-follow | wc -l
    """
    cursor = wire.FIRST if start == "first" else wire.LAST
    out = sys.stdout.buffer
    try:
        for lines in follow(url, cursor, connect, whole=headers, endless=not no_follow):
            out.writelines(line + b"\n" for line in lines)
            out.flush()
    except KeyboardInterrupt:
        pass  # how a tail ends
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # `| head` has enough


@click.command()
@click.argument("url")
@click.option(
    "--producer", metavar="NAME", required=True, callback=name_of,
    help="The producer's name. Give each program that publishes a name of its own.",
)  # fmt: skip
@BATCH
@ALLOW
@KEY
@KEEP_KEY
@ENVELOPE
@connects
def publish(
    url: str,
    producer: str,
    batch: str | None,
    allowed: dict[str, str],
    key: str | None,
    keep_key: bool,
    envelope: bool,
    connect: dict[str, str],
) -> None:
    """Publish events from standard input (NDJSON) as one batch: all of them, or nothing.

    Each line becomes the data of one event. Input without events is an error, and publishes
    nothing.

    \b
    Examples:
      zeh-spark publish http://127.0.0.1:8080/orders --producer till-7 < events.ndjson
      zeh-spark publish http://127.0.0.1:8080/orders --producer till-7 --batch 11-20 < day.ndjson
    """
    refuse_contradicting_keys(key, envelope, keep_key)
    how: dict[str, Any] = {**connect, **PATIENCE}
    source, by = Source("-", sys.stdin.buffer, key, envelope), Producer(url, producer, **how)
    with by.batch(batch, allow=allowed) as open_batch:
        given = False
        for event in events_of(source, Loaded()):
            given = True
            try:
                open_batch.add(
                    event.data,
                    key=event.key,
                    partition=event.partition,
                    headers=event.headers,
                    keep_key=keep_key,
                )
            except RowError as exc:
                raise bad_line(source, event.line, exc.reason) from None
        if not given:
            raise StoreError(
                "standard input has no events: nothing was published",
                anchor="the-input-cannot-be-loaded",
            )
    receipt = open_batch.receipt
    events = counted(receipt.events, "event")
    if open_batch.dropped:
        click.echo(kept_first(events, moment(receipt.time), open_batch.dropped))
        return
    if receipt.run != by.run:
        when = moment(receipt.time)
        click.echo(f"Published before, at {when}, with the same {events}: no change.")
        return
    name = f"{producer}#{batch}" if batch else producer
    click.echo(f"Published {events} as batch {receipt.batch} of producer {name!r}.")


@click.command()
@click.argument("url")
@click.argument("producer", required=False)
@click.option(
    "--last", default=10, show_default=True, type=click.IntRange(1, 1000), metavar="N",
    help="How many batches of PRODUCER to show, the newest first.",
)  # fmt: skip
@click.option(
    "--all", "every", is_flag=True,
    help="Show each named batch on a line of its own, not one line for all of a producer.",
)  # fmt: skip
@connects
def producers(
    url: str, producer: str | None, last: int, every: bool, connect: dict[str, str]
) -> None:
    """List the producers of a feed, or show one PRODUCER and its last batches.

    LAST BATCH is the number of the last batch of the producer's INCARNATION. An incarnation is a
    Spark checkpoint, `plain` (load, publish: no memory of its own) or `batch` (a named batch: batch
    K of producer P is shown as producer P#K). LEVEL counts the starts that have published. CONTENT
    is the beginning of the digest of a batch's events. RUN is the start that committed the batch.

    \b
    Examples:
      zeh-spark producers http://127.0.0.1:8080/orders
      zeh-spark producers http://127.0.0.1:8080/orders orders-job --last 3
      zeh-spark producers http://127.0.0.1:8080/orders orders-job#2026-11-20
    """
    if producer == "":
        raise click.UsageError("PRODUCER is empty. Give a producer's name, or leave it out.")
    client = PublishClient(parse(ClientOptions, {"url": url, **connect, **PATIENCE}))
    found = list(client.producers()) if producer is None else [client.producer(producer)]
    if producer and not found[0]["receipts"] and not found[0]["deleted"]:
        named = _named_batches(client, producer)
        if not named:
            raise StoreError(
                f"producer {producer!r} has never published to {url}. List the feed's producers "
                f"with zeh-spark producers {url}."
            )
        found, producer, every = named, None, True
    heads = ("PRODUCER", "LAST BATCH", "BATCHES", "LEVEL", "LAST COMMIT", "INCARNATION")
    rows = [
        (
            each["producer"] + (" (deleted)" if each["deleted"] else ""),
            f"{each['lastBatch']}",
            f"{each['receipts']:,}",
            f"{each['level']}",
            moment(each["time"] or 0),
            each["incarnation"] or "",
        )
        for each in (found if every or producer else _named_together(found))
    ]
    click.echo(table(heads, rows))
    if not producer:
        return
    heads = ("BATCH", "EVENTS", "PARTITION: NUMBERS", "COMMITTED", "CONTENT", "RUN")
    rows = [
        (
            f"{each['batch']}",
            f"{each['events']:,}",
            ", ".join(f"{r['partition']}: {r['first']}-{r['last']}" for r in each["ranges"]),
            moment(each["time"]),
            each["digest"][:8],
            each["run"],
        )
        for each in _receipts(client, producer, last)
    ]
    click.echo("\n" + table(heads, rows))


@click.command()
@click.argument("url")
@click.option("--producer", metavar="NAME", help="Check only this producer and its named batches.")
@connects
def audit(url: str, producer: str | None, connect: dict[str, str]) -> None:
    """Check that every published batch is on a feed once and unaltered.

    The command reads the whole feed and the receipts of all producers, as of now. It compares
    positions, sequence numbers, content and the chain of receipts. It prints how much was checked,
    or the first difference, with exit code 1.

    \b
    Examples:
      zeh-spark audit http://127.0.0.1:8080/orders
      zeh-spark audit http://127.0.0.1:8080/orders --producer orders-job
    """
    if producer == "":
        raise click.UsageError("NAME is empty. Give a producer's name, or leave --producer out.")
    job = Audit(url, producer, connect)
    with _progress(job.head) as progress:
        found = job.run(progress)
    if isinstance(found, Difference):
        raise click.ClickException(f"{url} is not as published:\n{found}")
    click.echo(found)


def _named_batches(client: PublishClient, producer: str) -> list[dict[str, Any]]:
    """Return the named batches of a producer, as far as the token may see them."""
    try:
        return [each for each in client.producers() if each["producer"].startswith(f"{producer}#")]
    except PublishError as exc:
        if exc.problem != FORBIDDEN.name:
            raise
        return []


@contextmanager
def _progress(positions: int) -> Iterator[Callable[[int], object]]:
    """Show a progress bar by positions of the feed if standard error is a terminal."""
    if not sys.stderr.isatty():
        yield lambda more: None
        return
    steps = max(1, positions // 200)
    with click.progressbar(
        length=positions, label="Auditing", file=sys.stderr, update_min_steps=steps
    ) as bar:
        yield bar.update


def _receipts(client: PublishClient, producer: str, limit: int) -> list[dict[str, Any]]:
    """Return the newest `limit` receipts of a producer, the newest first."""
    found: list[dict[str, Any]] = []
    below = None
    while len(found) < limit and (some := client.receipts(producer, limit - len(found), below)):
        found += some
        below = some[-1]["number"]
    return found


def _named_together(found: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield producers by name, with one row for all named batches of a producer.

    The row of named batches has the count of all, and the rest of the batch with the newest commit.
    """
    names = sorted({each["producer"].partition("#")[:2] for each in found})
    for name, named in names:
        group = [each for each in found if each["producer"].partition("#")[:2] == (name, named)]
        newest = max(group, key=lambda each: each["time"] or 0)
        total = {"receipts": sum(each["receipts"] for each in group)}
        yield {**newest, "producer": f"{name}#…", **total} if named else newest


COMMANDS = (tail, publish, producers, audit)
