"""Each id once within a window: ids that are no numbers (seeds 001 and 004)."""

import json
from collections import Counter
from operator import eq

import pytest

pytest.importorskip("google.protobuf", reason="protobuf is not installed")

from tests.fix_lake import said
from zeh_spark import dedup, parsed
from zeh_spark.errors import OptionError
from zeh_spark.spark.stateful.requirements import content
from zeh_spark.testing import publish

ID = "get_json_object(data, '$.id')"
ZONE = "spark.sql.session.timeZone"


@pytest.fixture
def run(collected):
    """Runs a frame to its end: how often each (flag, id, v) came out of this run."""

    def go(frame):
        collected.rows.clear()
        collected.run(frame)
        rows = [(row["dedup"], json.loads(row["data"])) for row in collected.rows]
        return Counter((flag, data.get("id"), data["v"]) for flag, data in rows)

    return go


@pytest.mark.slow
def test_each_id_passes_once_and_other_content_is_told(publisher, stream, run, collected):
    """In one batch and across restarts; an event without an id passes. An id belongs to its scope,
    by default the feed: two shops may count their orders alike. Too many ids stop the query, and a
    larger cap continues: nothing is passed on before, and nothing is lost.
    """
    publisher.store.create("other", 1)
    both = stream(url=publisher.url).load().union(stream(url=f"{publisher.base}/other").load())
    frame = dedup.drop_seen(both, id=ID, window="7 days", buckets=2)
    publisher.publish({"id": "a", "v": 1}, {"id": "b", "v": 1}, {"id": "a", "v": 1}, {"v": 5})
    publish(publisher.store, "other", [{"id": "a", "v": 1}, {"id": "a", "v": 1}])
    with pytest.raises(Exception) as raised:
        run(dedup.drop_seen(both, id=ID, window="7 days", buckets=2, max_ids=2))
    assert "max_ids allows 1 for each of the 2 buckets" in said(raised.value)

    assert {("new", "a", 1): 2, ("new", "b", 1): 1, ("unstamped", None, 5): 1} == run(frame)

    publisher.publish({"id": "b", "v": 1}, {"id": "c", "v": 1}, {"id": "b", "v": 2})
    before = len(collected.queries)

    assert {("new", "c", 1): 1, ("conflict", "b", 2): 1} == run(frame)
    counts = [
        each.observedMetrics["dedup"].asDict()
        for query in collected.queries[before:]
        for each in query.recentProgress
        if each.numInputRows
    ]
    assert (1, 1, 1, 0) == tuple(
        sum(each[name] for each in counts) for name in ("new", "dropped", "conflict", "unknown")
    )


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [("none", "_all"), ("_all", "none")])
def test_ids_are_not_forgotten_if_events_begin_or_end_to_tell_their_feed(
    publisher, stream, run, before, after
):
    """It is in a header, so another value of the option `headers` stops the query, and the old one
    lets it continue.
    """

    def frame(headers, **options):
        feed = stream(url=publisher.url, headers=headers, **options).load()
        return dedup.drop_seen(feed, id=ID)

    publisher.publish({"id": "a", "v": 1})
    run(frame(before))
    publisher.publish({"id": "a", "v": 1})

    with pytest.raises(Exception) as raised:
        run(frame(after))

    assert "give headers, stamps and scope= as they were" in said(raised.value)
    publisher.publish({"id": "b", "v": 1})
    assert {("new", "b", 1): 1} == run(frame(before, replay="accept"))


def test_typed_events_with_other_times_are_in_conflict(publisher, stream, collected):
    """A microsecond is a difference, in an instant and in a time without a zone."""
    feed = stream(url=publisher.url, headers="none").load()
    typed = parsed(feed, "id STRING, at TIMESTAMP, local TIMESTAMP_NTZ")
    second = "2026-03-01T10:00:00"
    publisher.publish(
        *(
            {"id": id, "at": f"{second}.00000{at}Z", "local": f"{second}.00000{local}"}
            for id, at, local in [("a", 1, 1)] * 2 + [("b", 1, 1), ("b", 2, 1), ("c", 1, 1)]
        ),
        {"id": "c", "at": f"{second}.000001Z", "local": f"{second}.000002"},
    )

    collected.run(dedup.drop_seen(typed, id="id"))

    assert [("a", "new"), ("b", "conflict"), ("b", "new"), ("c", "conflict"), ("c", "new")] == (
        sorted((row["id"], row["dedup"]) for row in collected.rows)
    )


@pytest.mark.parametrize("kind", ["timestamp", "timestamp_ntz"])
def test_what_is_compared_has_whole_times_in_any_time_zone(spark, kind):
    """At any depth. After a restart with another time zone, a duplicate is one."""
    forms = [
        "{}",
        "named_struct('at', {})",
        "array({})",
        "map('at', {})",
        "map({}, 'at')",
        "named_struct('of', array(map('at', {})))",
        "to_variant_object(named_struct('at', {}))",
    ]

    def compared(micros):
        zone = "Z" if kind == "timestamp" else ""
        moment = f"{kind}'2026-03-01 10:00:00.00000{micros}{zone}'"
        frame = spark.range(1)
        return frame.select(*(content(frame, "content", form.format(moment)) for form in forms))

    before = spark.conf.get(ZONE)
    try:
        spark.conf.set(ZONE, "UTC")
        there, later = compared(1).first(), compared(2).first()
        spark.conf.set(ZONE, "Europe/Oslo")
        again = compared(1).first()
    finally:
        spark.conf.set(ZONE, before)

    assert there == again
    assert not any(map(eq, there, later))


def test_equal_maps_are_equal_content(spark):
    """In any order of their entries, and with keys that JSON has no names for."""
    maps = spark.sql("SELECT map(x'01', 1, x'02', 2) AS one, map(x'02', 2, x'01', 1) AS other")

    one, other = maps.select(*(content(maps, "content", name) for name in maps.columns)).first()

    assert one == other


@pytest.mark.parametrize("name", ["producer", "sequence", "partition", "feed", "id", "scope"])
def test_a_key_without_an_exact_text_is_refused(publisher, stream, name):
    """Two structs may have one text, and a map several; an instant has one for each time zone."""
    given = {"id": "data"} if name in ("id", "scope") else {"producer": "data", "sequence": "data"}
    feed = stream(url=publisher.url).load()
    cases = {
        "struct(data, data)": "must be one value, but is struct<",
        "array(data)": "must be one value, but is array<",
        "headers": "must be one value, but is map<",
        "parse_json(data)": "must be one value, but is variant",
        "timestamp_millis(1)": r"is a TIMESTAMP, .* Give unix_micros\(timestamp_millis\(1\)\)",
    }
    for value, told in cases.items():
        with pytest.raises(OptionError, match=told) as refused:
            dedup.drop_seen(feed, **{**given, name: value})
        assert name == refused.value.option


def test_arguments_of_the_other_way_are_refused(publisher, stream):
    """Ids have no producers, numbers no scope."""
    feed = stream(url=publisher.url).load()
    for options, message in [
        ({"id": ID, "producer": "data"}, "producer='data' cannot be given here"),
        ({"scope": "data"}, "scope='data' cannot be given here"),
        ({"window": "7 days"}, "durations are for id="),
        ({"id": ID, "window": "7"}, "window='7' must be a duration"),
        ({"id": ID, "max_ids": 0}, "max_ids=0"),
        ({"id": "nothing"}, "id='nothing' is no expression"),
    ]:
        with pytest.raises(OptionError, match=message):
            dedup.drop_seen(feed, **options)
