"""Read what a frame says about sessions: the rows that buckets take.

`clock_of` says where an event's time comes from. A time later than the batch's own does not count.
An event's own time that is later than its publication is wrong, and moves no clock: it would make
all gaps old, and forget all that is closed. Runs on the driver; builds expressions.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import TimestampType

from zeh_spark.errors import OptionError
from zeh_spark.spark.frames.stamping import has_headers, has_stamps, stamp
from zeh_spark.spark.sessions.model import CONTROL
from zeh_spark.spark.sessions.steps import Steps
from zeh_spark.spark.stateful import requirements, state_buckets
from zeh_spark.spark.stateful.ranges import MAX_NUMBER
from zeh_spark.spark.stateful.row_codec import packed
from zeh_spark.wire import wire
from zeh_spark.wire.feed_identity import HEADER

CONTROLS = ("close", "release", "replay")
ATTEMPT = "session-attempt"
"""The header in which a `retry` or `skip` names the attempt that failed."""

TOLD = "_zeh_told"
"""The column in which an event takes its control word and attempt along, if `process` follows."""

_SKEW = "1 MINUTE"
"""How far an event's own time may be ahead of its publication and still count."""

_LAST_TIME = 253_402_300_799_999
"""The end of the year 9999, in milliseconds since 1970."""


def rows_of(
    df: DataFrame,
    read: dict[str, Column],
    complaint: str,
    named: Steps,
    words: tuple[str, ...],
    sources: Sequence[str] | None,
) -> DataFrame:
    """Return the frame as the bucket's rows, and the columns of their clock and their source.

    `read` has what is read of each event, by name.
    """
    # Each step is a projection of its own, so that what it names is computed once for a row.
    said = packed(df, requirements.EVENT).select(
        *(column.alias(name) for name, column in read.items()),
        F.col(requirements.EVENT).alias("event"),
    )
    named = Steps(named.lists, F.col("kind"))
    numbers = {"number": named.number("sequence"), "declared": named.last("last")}
    numbered = said.withColumns(numbers)
    lacking = F.col("time").isNull() & ~_is_command(words)
    error = F.raise_error(F.lit(complaint)).cast("timestamp")
    parsed = numbered.select(
        "session",
        "control",
        "event",
        "number",
        F.when(F.lower("last") == "true", F.col("number"))
        .otherwise(F.col("declared"))
        .alias("end"),
        "source",
        "content",
        F.coalesce(_problem(named, words, sources), F.lit("")).alias("problem"),
        F.when(lacking, error).otherwise(F.col("time")).alias("time"),
        "latest",
    )
    none = F.lit(-1).cast("long")
    future = F.col("time") > F.col("latest") + F.expr(f"INTERVAL {_SKEW}")
    time = F.when(F.col("time").isNotNull(), F.least("time", "latest", F.current_timestamp()))
    ms = F.greatest(F.coalesce(F.unix_millis(time), F.lit(0)), F.lit(0))
    signed = F.when(future, -1 - ms).otherwise(ms)
    parts = [F.coalesce("number", none), signed, F.coalesce("end", none), F.col("content")]
    texts = [F.col(each) for each in ("session", "control", "problem", "event")]
    return parsed.select(
        "session",
        state_buckets.joined(parts, texts).alias("row"),
        F.when(~future, time).alias(requirements.CLOCK),
        "source",
    )


def _problem(named: Steps, words: tuple[str, ...], sources: Sequence[str] | None) -> Column:
    """Return what is wrong with an event; NULL if nothing is."""
    number, text, last, word = map(F.col, ("number", "sequence", "last", "control"))
    whole = requirements.says("sequence", text, f"a whole number from 0 to {MAX_NUMBER}")
    other = requirements.says("sequence", text, "a whole number")
    if named.lists:
        whole = other = named.problem(text)
    flag, declared = F.lower(last), F.col("declared")
    bad_end = flag.isNotNull() & ~flag.isin("true", "false") & declared.isNull()
    problem = (
        F.when(
            ~word.isin("", *words),
            requirements.says(f"header {CONTROL}", word, f"{', '.join(words[:-1])} or {words[-1]}"),
        )
        .when(F.col("session") == "", F.lit("no session"))
        .when(number.isNull() & ~word.isin("close", "release"), whole)
        .when(number.isNull() & text.isNotNull(), other)
        .when(bad_end, requirements.says("last", last, "a number, true or false"))
    )
    if sources is None:
        return problem
    known = F.coalesce(F.col("source").isin(*sources), F.lit(False))
    return problem.when(
        ~known & ~_is_command(words),
        requirements.says("source", F.col("source"), f"one of {', '.join(sources)}"),
    )


def _is_command(words: tuple[str, ...]) -> Column:
    """Return whether an event has a control word that delivers no event of a source's own."""
    return F.col("control").isin([word for word in words if word != "replay"])


def _published(df: DataFrame) -> Column:
    """Return when an event was published, by the feed's clock; NULL if it does not say."""
    if not has_stamps(df):
        return F.lit(None).cast("timestamp")
    ms = stamp(df, wire.TIME_HEADER).try_cast("bigint")
    return F.when(ms.between(0, _LAST_TIME), F.timestamp_millis(ms))


def source_of(df: DataFrame, source: str | Column | None) -> Column:
    """Return the name of an event's source; NULL if it has none."""
    if source is not None:
        return requirements.text(df, "source", source)
    if not has_stamps(df):
        raise OptionError(
            f"the frame has no column 'headers', whose {HEADER} would name the source. Give "
            f"source=, a column or SQL expression",
            option="source",
        )
    return F.regexp_replace(stamp(df, HEADER), "~[0-9]+$", "")


def content_of(df: DataFrame, on_conflict: str, content: str | Column | None) -> Column:
    """Return a hash of what two events with one number are compared by; 0 if they are not."""
    if on_conflict == "dead-letter":
        return F.xxhash64(requirements.content(df, "content", content))
    if content is not None:
        raise OptionError("content= is for on_conflict='dead-letter'", option="content")
    return F.lit(0)


def control_of(df: DataFrame, control: str | Column | None) -> Column:
    """Return an event's control word in lower case; '' if it has none."""
    word = requirements.text(df, "control", control)
    if control is None and has_headers(df):
        word = F.col("headers")[CONTROL]
    return F.lower(F.trim(F.coalesce(word, F.lit(""))))


def with_words(
    df: DataFrame, control: str | Column | None, attempt: str | Column | None
) -> DataFrame:
    """Return the frame with the column TOLD, a STRUCT<control, attempt>; NULL without a word."""
    word = control_of(df, control)
    number = requirements.text(df, "attempt", attempt)
    if attempt is None and has_headers(df):
        number = F.col("headers")[ATTEMPT]
    elif attempt is None and control is not None:
        raise OptionError(
            f"the frame has no column 'headers', whose {ATTEMPT} would be the attempt that a retry "
            f"or skip is about. Give attempt=, a column or SQL expression",
            option="attempt",
        )
    told = F.struct(word.alias("control"), number.try_cast("bigint").alias("attempt"))
    return df.withColumn(TOLD, F.when(word != "", told))


def clock_of(df: DataFrame, time: str | Column | None) -> tuple[Column, Column, str]:
    """Return an event's time, what it cannot be later than, and the error for one without a time.

    Raises OptionError if the frame has no such time.
    """
    now = F.current_timestamp()
    if isinstance(time, str) and time == "batch":
        return now, now, ""
    published = _published(df)
    if time is not None:
        column, kind = requirements.typed(df, "time", time)
        if not isinstance(kind, TimestampType):
            raise OptionError(
                f"time={time!r} must be a TIMESTAMP, but is {kind.simpleString()}. For the time at "
                f"which a batch begins, set time='batch'",
                option="time",
            )
        latest = F.coalesce(published, now)
        return column, latest, f"sessions: an event has no time: time={time!r} is NULL"
    if not has_stamps(df):
        raise OptionError(
            "the frame has no column 'headers', whose zeh-time would be the clock. Give time=, a "
            "TIMESTAMP of the events, or time='batch'",
            option="time",
        )
    complaint = (
        "sessions: an event has no header zeh-time, which is the clock by default: read with "
        "headers=_all; feeds of other publishers need time=, a TIMESTAMP of the events, or "
        "time='batch'"
    )
    return published, published, complaint


def beating(rows: DataFrame, buckets: int) -> DataFrame:
    """Return a stream with a row for each bucket and trigger, which belongs to no session."""
    reader = rows.sparkSession.readStream.format("rate-micro-batch")
    beat = reader.option("rowsPerBatch", 1).option("numPartitions", 1).load()
    numbers = [F.lit(-1), F.lit(0), F.lit(-1), F.lit(0)]
    return beat.select(
        F.explode(F.sequence(F.lit(0), F.lit(buckets - 1))).alias("bucket"),
        state_buckets.joined(numbers, [F.lit("")] * 4).alias("row"),
        F.current_timestamp().alias(requirements.CLOCK),
        F.lit(None).cast("string").alias("source"),
    )
