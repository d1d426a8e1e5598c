"""A stateful query's batch that Spark repeats after a crash, into tables that have part of it."""

import re
from collections import Counter

import pytest

from tests.fix_lake import said, why_absent
from tests.fix_sessions import needs_batches
from tests.fix_spark import in_batches

pytest.importorskip("delta", reason=why_absent())

from pyspark.sql import functions as F

from zeh_spark import lakehouse, sessions
from zeh_spark.spark.delta.content import content_of

HOUR = 3600


class Tables:
    """Sessions of `orders` into a table for what is in order and one for dead letters."""

    def __init__(self, orders):
        self.orders = orders
        self.at = {name: str(orders.folder / name) for name in ("ordered", "dead")}

    def run(self, *, crash=False, limit="1", writing=None, **options):
        """To the feed's end; `crash`: the dead letters' writer fails when there are some."""
        ordered, dead = self._writer("ordered", **(writing or {})), self._writer("dead")

        def crashing(frame, number):
            if frame.count():
                raise RuntimeError("the machine is gone")
            dead(frame, number)

        route = sessions.route(ordered=ordered, dead=crashing if crash else dead)
        frame = self.orders.frame(limit=limit, **options)
        in_batches(frame, route, self.orders.checkpoint).awaitTermination()

    def _writer(self, name, **options):
        return lakehouse.DeltaFeedWriter(
            self.at[name], name=name, checkpointLocation=str(self.orders.checkpoint), **options
        )

    def fail(self, **options):
        with pytest.raises(Exception) as raised:
            self.run(**options)
        return raised.value

    def steps(self, name):
        rows = self.orders.spark.read.format("delta").load(self.at[name])
        found = rows.where("headers IS NOT NULL").select("headers.order", "headers.step")
        return Counter((row[0], int(row[1])) for row in found.collect())


@pytest.mark.slow
@needs_batches
def test_a_repeated_batch_with_other_options_is_refused(orders):
    """It would be lost, as the first table has the batch already. Options may change between
    batches: when the table has the batch that Spark repeats, and none after it.
    """
    tables = Tables(orders)
    orders.add(("a", 1), ("a", 2), at=0)  # without step 0, for longer than the timeout
    orders.add(("b", 0), at=2 * HOUR)
    orders.add(("b", 1), at=3 * HOUR)
    assert "the machine is gone" in str(tables.fail(crash=True, on_gap="dead-letter"))
    there = tables.steps("ordered")

    told = said(tables.fail(on_gap="skip"))
    assert "is in the table with" in told and "An option of the query was changed" in told
    assert there == tables.steps("ordered")

    tables.run(on_gap="dead-letter")
    assert Counter([("b", 0), ("b", 1)]) == tables.steps("ordered")
    assert Counter([("a", 1), ("a", 2)]) == tables.steps("dead")
    orders.add(("c", 5), at=4 * HOUR)
    orders.add(("b", 2), at=8 * HOUR)
    tables.run(on_gap="skip")
    assert Counter([("b", 0), ("b", 1), ("b", 2), ("c", 5)]) == tables.steps("ordered")


@pytest.mark.slow
@needs_batches
def test_rows_that_depend_on_chance_are_refused_when_the_batch_comes_again(lake):
    """The table has other ones already; what the error prints keeps them, and lets the query
    continue from there, however often they change.
    """
    by_chance = {"state": True, "change": lambda df: df.withColumn("value", F.expr("uuid()"))}
    lake.batch(0, range(5), **by_chance)
    before = lake.table().select("i", "value").collect()

    told = lake.refused(0, range(5), **by_chance)

    assert "its rows depend on chance or on a clock" in told
    accept = re.search(r"accept='(.*?)'", told)[1]
    lake.batch(0, range(5), accept=accept, **by_chance)
    assert sorted(before) == sorted(lake.table().select("i", "value").collect())
    lake.batch(1, range(5, 9), accept=accept, **by_chance)
    assert lake.numbers() == Counter(range(9))


@pytest.mark.slow
def test_sessions_in_order_go_into_a_merged_table(orders, lake):
    """The table shows the last step of each order, though it was published before others; and the
    writer has to be told that the order of the sessions decides.
    """
    told = lake.refused(0, range(5), state=True, merge_keys=["i"])
    assert "order='arrival' after in_order" in told

    tables = Tables(orders)
    given = {"merge_keys": ["order"], "transform": _steps, "order": "arrival"}
    orders.add(("a", 2), ("a", 1), ("b", 1), ("a", 0))
    tables.run(limit="4", writing=given)
    orders.add(("a", 4), ("b", 0), ("a", 3))
    tables.run(limit="4", writing=given)

    assert tables.steps("ordered") == Counter([("a", 4), ("b", 1)])


@pytest.mark.slow
@needs_batches
def test_a_replayed_step_does_not_replace_a_later_one(orders):
    """It comes last, so arrival would show it; an expression of mine tells what is newer."""
    tables = Tables(orders)
    given = {"merge_keys": ["order"], "transform": _steps, "order": "step"}
    orders.add(("a", 0), ("a", 2), at=0)
    orders.add(("b", 0), at=2 * HOUR)
    tables.run(limit="2", on_gap="skip", writing=given)
    assert tables.steps("ordered") == Counter([("a", 2), ("b", 0)])

    orders.add(("a", 1), at=2 * HOUR, **{"session-control": "replay"})
    orders.add(("b", 1), at=2 * HOUR)
    tables.run(limit="2", on_gap="skip", writing=given)

    assert tables.steps("ordered") == Counter([("a", 2), ("b", 1)])


def _steps(batch, number):
    return batch.selectExpr("headers.order", "int(headers.step) AS step", "headers")


def test_equal_rows_have_equal_sums(spark):
    """Maps have no order, whatever is in them."""
    equal = [
        ("map('a', 1, 'b', 2)", "map('b', 2, 'a', 1)"),
        ("map(cast('k' AS BINARY), 1)", "map(cast('k' AS BINARY), 1)"),
        (
            "array(map('a', map(1, parse_json('1'), 2, parse_json('[]'))))",
            "array(map('a', map(2, parse_json('[]'), 1, parse_json('1'))))",
        ),
        (
            "named_struct('x', map('a', make_interval(1), 'b', make_interval(2)))",
            "named_struct('x', map('b', make_interval(2), 'a', make_interval(1)))",
        ),
    ]

    one, other = (
        content_of(spark.sql("SELECT " + ", ".join(f"{x} AS x{n}" for n, x in enumerate(each))))
        for each in zip(*equal, strict=True)
    )

    assert one == other


def test_different_rows_have_different_sums(spark):
    for one, other in (
        ("NULL AS x, 'a' AS y", "'a' AS x, NULL AS y"),
        ("map('a', 1) AS x", "map('a', 2) AS x"),
        ("TIMESTAMP '2020-01-01 00:00:00.000001' AS x", "TIMESTAMP '2020-01-01 00:00:00' AS x"),
        ("array(1, NULL) AS x", "array(NULL, 1) AS x"),
        ("'1' AS x FROM range(2)", "'1' AS x FROM range(3)"),
    ):
        first, second = (spark.sql(f"SELECT {each}") for each in (one, other))
        assert content_of(first) != content_of(second), one
