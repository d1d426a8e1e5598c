"""Columns are found as Spark finds them: in any case, unless the session distinguishes names."""

from types import SimpleNamespace

import pytest

pytest.importorskip("google.protobuf", reason="protobuf is not installed")

from chispa import assert_df_equality
from pyspark.errors import PySparkException

from zeh_spark import parsed, stamped
from zeh_spark.errors import OptionError
from zeh_spark.sessions import route
from zeh_spark.spark.frames.compat import column_of
from zeh_spark.spark.frames.stamping import has_columns
from zeh_spark.spark.sessions.letters import letters
from zeh_spark.spark.sessions.processing import _checked
from zeh_spark.spark.stateful import requirements
from zeh_spark.wire import partitioning

EVENT = """
    SELECT map('zeh-time', '7000', 'zeh-sequence', '3', 'a', 'b') AS headers, 1 AS partition,
    '{"i": 1}' AS data
"""
DEAD = """
    named_struct('reason', 'gap', 'session', 's', 'expected', 1L, 'received', 2L,
    'missing', named_struct('first', 1L, 'last', 1L), 'held_since', timestamp'2026-01-01',
    'detail', '') AS dead
"""


def shouted(frame):
    return frame.toDF(*map(str.upper, frame.columns))


def first(frame):
    return [*frame.collect()[0]]


@pytest.fixture
def case_sensitive(spark):
    """Spark distinguishes `data` and `DATA` while the test runs."""
    spark.conf.set("spark.sql.caseSensitive", "true")
    yield
    spark.conf.unset("spark.sql.caseSensitive")


@pytest.fixture
def event(spark):
    return spark.sql(EVENT)


# What is published and read


def test_events_of_a_key_go_where_it_belongs(spark, write, target):
    """A frame of a database that shouts its names is published as any other."""
    text = "'1' AS DATA, 'customer-7' AS KEY, map('a', 'b') AS Headers"
    write(spark.sql(f"SELECT {text} FROM range(3)"), batchId="a")

    found = {(each.partition, each.data, each.headers["a"]) for each in target.events()}
    assert {(partitioning.partition_of("customer-7", 3), 1, "b")} == found


def test_a_session_that_distinguishes_names_is_told(
    case_sensitive, spark, write, fail_write, sink, inbox
):
    """`KEY` may be a column of its own there, so it is neither taken for `key` nor published."""
    inbox.add(range(3))
    said = "OptionError: spark.sql.caseSensitive=true, and the frame has a column "

    assert said + "'KEY', which could be" in fail_write(
        spark.sql("SELECT '1' AS data, 'k' AS KEY"), batchId="a"
    )
    assert said + "'DATA', which could be" in sink.fail(inbox.rows(spark).toDF("DATA"))
    write(spark.sql("SELECT '1' AS data, 'k' AS key"), batchId="b")

    assert [1] == [each.data for each in sink.target.events()]


def test_a_schema_may_be_in_any_case(spark, publisher):
    """I get the columns that I name, as I write them."""
    publisher.publish({"i": 1}, {"i": 2}, partition=1)
    schema = "DATA STRING, STOREDPARTITION INT, Sequence BIGINT, Headers MAP<STRING, STRING>"
    reader = spark.read.format("zeroeventhub").option("headers", "none")

    frame = reader.schema(schema).load(publisher.url)
    plain = reader.schema(schema.lower().replace("dp", "dP")).load(publisher.url)

    assert ["DATA", "STOREDPARTITION", "Sequence", "Headers"] == frame.columns
    assert [('{"i": 1}', 1, 0, {}), ('{"i": 2}', 1, 1, {})] == [*map(tuple, plain.collect())]
    assert_df_equality(plain, frame.toDF(*plain.columns))


# What is made of frames


@pytest.mark.parametrize(
    "make",
    [
        lambda frame: stamped(frame).drop("data"),
        lambda frame: parsed(frame, "i INT"),
        lambda frame: frame.select(requirements.content(frame, "content", None)),
    ],
)
def test_functions_find_columns_in_any_case(make, event):
    """`stamped`, `parsed`, and what deduplication and sessions compare."""
    lower, upper = make(event), make(shouted(event))

    assert first(lower) == first(upper)
    assert [*map(str.lower, upper.columns)] == [*map(str.lower, lower.columns)]


@pytest.mark.parametrize("make", [lambda frame: parsed(frame, "i INT"), stamped])
def test_other_columns_stay_whatever_their_names_are(make, spark):
    """A name with dots is no path into another column, and may have backticks."""
    frame = make(
        spark.sql(
            """SELECT '{"i": 1}' AS data, map('a', 'b') AS headers, 2 AS `headers.a`,
            struct(3 AS b) AS x, 4 AS `x.b`, 5 AS `x``b`"""
        )
    ).drop("data", "headers")

    assert ["headers.a", "x", "x.b", "x`b"] == frame.columns[:4]
    assert [2, (3,), 4, 5] == first(frame)[:4]


def test_what_is_compared_without_data_leaves_out_the_envelope(event):
    """Another partition or stamp of an event is not another event."""
    frame = shouted(event.withColumnRenamed("data", "x"))

    assert ['{"X":"{\\"i\\": 1}"}'] == first(
        frame.select(requirements.content(frame, "content", None))
    )


def test_typed_stamps_are_known_in_any_case(spark):
    """Also from a catalog that keeps names in lower case. A column `producer` alone is mine."""
    typed = spark.sql(
        "SELECT current_timestamp() AS TIMESTAMP, 'p' AS Producer, 0 AS storedpartition, "
        "1L AS SEQUENCE"
    )

    assert has_columns(typed)
    assert not has_columns(typed.select("Producer"))


def test_dead_letters_hold_the_event_in_any_case(event):
    """`DATA` is the event, and `PARTITION` its place."""
    dead = event.selectExpr("*", DEAD)

    assert_df_equality(letters(dead, "p", 0), letters(shouted(dead), "p", 0))


def test_a_frame_for_process_is_known_in_any_case(event):
    """It is not routed: its control events would be lost."""
    frame = event.selectExpr(
        "*", DEAD, "'control' AS status", "named_struct('control', 'skip') AS delivery"
    )
    write = route(ordered=lambda *_: None, dead=lambda *_: None)

    with pytest.raises(OptionError, match="without processing=True"):
        write(shouted(frame), 0)
    assert ["dead", "status", "delivery"] == _checked(shouted(frame)).columns[-3:]


# What is not known


def test_columns_that_differ_only_in_case_are_refused_by_name(event):
    """Spark could not tell either which of them is meant."""
    with pytest.raises(OptionError, match="the columns 'data' and 'DATA' have the same name"):
        parsed(event.toDF("headers", "data", "DATA"), "i INT")


def test_a_session_that_distinguishes_names_has_both(case_sensitive, event):
    """`DATA` is a column like any other there."""
    frame = parsed(event.selectExpr("headers", "data", "7 AS DATA"), "i INT")

    assert (["headers", "DATA", "i"], [7, 1]) == (frame.columns, first(frame)[1:])
    with pytest.raises(OptionError, match="has no column 'headers'"):
        stamped(shouted(event))


def test_a_setting_that_a_platform_hides_is_not_needed():
    """The exact name comes first there, then one in another case."""

    def hidden(*_):
        raise PySparkException("[CONFIG_NOT_AVAILABLE]")

    session = SimpleNamespace(conf=SimpleNamespace(get=hidden))
    frame = SimpleNamespace(columns=["data", "DATA", "KEY"], sparkSession=session)

    assert ["data", "KEY", None] == [column_of(frame, name) for name in ("data", "key", "headers")]
