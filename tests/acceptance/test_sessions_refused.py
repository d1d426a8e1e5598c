"""What cannot be right is refused before a query starts, or stops it with what to do."""

import re
import sys

import pytest
from pyspark.sql import functions as F

pytest.importorskip("google.protobuf", reason="protobuf is not installed")

from tests.fix_sessions import AT
from zeh_spark import dedup, sessions
from zeh_spark.errors import CheckpointError, OptionError
from zeh_spark.spark.stateful.requirements import PROVIDER

STEPS = ["placed", "paid", "shipped"]
KINDS = {"order": STEPS, "return": ["sent", "checked"]}
REFUSED = [
    ({"gap_timeout": "soon"}, "gap_timeout='soon' must be a duration like '10 minutes'"),
    ({"keep_closed": "10"}, "keep_closed='10' must be a duration"),
    ({"delay": "-1 second"}, "delay='-1 second' must be a duration"),
    ({"on_gap": "wait"}, "on_gap='wait' must be one of 'hold', 'skip', 'dead-letter'"),
    ({"first": 2}, "first=2 must be one of 0, 1, 'seen'"),
    ({"first": True}, "first=True must be one of"),
    ({"buckets": 0}, "buckets=0 must be a whole number from 1"),
    ({"max_sessions": 0}, "max_sessions=0 must be a whole number from 1"),
    ({"max_events": 1.5}, "max_events=1.5 must be a whole number from 1"),
    ({"session": "order_id"}, "session='order_id' is no expression on the frame's columns"),
    ({"sequence": "headers["}, "sequence='headers[' is no expression"),
    ({"time": "partition"}, "time='partition' must be a TIMESTAMP, but is int"),
    ({"gap_timeout": 600}, "gap_timeout=600 must be a duration"),
    ({"keep_closed": None}, "keep_closed=None must be a duration"),
    ({"session": "headers"}, "session='headers' must be one value, but is map<"),
    ({"session": ["data", AT]}, "is a TIMESTAMP, whose text depends on the session's time zone"),
    ({"heartbeat": True}, "heartbeat=True needs time='batch'"),
    ({"stale_timeout": "1 hour", "idle_timeout": "1 hour"}, "must be shorter than idle_timeout"),
    # several sources
    ({"source": "data"}, "source= is for several sources. Give sources=, too"),
    ({"idle_source_timeout": "1 hour"}, "idle_source_timeout= is for several sources"),
    ({"sources": "eu"}, "sources='eu' must be a list of names"),
    ({"sources": []}, "must have at least one name"),
    ({"sources": ["eu", "eu"]}, "and none twice"),
    ({"sources": ["eu"], "time": "batch"}, "sources= needs the events' own times"),
    ({"sources": ["eu"], "idle_source_timeout": "soon"}, "idle_source_timeout='soon' must be"),
    ({"on_conflict": "ignore"}, "on_conflict='ignore' must be one of 'drop', 'dead-letter'"),
    ({"content": "data"}, "content= is for on_conflict='dead-letter'"),
    ({"sources": ["eu"], "source": "area"}, "source='area' is no expression"),
    # steps with names
    ({"steps": "placed"}, "steps='placed' must be a list of different names"),
    ({"steps": []}, "steps=[] must be a list"),
    ({"steps": ["a", "a"]}, "must be a list of different names"),
    ({"steps": ["a", 1]}, "must be a list of different names"),
    ({"steps": KINDS}, "Give kind=, a column or expression"),
    ({"steps": STEPS, "kind": "headers['kind']"}, "kind= needs steps= as a mapping"),
    ({"steps": {"": ["a"]}, "kind": "'x'"}, "They must be texts"),
    ({"kind": "'x'"}, "kind= needs steps="),
    ({"steps": STEPS, "last": "true"}, "last= and steps= exclude each other"),
    ({"steps": STEPS, "first": "seen"}, "first='seen' and steps= exclude each other"),
    ({"session": []}, "session=[] must have at least one column"),
]


def test_an_option_that_makes_no_sense_is_refused_by_name(orders):
    feed = orders.feed()
    for options, told in REFUSED:
        given = {"session": "headers['order']", "sequence": "headers['step']", "time": AT}
        with pytest.raises(OptionError, match=re.escape(told)):
            sessions.in_order(feed, **{**given, **options})


def test_a_frame_that_does_not_fit_is_refused(orders, spark):
    feed = orders.feed()
    names = {"session": "headers['order']", "sequence": "headers['step']"}
    cases = [
        (spark.read.format("zeroeventhub").load(orders.url), {}, "the frame is not a stream"),
        (feed.withColumn("Status", F.lit(1)), {}, "has the column 'Status' already"),
        (feed.withColumn("_zeh_event", F.lit(1)), {}, "has the column '_zeh_event' already"),
        (feed.drop("headers"), {"session": "data", "sequence": "data"}, "no column 'headers'"),
        (orders.frame().drop("status", "dead"), {}, "has a watermark already"),
        (
            feed.drop("headers"),
            {"session": "data", "sequence": "data", "time": "batch", "control": "data"}
            | {"processing": True},
            "Give attempt=",
        ),
        (feed.withColumn("v", F.parse_json("data")), {}, "column v: events with variant cannot"),
    ]
    for frame, options, told in cases:
        with pytest.raises(OptionError, match=told):
            sessions.in_order(frame, **{**names, **options})
    with pytest.raises(OptionError, match="producer= and sequence= need each other"):
        dedup.drop_seen(feed, producer="data")
    with pytest.raises(OptionError, match="dead=None must be a function"):
        sessions.route(ordered=print, dead=None)
    with pytest.raises(OptionError, match="route is for the frame of"):
        sessions.route(ordered=print, dead=print)(spark.range(1), 0)
    columns = "'control' status, NULL dead, named_struct('control', 'skip') delivery"
    with pytest.raises(OptionError, match="without processing=True"):
        sessions.route(ordered=print, dead=print)(spark.sql(f"SELECT {columns}"), 0)


def test_a_session_without_rocksdb_or_protobuf_is_told_what_to_add(orders, spark, monkeypatch):
    """Before the query starts, not by a worker that dies."""
    provider = spark.conf.get(PROVIDER)
    spark.conf.unset(PROVIDER)
    spark.conf.set(PROVIDER, "org.example.HDFSBackedStateStoreProvider")
    try:
        with pytest.raises(OptionError, match=r"zeh_spark.configure\(builder\) sets that"):
            orders.frame()
    finally:
        spark.conf.set(PROVIDER, provider)
    messages = "pyspark.sql.streaming.proto.StateMessage_pb2"
    monkeypatch.delitem(sys.modules, messages, raising=False)
    for missing in ("google.protobuf", "pandas"):
        with monkeypatch.context() as without:
            without.setitem(sys.modules, missing, None)
            with pytest.raises(OptionError, match=r"pip install 'zeh-spark\[sessions\]'"):
                dedup.drop_seen(orders.feed())


def test_what_would_undo_an_order_or_drop_its_events_is_refused(orders, spark):
    ordered = orders.frame().where("status = 'ordered'").drop("status", "dead")
    with pytest.raises(OptionError, match="Call drop_seen before in_order"):
        dedup.drop_seen(ordered)

    allowed = "spark.sql.streaming.statefulOperator.allowMultiple"
    spark.conf.set(allowed, "false")
    try:
        with pytest.raises(OptionError, match=f"with {allowed}=false a watermark"):
            orders.frame()
    finally:
        spark.conf.unset(allowed)


@pytest.mark.slow
def test_settings_that_are_the_checkpoints_for_ever_are_refused(orders):
    """With others a session would be read from another place, or begin elsewhere."""
    orders.add(("a", 0))
    orders.run(buckets=3)
    orders.add(("a", 1), ("b", 0))
    with pytest.raises(Exception, match=CheckpointError.__name__) as stopped:
        orders.run(buckets=2)
    assert "buckets=2, and the checkpoint's state was made with buckets=3" in str(stopped.value)

    orders.run(buckets=3)

    assert [0, 1] == orders.steps("a")


@pytest.mark.slow
def test_too_many_sessions_stop_the_query_and_nothing_is_lost(orders):
    """A session that never ends stays in the state. The error names the option and what to do; with
    a higher number the query continues, and each event comes once. [SB-12, SB-14]
    """
    orders.add(("a", 0), ("b", 0), last="0")
    orders.add(("c", 0), ("c", 2))
    given = {"last": "headers['last']", "buckets": 1, "limit": "1000"}
    orders.run(**given, max_sessions=1)
    assert (1, 2) == (orders.progress[-1]["open_sessions"], orders.progress[-1]["closed_sessions"])

    orders.add(("d", 0))
    orders.add(("c", 1))
    with pytest.raises(Exception, match=CheckpointError.__name__) as stopped:
        orders.run(**given, max_sessions=1)
    told = "would have 2 open sessions, and max_sessions=1 allows 1 for each of the 1 buckets"
    assert told in str(stopped.value)
    orders.run(**given, max_sessions=2)

    assert [("a", 0), ("b", 0), ("c", 0), ("c", 1), ("c", 2), ("d", 0)] == sorted(orders.ordered)
    assert [] == orders.dead


def test_events_without_the_clock_stop_the_query_and_name_the_option(orders):
    """Those of another publisher have no zeh-time."""
    orders.add(("a", 0))
    given = {"session": "data", "reader": {"headers": "order"}}
    with pytest.raises(Exception, match="no header zeh-time"):
        orders.run(**given, time=None)

    with pytest.raises(Exception, match=r"time=.timestamp_seconds"):
        orders.run(**given, time="timestamp_seconds(cast(headers['nothing'] AS BIGINT))")
