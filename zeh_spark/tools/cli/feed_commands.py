"""The commands that publish to a feed, and check it: `publish`, `producers`, `audit`.

They need its address alone, never its store, and not the extra `publisher`.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from zeh_spark.errors import OutcomeUnknownError, PublishError, RowError, StoreError
from zeh_spark.tools.cli.output import (
    moment,
    print_answer,
    print_difference,
    print_result,
    print_table,
    progress,
    table,
    without_warnings,
)
from zeh_spark.tools.cli.parameters import (
    ALLOW,
    BATCH,
    ENVELOPE,
    KEEP_KEY,
    KEY,
    PATIENCE,
    client_options,
    connects,
    name_of,
    refuse_contradicting_keys,
)
from zeh_spark.wire.phrases import counted

if TYPE_CHECKING:
    from zeh_spark.client.http.publish_client import PublishClient
    from zeh_spark.client.open_batch import OpenBatch
    from zeh_spark.tools.audit.findings import Difference, Tally


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
    from zeh_spark.client.producer import Producer
    from zeh_spark.tools.loading.load import Source, bad_line, events_of, without_events

    refuse_contradicting_keys(key, envelope, keep_key)
    how: dict[str, Any] = {**connect, **PATIENCE}
    by = Producer(url, producer, **how)
    with (
        without_warnings("zeh_spark.client.open_batch"),
        progress("Publishing", _size_of_stdin()) as bar,
        _found_out(by.batch(batch, allow=allowed)) as open_batch,
    ):
        source = Source("standard input", sys.stdin.buffer, key, envelope)
        given = False
        for event in events_of(source, bar):
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
            raise without_events(source.name)
    receipt = open_batch.receipt
    name = f"{producer}#{batch}" if batch else producer
    events, when = counted(receipt.events, "event"), moment(receipt.time)
    outcome, said = (
        "published",
        f"Published {events} as batch {receipt.batch} of producer {name!r}.",
    )
    if open_batch.dropped:
        outcome, said = "dropped", f"Batch {name!r}: {open_batch.drops}. Nothing was added."
    elif receipt.run != by.run:
        outcome, said = (
            "repeated",
            f"Published before, at {when}, with the same {events}: no change.",
        )
    print_result(
        said, outcome=outcome, producer=name, batch=receipt.batch, events=receipt.events,
        dropped=open_batch.dropped, time=receipt.time, cursor=receipt.cursor,
    )  # fmt: skip


@contextmanager
def _found_out(batch: OpenBatch) -> Iterator[OpenBatch]:
    """Publish a batch, and find out what became of it if Ctrl-C interrupts its commit."""
    try:
        with batch:
            yield batch
    except KeyboardInterrupt:
        if not batch.in_doubt:
            raise
        try:
            receipt = batch.settle()
        except KeyboardInterrupt:
            raise OutcomeUnknownError(
                "whether the events were published is not known, because the command was "
                "interrupted twice. Before you publish them again, look at zeh-spark producers"
            ) from None
        if receipt is None:
            raise


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
    from zeh_spark.client.http.publish_client import PublishClient

    if producer == "":
        raise click.UsageError("PRODUCER is empty. Give a producer's name, or leave it out.")
    client = PublishClient(client_options(url, connect))
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
    if not producer:
        print_table("producers", heads, rows, found)
        return
    text = table(heads, rows)
    receipts = _receipts(client, producer, last)
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
        for each in receipts
    ]
    print_answer(f"{text}\n\n{table(heads, rows)}", producers=found, receipts=receipts)


@click.command()
@click.argument("url")
@click.option("--producer", metavar="NAME", help="Check only this producer and its named batches.")
@connects
def audit(url: str, producer: str | None, connect: dict[str, str]) -> None:
    """Check that every published batch is on a feed once and unaltered.

    The command reads the whole feed and the receipts of all producers, as of now. It compares
    positions, sequence numbers, content and the chain of receipts. It prints how much was checked,
    or the first difference, with exit code 3.

    \b
    Examples:
      zeh-spark audit http://127.0.0.1:8080/orders
      zeh-spark audit http://127.0.0.1:8080/orders --producer orders-job
    """
    from zeh_spark.tools.audit.auditing import Audit
    from zeh_spark.tools.audit.findings import Difference

    if producer == "":
        raise click.UsageError("NAME is empty. Give a producer's name, or leave --producer out.")
    job = Audit(url, producer, connect)
    with progress("Auditing", job.head) as bar:
        found = job.run(bar)
    if isinstance(found, Difference):
        text = f"Error: {url} is not as published:\n{found}"
        print_difference(text, asPublished=False, difference=_members(found))
    print_answer(str(found), asPublished=True, checked=_members(found))


def _members(found: Difference | Tally) -> dict[str, Any]:
    """Return the result of an audit as members of a JSON object, in camel case."""
    from zeh_spark.client.options.option_metadata import option_name

    return {option_name(name): value for name, value in asdict(found).items()}


def _size_of_stdin() -> int | None:
    """Return the size of standard input if it is a file; None if it is not."""
    try:
        about = os.fstat(sys.stdin.fileno())
    except (OSError, ValueError):  # replaced by an object without a file
        return None
    return about.st_size if stat.S_ISREG(about.st_mode) else None


def _named_batches(client: PublishClient, producer: str) -> list[dict[str, Any]]:
    """Return the named batches of a producer, as far as the token may see them."""
    from zeh_spark.wire.problems import FORBIDDEN

    try:
        return [each for each in client.producers() if each["producer"].startswith(f"{producer}#")]
    except PublishError as exc:
        if exc.problem != FORBIDDEN.name:
            raise
        return []


def _receipts(client: PublishClient, producer: str, limit: int) -> list[dict[str, Any]]:
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
