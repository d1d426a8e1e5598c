"""Steps by their names, and sessions whose key has several parts."""

import pytest

pytest.importorskip("google.protobuf", reason="protobuf is not installed")

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
    """I name the steps of each kind of session in their order, and the last one closes it (seed
    003, 1.1). Orders and returns with one id are two sessions; an unknown kind is named (1.3).
    """
    named = {"steps": KINDS, "kind": "headers['kind']"}
    orders.add(("a", "paid"), ("b", "placed"), ("a", "shipped"), ("a", "lost"), kind="order")
    orders.add(("a", None), ("a", "placed"), ("b", "paid"), kind="order")
    orders.add(("a", "checked"), ("a", "sent"), ("a", "paid"), kind="return")
    orders.add(("a", "paid"), kind="refund")
    orders.add(("a", "paid"))

    ordered, dead = run(orders, **named)

    assert [step for order, step in ordered if (order, step in STEPS) == ("a", True)] == STEPS
    assert [step for _, step in ordered if step not in STEPS] == KINDS["return"]
    assert [step for order, step in ordered if order == "b"] == STEPS[:2]
    assert {(each.reason, each.session, each.detail) for each in dead} == {
        ("invalid", "5:order1:a", "step is 'lost', and has to be placed, paid or shipped"),
        ("invalid", "5:order1:a", "step is NULL, and has to be placed, paid or shipped"),
        ("invalid", "6:return1:a", "step is 'paid', and has to be sent or checked"),
        ("invalid", "6:refund1:a", "kind is 'refund', and has to be order or return"),
        ("invalid", None, "no session"),
    }
    orders.add(("a", "paid"), ("b", "shipped"), kind="order")

    ordered, dead = run(orders, **named)

    assert [("b", "shipped")] == ordered
    assert [] == dead  # the second "paid" of a closed session is a duplicate


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
