"""Build the query of `in_order`: a frame of events as one in the order of its sessions.

Runs on the driver.

Time is the watermark of a column that is dropped after it. So timers fire, a finite run ends, and
Spark leaves out no late row. Rejected: processing time, with which a finite run never ends; a
watermark on a column that stays, because Spark drops its late rows. `reading` says which times
count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from zeh_spark.errors import OptionError
from zeh_spark.spark.sessions.bucket import Given
from zeh_spark.spark.sessions.model import DECISIONS, REASONS, First, OnConflict, OnGap, Policy
from zeh_spark.spark.sessions.operator import SessionProcessor
from zeh_spark.spark.sessions.reading import (
    CONTROLS,
    TOLD,
    beating,
    clock_of,
    content_of,
    control_of,
    rows_of,
    source_of,
    with_words,
)
from zeh_spark.spark.sessions.sources import with_marks
from zeh_spark.spark.sessions.state import Settings
from zeh_spark.spark.sessions.steps import Key, Names, Steps, checked, key
from zeh_spark.spark.stateful import plans, requirements, state_buckets
from zeh_spark.spark.stateful.row_codec import unpacked

COUNTS = ("ordered", "duplicates", "controls", "future", *REASONS)
GAUGES = ("held", "open_sessions", "stale_sessions", "closed_sessions", "buckets")
_INFO = (
    "reason STRING, session STRING, expected BIGINT, received BIGINT, "
    "missing STRUCT<first: BIGINT, last: BIGINT>, held_since BIGINT, detail STRING, "
    "number BIGINT, begun BIGINT"
)
"""What `bucket.DeadInfo` and `bucket.Delivery` write."""

_MULTIPLE = "spark.sql.streaming.statefulOperator.allowMultiple"


def in_order(
    df: DataFrame,
    session: Key,
    sequence: str | Column,
    *,
    last: str | Column | None = None,
    steps: Names | None = None,
    kind: str | Column | None = None,
    gap_timeout: str | None = "10 minutes",
    on_gap: OnGap = "dead-letter",
    first: First = 0,
    time: str | Column | None = None,
    delay: str = "0 seconds",
    control: str | Column | None = None,
    max_events: int = 10_000,
    max_bytes: int = 16 << 20,
    max_sessions: int | None = None,
    idle_timeout: str | None = None,
    stale_timeout: str | None = None,
    keep_closed: str = "1 day",
    buckets: int = 16,
    heartbeat: bool = False,
    metrics: str = "sessions",
    processing: bool = False,
    attempt: str | Column | None = None,
    sources: Sequence[str] | None = None,
    source: str | Column | None = None,
    idle_source_timeout: str | None = None,
    on_conflict: OnConflict = "drop",
    content: str | Column | None = None,
) -> DataFrame:
    """Return the events of a stream with each session's events in the order of their numbers.

    An early event is held until the events before it arrive. The result has the frame's
    columns and two more: `status` ("ordered" or "dead"), and `dead`, a STRUCT<reason, session,
    expected, received, missing: STRUCT<first, last>, held_since, detail>, which is NULL for ordered
    events. Dead letters with the reasons "skipped", "stale" and "unfinished" have no event: they
    report about the session. `route` separates ordered events from dead letters.

    Durations are texts like "10 minutes".

    Args:
        df: a streaming frame without a watermark.
        session: a column or SQL expression, the key whose events are put in order; or several, as
            a list. An event is invalid if one of them is NULL.
        sequence: a column or SQL expression, the event's number in its session, which may be text;
            with `steps`, the name of its step.
        last: a column or SQL expression: the session's last number, or true on its last event.
        steps: the names of the steps in their order, like ["placed", "paid", "shipped"]. The last
            one closes the session. Or such lists by kind of session, as a mapping. A checkpoint
            keeps the list of each kind, and refuses another one.
        kind: a column or SQL expression, the kind of an event's session; needed if `steps` is a
            mapping. It is a part of the session's key.
        gap_timeout: how long a gap may be open; None means forever.
        on_gap: what happens to the events after a gap that is older than `gap_timeout`.
            "dead-letter": they become dead letters. "skip": they are delivered. "hold": they wait
            for a control event.
        first: a session's first number: 0, 1, or "seen". It is fixed for a checkpoint.
        time: the clock: a TIMESTAMP column or SQL expression, or "batch" for the time at which a
            batch begins. None means the header `zeh-time`.
        delay: how far the clock stays behind the newest event, for partitions that are read
            unevenly.
        control: a column or SQL expression that gives "close", "release" or "replay". None means
            the header `session-control`.
        max_events: how many events a session may hold.
        max_bytes: how many bytes a session may hold.
        max_sessions: how many sessions may be open, in equal shares for the buckets. The query
            fails, and its batch is not committed, before a bucket has more than its share. None
            means no limit.
        idle_timeout: closes sessions that had no events for this time. None means that sessions
            without a last number stay forever.
        stale_timeout: reports a session that delivered no event for this time, once, as a record
            with the reason "stale". It has to be shorter than `idle_timeout`. None means no report.
        keep_closed: how long a closed session is remembered. A later event begins a new session,
            unless it is a replay, which is delivered at once.
        buckets: the number of parts of the state. It is fixed for a checkpoint.
        heartbeat: time out gaps on idle feeds, too. It needs `time="batch"` and a trigger interval,
            is fixed for a checkpoint, and is not possible with a `DeltaFeedWriter`.
        metrics: the name of the counts in the query's progress.
        processing: prepare the frame for `process`. It gets the column `delivery`, a
            STRUCT<session, begun, number, control, attempt>; a replayed event is delivered again,
            also if it was delivered before; and control events may say "retry" or "skip", which
            become rows with the status "control".
        attempt: a column or SQL expression, the attempt that a "retry" or "skip" is about. None
            means the header `session-attempt`.
        sources: the names of the feeds whose events the frame unites. The clock is then that of the
            slowest of them, and waits for a source that was not seen yet. Whether sources are given
            is fixed for a checkpoint; their names may change. An event of another source is
            invalid.
        source: a column or SQL expression, the name of an event's source. None means the feed's
            identity, the header `zeh-feed` without its epoch. Control events, except replays, need
            no declared source.
        idle_source_timeout: how long a source may have no events and still hold the clock, by the
            times of batches. None means forever.
        on_conflict: what happens to an event whose number arrived before with other content.
            "drop": it is a duplicate. "dead-letter": it becomes a dead letter with the reason
            "conflict", as an event always does whose number came before as a replay.
            This keeps about 12 bytes of each event, for the 10,000 highest numbers of a session.
        content: a column or SQL expression, what is compared then; by default the column `data`, or
            all columns except `headers`, `partition` and stamps if there is none.

    Returns:
        The streaming frame of ordered events and dead letters.

    Raises:
        OptionError: an argument does not fit the frame or the Spark session.
    """
    requirements.check(df, "sessions.in_order")
    requirements.at_least("buckets", buckets, 1)
    policy = Policy(
        gap_timeout=_duration("gap_timeout", gap_timeout),
        on_gap=requirements.one_of("on_gap", on_gap, get_args(OnGap)),
        first=requirements.one_of("first", first, get_args(First)),
        max_events=requirements.at_least("max_events", max_events, 1),
        max_bytes=requirements.at_least("max_bytes", max_bytes, 1),
        idle_timeout=_duration("idle_timeout", idle_timeout),
        stale_timeout=_duration("stale_timeout", stale_timeout),
        processing=processing,
        on_conflict=requirements.one_of("on_conflict", on_conflict, get_args(OnConflict)),
    )
    _check_timeouts(policy)
    named = checked(df, steps, kind)
    _check_steps(named, first, last)
    _check_sources(sources, source, idle_source_timeout, time)
    late = requirements.milliseconds("delay", delay)
    if max_sessions is not None:
        requirements.at_least("max_sessions", max_sessions, 1)
    settings = Settings(
        policy,
        buckets,
        requirements.milliseconds("keep_closed", keep_closed),
        named.lists,
        tuple(sources or ()),
        _duration("idle_source_timeout", idle_source_timeout),
        late,
        max_sessions,
        {field.name: field.dataType.simpleString() for field in df.schema},
    )
    requirements.check_free(df, ["status", "dead", *(["delivery", TOLD] if processing else [])])
    _check_watermark(df)
    own_time, latest, complaint = clock_of(df, time)
    if heartbeat and time != "batch":
        raise OptionError(
            "heartbeat=True needs time='batch': other clocks continue with the events",
            option="heartbeat",
        )
    words = (*CONTROLS, *DECISIONS) if processing else CONTROLS
    given = with_words(df, control, attempt) if processing else df
    read = {
        "session": key(given, session, named.key_part),
        "kind": F.coalesce(named.kind, F.lit("")),
        "sequence": requirements.text(given, "sequence", sequence),
        "last": requirements.text(given, "last", last),
        "control": control_of(given, control),
        "time": own_time,
        "latest": latest,
        "source": source_of(given, source) if sources else F.lit(None).cast("string"),
        "content": content_of(df, on_conflict, content),
    }
    rows = rows_of(given, read, complaint, named, words, sources)
    rows = rows.withColumn("bucket", state_buckets.bucket_of("session", buckets)).drop("session")
    if heartbeat:
        rows = rows.unionByName(beating(rows, buckets))
    if sources:
        rows, late = with_marks(rows, buckets), 0
    timed = rows.withWatermark(requirements.CLOCK, f"{late} milliseconds").drop(requirements.CLOCK)
    found = state_buckets.grouped(
        timed, "bucket", buckets, SessionProcessor(settings), Given._fields, "eventTime"
    )
    sums = {name: state_buckets.total(name) for name in (*COUNTS, *GAUGES)}
    oldest = F.timestamp_millis(F.min(F.col("counts")["oldest_hold"]))
    found = state_buckets.observed(found, metrics, {**sums, "oldest_hold": oldest})
    return _unpack(found, given, processing=processing)


# What goes out


def _unpack(given: DataFrame, df: DataFrame, *, processing: bool) -> DataFrame:
    """Return the rows that buckets gave, with the columns of the frame.

    If `process` follows, the frame has the column TOLD.
    """
    info = F.from_json("dead", _INFO, {"mode": "FAILFAST"})
    dead = info["reason"].isNotNull()
    order = ["reason", "expected", "received", "missing", "held_since", "session", "detail"]
    fields = [
        (F.timestamp_millis(info[n]) if n == "held_since" else info[n]).alias(n) for n in order
    ]
    rows = given.select(
        *unpacked(F.col("event"), df.schema),
        F.when(dead, "dead").otherwise("ordered").alias("status"),
        F.when(dead, F.struct(*fields)).alias("dead"),
        F.when(~dead, F.struct(info["session"], info["begun"], info["number"])).alias("delivery"),
    )
    if not processing:
        return rows.drop("delivery")
    word = F.coalesce(F.col(TOLD)["control"], F.lit(""))
    decided = word.isin(*DECISIONS) & F.col("delivery").isNotNull()
    delivery = (
        F.col("delivery")
        .withField("begun", F.timestamp_millis("delivery.begun"))
        .withField("control", word)
        .withField("attempt", F.col(TOLD)["attempt"])
    )
    status = F.when(decided, "control").otherwise(F.col("status"))
    return rows.withColumns({"status": status, "delivery": delivery}).drop(TOLD)


# Options


def _check_timeouts(policy: Policy) -> None:
    stale, idle = policy.stale_timeout, policy.idle_timeout
    if stale is not None and idle is not None and stale >= idle:
        raise OptionError(
            f"stale_timeout, {stale} ms, must be shorter than idle_timeout, {idle} ms, which "
            f"closes the session before it is reported",
            option="stale_timeout",
        )


def _check_steps(named: Steps, first: First, last: str | Column | None) -> None:
    if named.lists and last is not None:
        raise OptionError(
            "last= and steps= exclude each other: the last step closes the session", option="last"
        )
    if named.lists and first != 0:
        raise OptionError(
            f"first={first!r} and steps= exclude each other: a session begins with its first step",
            option="first",
        )


def _check_sources(
    sources: Sequence[str] | None,
    source: str | Column | None,
    idle: str | None,
    time: str | Column | None,
) -> None:
    if sources is None:
        given = {"source": source, "idle_source_timeout": idle}
        if names := [name for name, value in given.items() if value is not None]:
            raise OptionError(
                f"{names[0]}= is for several sources. Give sources=, too", option=names[0]
            )
        return
    if isinstance(sources, str) or not all(isinstance(n, str) and n for n in sources):
        raise OptionError(f"sources={sources!r} must be a list of names", option="sources")
    if not sources or len(set(sources)) != len(sources):
        raise OptionError(
            f"sources={sources!r} must have at least one name, and none twice", option="sources"
        )
    if isinstance(time, str) and time == "batch":
        raise OptionError(
            "sources= needs the events' own times; with time='batch' no source is behind another",
            option="sources",
        )


def _check_watermark(df: DataFrame) -> None:
    """Refuse a watermark, which Spark would find out in the second batch, or never."""
    if str(df.sparkSession.conf.get(_MULTIPLE, "true")).lower() != "true":
        raise OptionError(
            f"sessions.in_order: with {_MULTIPLE}=false a watermark after it would drop events "
            f"that it held. Leave that at true, the default",
            option=_MULTIPLE,
            anchor="the-frame-has-a-watermark-already",
        )
    if "EventTimeWatermark" in plans.text(df):
        raise OptionError(
            "sessions.in_order: the frame has a watermark already (of withWatermark, or of another "
            "in_order), and Spark takes one for each query. Put a table or a feed between the two",
            anchor="the-frame-has-a-watermark-already",
        )


def _duration(name: str, text: str | None) -> int | None:
    return None if text is None else requirements.milliseconds(name, text)
