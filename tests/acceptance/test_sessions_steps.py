"""Steps by their names, and sessions whose key has several parts."""

from __future__ import annotations

import pytest

pytest.importorskip("google.protobuf", reason="protobuf is not installed")

from tests.fix_sessions import needs_batches
from tests.fix_spark import in_batches
from tests.patience import PATIENCE
from zeh_spark import sessions

STEPS = ["placed", "paid", "shipped"]
KINDS = {"order": STEPS, "return": ["sent", "checked"]}


def run(orders, **options):
    """Read what is there: (session's key, step) in order, and (reason, detail) of dead letters."""
    ordered, dead = [], []

    def keep(batch, number):
        rows = batch.select("headers.order", "headers.step", "status", "dead").collect()
        ordered.extend((each.order, each.step) for each in rows if each.status == "ordered")
        dead.extend(each.dead for each in rows if each.status == "dead")

    frame = orders.frame(**options)
    assert in_batches(frame, keep, orders.checkpoint).awaitTermination(PATIENCE)
    return ordered, dead


def test_steps_have_names(orders):
    """I name the steps in their order, and the last one closes the session (seed 003, 1.1)."""
    orders.add(("a", "paid"), ("b", "placed"), ("a", "shipped"), ("a", "lost"), ("c", None))
    orders.add(("a", "placed"), ("b", "paid"))

    ordered, dead = run(orders, steps=STEPS)

    assert [step for order, step in ordered if order == "a"] == STEPS
    assert [step for order, step in ordered if order == "b"] == STEPS[:2]
    assert {(each.reason, each.detail) for each in dead} == {
        ("invalid", "step is 'lost', and has to be placed, paid or shipped"),
        ("invalid", "step is NULL, and has to be placed, paid or shipped"),
    }
    orders.add(("a", "paid"), ("b", "shipped"))

    ordered, dead = run(orders, steps=STEPS)

    assert [("b", "shipped")] == ordered
    assert [] == dead  # the second "paid" of a closed session is a duplicate


@pytest.mark.slow
def test_each_kind_of_session_has_its_steps(orders):
    """Orders and returns with one id are two sessions; an unknown kind is named (003, 1.3)."""
    orders.add(("7", "paid"), ("7", "shipped"), ("7", "placed"), kind="order")
    orders.add(("7", "checked"), ("7", "sent"), ("7", "paid"), kind="return")
    orders.add(("7", "paid"), kind="refund")
    orders.add(("7", "paid"))

    ordered, dead = run(orders, steps=KINDS, kind="headers['kind']")

    assert [step for _, step in ordered if step in STEPS] == STEPS
    assert [step for _, step in ordered if step not in STEPS] == ["sent", "checked"]
    assert {(each.session, each.detail) for each in dead} == {
        ("6:return1:7", "step is 'paid', and has to be sent or checked"),
        ("6:refund1:7", "kind is 'refund', and has to be order or return"),
        (None, "no session"),
    }


def test_session_of_several_columns(orders):
    """("a", "bc") and ("ab", "c") are two; a part that is NULL is invalid."""
    key = ["headers['country']", "headers['order']"]
    orders.add(("bc", 1), ("bc", 0), country="a")
    orders.add(("c", 1), country="ab")
    orders.add(("c", 0))

    ordered, dead = run(orders, session=key)
    found = sessions.inspect(orders.spark, str(orders.checkpoint)).collect()

    assert [("bc", "0"), ("bc", "1")] == ordered
    assert [("invalid", "no session", 0)] == [(e.reason, e.detail, e.received) for e in dead]
    assert {("1:a2:bc", 2), ("2:ab1:c", 0)} == {(each.session, each.expected) for each in found}


def test_feed_explains_a_gap_of_named_steps(orders):
    """The step that was missed is on the feed: published to the wrong kind, for instance."""
    orders.add(("7", "placed"), ("7", "shipped"), kind="order")
    schema = "dead STRUCT<session: STRING, missing: STRUCT<first: BIGINT, last: BIGINT>>"
    dead = orders.spark.createDataFrame([(("5:order1:7", (1, 2)),)], schema)

    found = sessions.explain(
        dead, orders.url, "headers['order']", "headers['step']", steps=KINDS, kind="headers['kind']"
    )

    rows = [(each.first, each.position is not None) for each in found.collect()]
    assert [(1, False), (2, True)] == rows


# Sessions that do not advance


@pytest.mark.slow
@needs_batches
def test_a_session_that_does_not_advance_is_reported(orders):
    """Its next step does not come; I see which one, and since when nothing came (SB-08)."""
    orders.add(("a", 0), ("b", 0), ("b", 2), at=100)
    orders.run(stale_timeout="50 seconds", gap_timeout=None)
    orders.add(("c", 0), at=160)
    orders.run(stale_timeout="50 seconds", gap_timeout=None)
    orders.add(("a", 1), ("c", 1), at=161)
    orders.run(stale_timeout="50 seconds", gap_timeout=None)

    records = {each.dead.session: each for each in orders.dead}
    assert {"a", "b"} == set(records)
    assert [("stale", None)] * 2 == orders.reasons()
    assert (1, None, None) == tuple(records["a"].dead[n] for n in ("expected", "missing", "detail"))
    assert (1, (1, 1)) == (records["b"].dead.expected, tuple(records["b"].dead.missing))
    assert records["a"].data is None
    assert [0, 1] == orders.steps("a")
    assert 2 == orders.count("stale")
