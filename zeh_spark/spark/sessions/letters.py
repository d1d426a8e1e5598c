"""Dead letters of sessions on a feed, and repaired ones back into their session.

On a feed they have the form of the sink's dead letters, so `zeh-spark dead-letters` prints them and
`zeh-spark replay-dead` publishes them. A replayed event has the header `session-control: replay`:
its session takes it once, although its place has passed.

Functions run on the driver, and what they give to `mapInArrow` runs in tasks.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from zeh_spark.errors import OptionError
from zeh_spark.spark.frames.compat import column_of, quoted
from zeh_spark.spark.frames.stamping import has_headers
from zeh_spark.spark.sessions.model import CONTROL, RECORDS
from zeh_spark.spark.sessions.routing import Writer
from zeh_spark.spark.sink.letters import rows_of
from zeh_spark.spark.sink.row_layout import RowLayout, layout
from zeh_spark.wire import dead_letters

_FACTS = "_zeh_dead"
_ENVELOPE = ("headers", "key", "partition")


def to_feed(url: str, producerId: str, **options: str) -> Writer:
    """Return a writer for `route(dead=…)`: dead letters become events of a feed, each batch once.

    A row without an event, such as the report of a skipped gap, becomes a dead letter whose
    `row` is null.

    Args:
        url: The address of the dead-letter feed.
        producerId: The name under which the query publishes dead letters.
        **options: Options of the sink, like `token`.

    Returns:
        A function of (frame, batchId).
    """

    def write(batch: DataFrame, number: int) -> None:
        given = {"url": url, "producerId": producerId, "batchId": "stream", **options}
        _publish(letters(batch, producerId, number), given)

    return write


def replay(dead: DataFrame, url: str, *, producerId: str, batchId: str, **options: str) -> None:
    """Publish the events of repaired dead letters to the feed from which their sessions are read.

    The same rows under the same `batchId` are published once; other rows are refused. Rows without
    an event are skipped.

    Args:
        dead: A batch frame with the columns that `route` gave to its writer, for instance from a
            Delta table. Repair what is wrong, and filter out what must not be published again.
        url: The address of the feed of the sessions.
        producerId: The name under which the events are published.
        batchId: The name of this publication.
        **options: Options of the sink, like `token`.

    Raises:
        OptionError: The frame is a stream, or does not have the columns.
        PublishError: The publisher refuses the batch.
    """
    _check(dead)
    if dead.isStreaming:
        raise OptionError("replay: the frame is a stream. Read the dead letters with spark.read")
    events = dead.where(~F.col("dead.reason").isin(*RECORDS))
    given = {"url": url, "producerId": producerId, "batchId": batchId, **options}
    _publish(_event(events).drop(_FACTS), given)


def _publish(events: DataFrame, options: dict[str, str]) -> None:
    events.write.format("zeroeventhub").options(**options).mode("append").save()


def letters(dead: DataFrame, producer: str, batch: int) -> DataFrame:
    """Return dead letters as events of a dead-letter feed, with the columns key and data."""
    _check(dead)
    events = _event(dead)
    columns = [name for name in events.columns if name != _FACTS]
    rendered = layout(events.select(*columns).schema)
    render = partial(_render, rendered=rendered, producer=producer, number=batch)
    return events.mapInArrow(render, "key STRING, data STRING")


def _event(dead: DataFrame) -> DataFrame:
    """Return the event as the sink takes it, to be published again, and why it is dead."""
    known = {column_of(dead, name): name for name in ("dead", "dedup", "data", *_ENVELOPE)}
    given = {known.get(name) for name in dead.columns}
    others = [name for name in dead.columns if name not in known]
    where = "key" if "key" in given else "partition"
    columns = [F.col(name) for name in ("data", where) if name in given]
    if "data" not in given:
        inner = [F.col(quoted(name)) for name in others]
        columns.append(F.struct(*inner).alias("data"))
    elif others:
        raise OptionError(
            f"dead letters with the columns 'data' and {others[0]!r}: the event is in 'data', "
            f"beside which there may be headers, key or partition. Call .drop({others[0]!r}) first",
            option=others[0],
        )
    if not {"key", "partition"} & given:
        columns.append(F.col("dead.session").alias("key"))
    facts = F.col("dead").withField("held_since", F.unix_micros("dead.held_since"))
    return dead.select(*columns, _headers(dead).alias("headers"), facts.alias(_FACTS))


def _headers(dead: DataFrame) -> Column:
    """Return the event's headers, with `replay` unless they have another control word."""
    control = F.create_map(F.lit(CONTROL), F.lit("replay"))
    if not has_headers(dead):
        return control
    headers = F.coalesce("headers", F.create_map().cast("map<string,string>"))
    own = F.map_filter(headers, lambda name, _: ~name.startswith("zeh-"))
    return F.when(F.map_contains_key(own, CONTROL), own).otherwise(F.map_concat(own, control))


def _check(dead: DataFrame) -> None:
    if column_of(dead, "dead") is None:
        raise OptionError(
            f"the frame has no column 'dead', but {dead.columns}. Give the frame that route gives "
            f"to its dead= writer",
            option="dead",
        )


def _render(
    batches: Iterator[pa.RecordBatch], *, rendered: RowLayout, producer: str, number: int
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        facts = batch.column(_FACTS).to_pylist()
        rows = rows_of(rendered, batch.select(rendered.columns))
        keys: list[str] = []
        parts: list[str] = []
        for fact, row in zip(facts, rows, strict=True):
            event = None if fact["reason"] in RECORDS else row
            letter = dead_letters.letter(reason(fact), producer, number, event)
            some = [part.decode() for part in dead_letters.cut(letter)]
            keys += [fact["session"] or dead_letters.letter_id(letter)] * len(some)
            parts += some
        yield pa.RecordBatch.from_pydict({"key": keys, "data": parts})


def reason(dead: dict[str, Any]) -> str:
    """Return the reason as text for people; the same for the same dead letter."""
    text = str(dead["reason"])
    if dead["session"] is not None:
        text += f": session {dead['session']!r}"
    if dead["received"] is not None:
        text += f", number {dead['received']}"
    if dead["expected"] is not None:
        text += f", expected {dead['expected']}"
    if missing := dead["missing"]:
        text += f", missing {missing['first']} to {missing['last']}"
    if (since := dead["held_since"]) is not None:
        text += f", held since {_utc(since)}"
    return f"{text}: {dead['detail']}" if dead["detail"] else text


def _utc(microseconds: int) -> str:
    try:
        moment = datetime(1970, 1, 1) + timedelta(microseconds=microseconds)
    except OverflowError:
        return f"1970-01-01 {microseconds:+} microseconds"
    return f"{moment.isoformat()}Z"
