"""Whose a feed is in a Delta table, and which table that is: checked with each batch."""

import json
import re
from collections import Counter

import pytest

from tests.fix_lake import why_absent

pytest.importorskip("delta", reason=why_absent())

from py4j.protocol import Py4JJavaError
from pyspark.sql import functions as F

from zeh_spark.spark.delta.claims import property_of
from zeh_spark.spark.delta.delta_table import LakeTable


@pytest.mark.slow
def test_a_feed_is_kept_under_one_name_even_if_two_begin_at_once(lake, gate):
    """The second one would double every event: neither finds the other's rows when it begins. A
    feed is known by the id that its publisher tells, at each of its addresses.
    """
    with gate.during(lake.batch, 0, range(50)):
        told = lake.refused(0, range(50), query="other", name="copies")

    assert "is kept in it under name='orders', and this query has name='copies'" in told
    assert lake.numbers() == Counter(range(50))
    elsewhere = {"name": "copies", "feed": "https://elsewhere.example/orders"}
    told = lake.refused(0, range(50), query="third", **elsewhere)
    assert "is kept in it under name='orders'" in told
    assert "its events would be there twice" in told


@pytest.mark.slow
def test_a_claim_is_given_up_as_the_error_says(lake):
    """A name that was mistyped, say, and has never written a row."""

    def broken(frame):
        return frame.withColumn("value", F.expr("if(i < 0, value, raise_error('not today'))"))

    with pytest.raises(Py4JJavaError, match=r"not today|TASK_WRITE_FAILED"):
        lake.batch(0, range(50), name="odrers", change=broken)

    told = lake.refused(0, range(50), query="other")
    assert "is kept in it under name='odrers'" in told
    key = re.search(r"UNSET TBLPROPERTIES \('(.*?)'\)", told)[1]
    lake.sql(f"ALTER TABLE {{}} UNSET TBLPROPERTIES ('{key}')")

    lake.batch(0, range(50), query="other")
    assert lake.numbers() == Counter(range(50))


@pytest.mark.slow
def test_a_claim_that_is_taken_while_a_batch_is_written_is_noticed(lake, gate):
    """Both have written then: the query stops at once, and not some batches later."""
    with gate.during(lake.refused, 0, range(50)) as writing:
        table = LakeTable(lake.spark, lake.at("orders"))
        properties = table.state().properties
        ((key, claim),) = ((k, v) for k, v in properties.items() if k.startswith("zeh_spark."))
        assert key == property_of(json.loads(claim)["feed"])
        table.set_properties({key: claim.replace('"orders"', '"thief"')})

    assert "is kept in it under name='thief'" in writing.result()


def make_anew(lake):
    """Drop the table, and make it anew, empty, with the same version number."""
    table = LakeTable(lake.spark, lake.at("orders"))
    before, schema = table.state(), lake.table().schema
    lake.drop("orders")
    lake.spark.createDataFrame([], schema).write.format("delta").save(lake.at("orders"))
    for number in range(before.version):
        table.set_properties({"made": f"{number}"})
    after = table.state()
    assert after.version == before.version and after.id != before.id


@pytest.mark.slow
def test_a_table_that_is_made_anew_under_a_running_query_is_refused(lake):
    """A batch made meanwhile would land in the new table, which lacks those before."""
    writer = lake.writer()
    lake.batch(0, range(50), writer=writer)
    make_anew(lake)
    told = lake.refused(1, range(50, 80), writer=writer)
    assert "the table is another one, or was emptied or replaced" in told

    def transform(batch, number):
        make_anew(lake)
        return batch

    lake.batch(0, range(50), query="new")
    told = lake.refused(1, range(50, 80), query="new", transform=transform)

    assert "was dropped while a batch was written to it" in told
    assert lake.numbers() == Counter()
