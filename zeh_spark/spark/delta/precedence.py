"""Which event of a key a merged table shows: expressions for its MERGE.

An event wins over the one that the table shows if its epoch or its sequence number is higher,
provided that both are of one feed, producer and stored partition. If one of the latter two differs,
the event with the later time wins, because a feed's times never go back; of equal times always the
same one, so that events which are merged again change nothing. Otherwise the later arrival wins.

Within a batch the newest event of each feed, producer and stored partition is kept, by number, and
of these the two that arrived last, by time. The table's event is of one producer, so it can outrank
only one of them, and the MERGE needs no more to decide. If a batch's rows are in no order, as after
a shuffle, and times do not tell which arrived last, the MERGE fails.

If an expression tells what is newer, its text takes the producer's place, so that numbers of two
expressions are not compared.

Within an epoch numbers are assigned in the order of commits. So an event with a lower number and a
later time than another one proves that the feed was restored: its numbers are used again for other
events. The MERGE then fails.

Runs on the driver; builds expressions.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from zeh_spark.spark.frames.compat import quoted
from zeh_spark.wire import feed_identity

OWN = "_zeh"
"""The struct column in which a merged table keeps which event a row shows."""

IDENTITY = {
    "feed": (feed_identity.HEADER, "string"),
    "producer": ("zeh-producer", "string"),
    "partition": ("zeh-partition", "int"),
    "sequence": ("zeh-sequence", "bigint"),
    "time": ("zeh-time", "bigint"),
}
"""The fields of it that `stamped` fills, each with the header that it is made of and its type."""

ARRIVAL = "_zeh_arrival"
"""The column with an event's place in its batch: `STRUCT<time, producer, partition, row>`. Only
events with numbers have a producer there, and a time if the rows are in order.
"""

BY_EXPRESSION = "order: "
"""What the producer begins with if an expression tells what is newer. No producer's name does."""


def newest(events: DataFrame, keys: Sequence[str], table: str, *, ordered: bool) -> DataFrame:
    """Return the events of each key that may win, as `_zeh_first` and `_zeh_second`.

    They are those that arrived last among the newest of each feed, producer and stored partition.
    The second is NULL if there is no other. The query fails if two events prove that the feed was
    restored; and if the rows are not `ordered`, and times that would have to decide are missing or
    equal.
    """
    columns = [quoted(name) for name in events.columns if name != ARRIVAL]
    keys = [quoted(key) for key in keys]
    own = F.col(OWN)
    epoch = _epoch(own["feed"]).alias("epoch")
    order = F.struct(epoch, own["sequence"], ARRIVAL)
    event = F.struct(ARRIVAL, F.struct(*columns).alias("event"))
    loose = own["sequence"].isNull()  # such events have no other order than that of arrival
    place, back = (
        F.col(ARRIVAL),
        F.struct(F.col(ARRIVAL)["time"], (-F.col(ARRIVAL)["row"]).alias("back")),
    )
    latest = F.struct(epoch, own["time"].alias("time"))
    by = {"feed": feed_of(own["feed"]), "producer": own["producer"], "partition": own["partition"]}
    by_producer = (
        events.repartition(*keys)
        .groupBy(*keys, *(column.alias(f"_zeh_by_{name}") for name, column in by.items()))
        .agg(
            F.max_by(event, order).alias("_zeh_newest"),
            F.max(latest).alias("_zeh_latest"),
            F.count_if(loose).alias("_zeh_loose"),
            (F.max(place)["row"] != -F.max(back)["back"]).alias("_zeh_tied"),
            F.count_if(own["time"].isNull()).alias("_zeh_untimed"),
        )
    )
    found = F.col("_zeh_newest")["event"][OWN]
    later = F.col("_zeh_latest")["time"] > found["time"]
    restored = F.coalesce(found["sequence"].isNotNull() & later, F.lit(False))
    complaint = _restored(table, found, F.col("_zeh_latest")["time"])
    checked = F.when(restored, F.raise_error(complaint)).otherwise(F.col("_zeh_newest"))
    listed = F.array_sort(
        F.collect_list(checked),
        lambda left, right: F.when(left[ARRIVAL] < right[ARRIVAL], 1).otherwise(-1),
    )
    several = F.sum(F.greatest("_zeh_loose", F.lit(1))) > 1
    tied = (F.col("_zeh_loose") > 1) & (F.col("_zeh_tied") | (F.col("_zeh_untimed") > 0))
    unknown = F.lit(not ordered) & several & F.bool_or(found["time"].isNull() | tied)
    return (
        by_producer.groupBy(*keys)
        .agg(listed.alias("_zeh_listed"), unknown.alias("_zeh_unknown"))
        .select(
            F.when(F.col("_zeh_unknown"), F.raise_error(_unordered(table, keys)))
            .otherwise(F.get("_zeh_listed", F.lit(0))["event"])
            .alias("_zeh_first"),
            F.get("_zeh_listed", F.lit(1))["event"].alias("_zeh_second"),
        )
    )


def wins(event: str, table: str) -> Column:
    """Return whether an event replaces the table's. Without stamps, the later arrival does.

    The MERGE fails for an event that cannot be compared: a row of its producer has no feed, the
    feed was restored, or one of the two was merged by another expression.
    """
    mine, theirs = F.col(event)[OWN], F.col(OWN)
    given, shown = mine["feed"], theirs["feed"]
    producer = (mine["producer"] == theirs["producer"]) & (mine["partition"] == theirs["partition"])
    unknown = producer & (given.isNull() != shown.isNull())
    same = producer & feed_of(given).eqNullSafe(feed_of(shown))
    epoch, before = _epoch(given), _epoch(shown)
    older = (epoch < before) | ((epoch == before) & (mine["sequence"] <= theirs["sequence"]))
    restored = same & (epoch == before) & older & (mine["time"] > theirs["time"])
    of_one_feed = (feed_of(given) == feed_of(shown)) & ~producer
    numbered = mine["sequence"].isNotNull() & theirs["sequence"].isNotNull()
    timed = mine["time"].isNotNull() & theirs["time"].isNotNull()
    placed = timed & (_place(mine) < _place(theirs))
    before_it = (epoch < before) | ((epoch == before) & placed)
    earlier = of_one_feed & numbered & before_it
    return (
        F.when(_by_other_expressions(mine, theirs), _fail(_incomparable(table, mine, theirs)))
        .when(F.coalesce(unknown, F.lit(False)), _fail(_unnamed(table, mine, given)))
        .when(F.coalesce(restored, F.lit(False)), _fail(_restored(table, theirs, mine["time"])))
        .otherwise(~F.coalesce(same & older, F.lit(False)) & ~F.coalesce(earlier, F.lit(False)))
    )


def is_shown(event: str) -> Column:
    """Return whether the table shows this very event: then the second one is older."""
    mine, theirs = F.col(event)[OWN], F.col(OWN)
    equal = (mine[name] == theirs[name] for name in ("producer", "partition", "sequence"))
    feed = mine["feed"].eqNullSafe(theirs["feed"])
    return F.coalesce(reduce(Column.__and__, equal, feed), F.lit(False))


def _by_other_expressions(mine: Column, theirs: Column) -> Column:
    given, shown = (F.coalesce(each["producer"], F.lit("")) for each in (mine, theirs))
    by_expression = given.startswith(BY_EXPRESSION) | shown.startswith(BY_EXPRESSION)
    return theirs.isNotNull() & by_expression & (given != shown)


def _place(own: Column) -> Column:
    return F.struct(own["time"], own["producer"], own["partition"])


def feed_of(column: Column) -> Column:
    return F.regexp_replace(column, feed_identity.EPOCH, "$1")


def _epoch(column: Column) -> Column:
    """Return the number of an epoch; 0 for the first one, and if there is none."""
    number = F.regexp_extract(column, feed_identity.EPOCH, 2).try_cast("int")
    return F.coalesce(number, F.lit(0))


def _fail(complaint: Column) -> Column:
    return F.raise_error(complaint).cast("boolean")


def _unordered(table: str, keys: Sequence[str]) -> Column:
    """Return the message about events of a key of which none is known to be the newest."""
    return _format(
        table,
        "the batch has several events of the key %s, and which one is the newest is not known: its "
        "rows are in no order, and the events have no zeh-time, or the same one. Keep the headers "
        "of the feed; or say what decides, with order= and an SQL expression of whole numbers, or "
        "order='arrival' if the rows are in order",
        F.to_json(F.struct(*keys)),
    )


def _incomparable(table: str, event: Column, shown: Column) -> Column:
    """Return the message about a row that was merged in another order."""
    return _format(
        table,
        "an event comes with (%s), and the row of its key was merged with (%s), so which one is "
        "newer is not known. Start the query with the order= that the table has, or merge into a "
        "new table",
        *(_order_of(each["producer"]) for each in (event, shown)),
    )


def _order_of(producer: Column) -> Column:
    return (
        F.when(producer.startswith(BY_EXPRESSION), producer)
        .when(producer.isNotNull(), F.lit(f"{BY_EXPRESSION}sequence"))
        .otherwise(F.lit(f"{BY_EXPRESSION}arrival"))
    )


def _unnamed(table: str, event: Column, feed: Column) -> Column:
    """Return the message about a row whose feed is not known."""
    return _format(
        table,
        "an event of the feed %s, producer %s, meets a row of that producer, and one of the two "
        "does not name its feed, because it came without the header zeh-feed. Keep that header, "
        "and merge into a new table",
        F.coalesce(feed, F.lit("that is not named")),
        event["producer"],
    )


def _restored(table: str, newest: Column, time: Column) -> Column:
    """Return the message about numbers that are used again."""
    return _format(
        table,
        "the feed %s was restored to an earlier state: its producer %s, partition %s, published "
        "the number %s at %s ms, and that one or a lower one again at %s ms for another event. "
        "Run zeh-spark new-history FEED --since %s at the publisher, so that events since then "
        "count as new ones, and start the query again",
        F.coalesce(newest["feed"], F.lit("(not named)")),
        *(newest[name] for name in ("producer", "partition", "sequence", "time")),
        time,
        newest["time"] + 1,
    )


def _format(table: str, text: str, *values: Column) -> Column:
    return F.concat(F.lit(f"table {table}: "), F.format_string(text, *values))
