"""Deduplicate a stream by sequence numbers, with state that grows with producers, not with events.

    once = dedup.drop_seen(df)                                  # by the stamps of our publisher
    once = dedup.drop_seen(df, producer="device", sequence="counter")
    once = dedup.drop_seen(df, origin=True)                     # by the origin of relayed events
    once = dedup.drop_seen(df, id="headers['id']", window="7 days")     # state grows with events

`dedup_numbers` and `dedup_ids` make the rows that tasks judge. Runs on the driver.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from zeh_spark.errors import OptionError
from zeh_spark.spark.stateful import plans, requirements, state_buckets
from zeh_spark.spark.stateful.dedup_ids import drop_seen_ids
from zeh_spark.spark.stateful.dedup_numbers import drop_seen_numbers, drop_seen_origins
from zeh_spark.spark.stateful.row_codec import unpacked

FLAGS = ("new", "unknown", "unstamped")


def drop_seen(
    df: DataFrame,
    producer: str | Column | None = None,
    sequence: str | Column | None = None,
    partition: str | Column | None = None,
    *,
    feed: str | Column | None = None,
    window: int | str | None = None,
    origin: bool = False,
    id: str | Column | None = None,
    scope: str | Column | None = None,
    content: str | Column | None = None,
    max_ids: int = 10_000_000,
    buckets: int = 16,
    metrics: str = "dedup",
) -> DataFrame:
    """Return the rows of a stream whose (feed, producer, partition, sequence), or id, is new.

    Only rows that were certainly seen before are dropped; `metrics` counts them. If several rows
    of a micro-batch have the same number, one is kept. The rows of a producer come in the order
    of their numbers.

    With `id`, rows are identified by ids that are not numbers. Each id takes 24 bytes for the time
    of the window.

    Args:
        df: a streaming frame. It needs the column `headers`, or the typed columns of
            `stamps=columns`, unless `producer` and `sequence` are given.
        producer: an SQL expression or a column; by default the header `zeh-producer`. Where a
            header is named here, the typed column is taken if the frame has them.
        sequence: the producer's numbers, from 0; by default the header `zeh-sequence`. Give it
            together with `producer`.
        partition: what else the numbers belong to; by default the header `zeh-partition`, and
            nothing if `producer` is given.
        feed: the feed that the numbers belong to; by default the header `zeh-feed`, and nothing if
            `producer` is given. A row in which it is NULL belongs to the query's only feed.
        window: how far below a producer's highest number gaps are remembered, in numbers;
            1,000,000 by default, and 100,000 with `origin`, because a relay that filters leaves
            many gaps. Older gaps are closed, to limit the state. With `id`, how long an
            id is remembered, like "7 days", which is the default then. The clock is the time at
            which events were published, `zeh-time`; the time of the batch for events without it.
        origin: identify events by where they were first published: by the header `zeh-origin`,
            which the sink's option `keepOrigin` writes, or by their stamps if they were not
            relayed. It excludes `producer`, `sequence`, `partition`, `feed` and `id`.
        id: an SQL expression or a column, the event's id. It excludes `producer`, `sequence`,
            `partition`, `feed` and `origin`.
        scope: what an id belongs to, with `id`; by default the feed, if its publisher tells its id.
        content: what must be equal in two rows with one id; by default the column `data`, or all
            columns except `headers`, `partition` and stamps if there is none.
        max_ids: how many ids the state may have, with `id`. The query fails before there are more.
        buckets: in how many values the state is kept; fixed for the life of a checkpoint.
        metrics: the name under which the counts are among the query's observed metrics.

    Returns:
        A streaming frame with the columns of `df` and the column `dedup`. It is "new"; or "unknown"
        if the number is in a gap that was closed, so that it may have been seen before; or
        "unstamped" if the row has no producer or no number. With `id`, "unknown" is an event that
        is older than the window, "unstamped" one without an id, and "conflict" one whose id was
        seen with other content.

    Raises:
        OptionError: an argument does not fit the frame or the session.
        CheckpointError: in the running query: its state was made with other arguments, may have
            mixed the numbers of several feeds, or would have more than `max_ids` ids, or ids of
            other scopes.
        PublisherError: in the running query: the publisher uses numbers again, as it does after a
            restore. The header `zeh-time` shows it, so this is checked without `producer` only.
    """
    requirements.check(df, "dedup.drop_seen")
    _check_order(df)
    requirements.at_least("buckets", buckets, 1)
    requirements.check_free(df, ["dedup"])
    numbers = {"producer": producer, "sequence": sequence, "partition": partition, "feed": feed}
    if id is not None:
        _check_absent({**numbers, "origin": origin or None}, "id= is another way to know it")
        given = drop_seen_ids(
            df, id, scope, content, window=window, max_ids=max_ids, buckets=buckets
        )
        return _pass_on(given, df, metrics, (*FLAGS, "conflict", "dropped", "ids", "buckets"))
    _check_absent({"scope": scope, "content": content}, "it is for id=")
    if origin:
        _check_absent(numbers, "origin= is another way to know it")
        given = drop_seen_origins(df, window=window, buckets=buckets)
    else:
        given = drop_seen_numbers(
            df, producer, sequence, partition, feed, window=window, buckets=buckets
        )
    return _pass_on(given, df, metrics, (*FLAGS, "dropped", "producers", "buckets"))


def _pass_on(given: DataFrame, df: DataFrame, metrics: str, counts: tuple[str, ...]) -> DataFrame:
    """Return the rows that a processor passed on, with the columns of the frame."""
    sums = {name: state_buckets.total(name) for name in counts}
    found = state_buckets.observed(given, metrics, sums)
    return found.select(*unpacked(F.col("event"), df.schema), "dedup")


def _check_absent(options: Mapping[str, object], why: str) -> None:
    for name, value in options.items():
        if value is not None:
            raise OptionError(f"{name}={value!r} cannot be given here: {why}", option=name)


def _check_order(df: DataFrame) -> None:
    """Refuse a frame of `in_order`: `drop_seen` orders rows by producers' numbers, not sessions."""
    if re.search(rf"EventTimeWatermark .*{requirements.CLOCK}", plans.text(df)):
        raise OptionError(
            "dedup.drop_seen: the frame is that of sessions.in_order, and its order would be lost. "
            "Call drop_seen before in_order",
            anchor="the-frame-is-that-of-sessionsin_order",
        )
