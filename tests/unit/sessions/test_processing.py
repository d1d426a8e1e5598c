"""What the ordering does for `process`: replays, decisions, and which event each delivery is."""

import json
from types import SimpleNamespace

import pytest

from tests.cases import each_case
from tests.unit.sessions import buckets
from tests.unit.sessions.buckets import row, rows
from zeh_spark.errors import OptionError
from zeh_spark.spark.sessions.processing import _ORDERING, _checked


def deliveries(given):
    """(event, session, number, begun) of rows that are no dead letters."""
    told = [(each.event, json.loads(each.dead)) for each in given]
    return [
        (event, i["session"], i["number"], i["begun"]) for event, i in told if "reason" not in i
    ]


@pytest.mark.parametrize("order", [("copy", "repaired"), ("repaired", "copy")])
def test_the_replayed_event_is_delivered_and_its_copy_dropped(order):
    """Whichever comes first in a batch: the repaired content is what is processed."""
    told = buckets.told(processing=True)
    told.take(row("a", 0))
    clocks = {name: clock for clock, name in enumerate(order)}

    given = told.take(
        row("a", 0, clocks["copy"], event="copy"),
        row("a", 0, clocks["repaired"], event="repaired", control="replay"),
    )

    assert ["repaired"] == [each.event for each in given]
    assert 1 == told.count("duplicates")


def test_decisions_pass_before_the_events_of_their_session():
    """Also in a session that is not known; they change nothing in it."""
    told = buckets.told(processing=True)
    told.take(*rows("a", 0, 1, clock=5))
    before = told.stored

    given = told.take(
        row("a", 1, control="retry", event="r"), row("b", 7, control="skip", event="s")
    )

    assert [("r", "a", 1, None), ("s", "b", 7, None)] == deliveries(given)
    assert before == told.stored
    given = told.take(row("a", 2), row("a", 9, control="skip", event="s"))
    assert ["s", "a 2"] == [each.event for each in given]
    assert 3 == told.count("controls")


@each_case(
    ("steps", "opened"),
    [
        # a replay of a session that was forgotten is of none that is known: the table says which
        # event it is. The session that begins then is remembered its full time, and so are replays
        # before it begins
        ([([row("a", 0, clock=10, last=0)], 0, [("a 0", "a", 0, 10)]),
          ([row("a", 0, control="replay")], 10_000, [("a 0", "a", 0, None)]),
          ([row("a", 0, clock=10_090, last=0), row("a", 0, control="replay")], 10_090,
           [("a 0", "a", 0, 10_090)] * 2),
          ([row("a", 0, control="replay")], 10_150, [("a 0", "a", 0, 10_090)])], 0),
        # sessions of one name differ by when they began: the first was forgotten, and its verdicts
        # are not those of the second
        ([([row("a", 0, clock=10, last=0)], 0, [("a 0", "a", 0, 10)]),
          ([row("a", 0, clock=10_000, last=0)], 10_000, [("a 0", "a", 0, 10_000)])], 0),
        # held events are told when their session began, which is kept in the state
        ([([row("a", 1, clock=10)], 0, []),
          ([row("a", 0, clock=99)], 0, [("a 0", "a", 0, 10), ("a 1", "a", 1, 10)])], 2),
    ],
)  # fmt: skip
def test_deliveries_tell_when_their_session_began(steps, opened):
    """Each step has rows, the time and deliveries; `opened` sums up the open sessions."""
    told = buckets.told(keep_closed=100, processing=True)
    for given, now, expected in steps:
        assert expected == deliveries(told.take(*given, now=now))
    assert opened == told.count("open_sessions")


@each_case("given", ["true", "TRUE"])
def test_speculation_is_refused(given):
    """Spark would run a task twice, and call handlers twice for one event."""
    conf = {"spark.speculation": given}
    frame = SimpleNamespace(columns=list(_ORDERING), sparkSession=SimpleNamespace(conf=conf))

    with pytest.raises(OptionError, match="=true runs tasks twice") as refused:
        _checked(frame)
    assert "spark.speculation" == refused.value.option

    conf["spark.speculation"] = "false"
    _checked(frame)
