"""Process the events of sessions: each arrow of the flow chart of seed 003 (1.2), on Spark."""

from __future__ import annotations

import json
import threading

import pytest

from tests.fix_lake import why_absent
from tests.patience import PATIENCE

pytest.importorskip("delta", reason=why_absent())
pytest.importorskip("google.protobuf", reason="protobuf is not installed")

from zeh_spark import sessions
from zeh_spark.errors import OptionError


class Unpicklable:
    """It holds a lock, as an open connection does."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __call__(self, event: sessions.Event) -> None: ...


class Failing:
    def __call__(self, event: sessions.Event) -> None:
        raise ValueError


def test_every_arrow_of_the_chart(processing):
    """Next in sequence, deferred, last, failed to the dead letters, deferred found (003, 1.2); and
    a deferred event that fails, or is the last one. [SB-06, SB-07]
    """
    add = processing.orders.add
    add(("a", 1))  # deferred
    add(("b", 0))
    add(("b", 1), fail="9")  # fails: to the dead letters, and the session continues
    add(("b", 2))
    add(("c", 0), last="0")  # the last: the session is closed
    add(("c", 1))
    add(("d", 0), fail="9", last="0")  # the last one fails
    add(("e", 1), fail="9")  # deferred
    add(("e", 3), last="3")  # deferred, and the last one
    processing.run(frame={"last": "headers['last']"})
    assert [[], []] == [processing.verdicts(name) for name in "ae"]
    add(("a", 0))  # the deferred one is found
    add(("e", 2), ("e", 0))  # the deferred ones are found: one fails, and the last one closes
    add(("e", 4))

    processing.run(frame={"last": "headers['last']"})

    assert [(0, "ok", 1), (1, "ok", 1)] == processing.verdicts("a")
    assert [(0, "ok", 1), (1, "failed", 1), (2, "ok", 1)] == processing.verdicts("b")
    assert [(0, "ok", 1), (1, "dead", None)] == processing.verdicts("c")
    assert [(0, "failed", 1)] == processing.verdicts("d")
    assert [
        *[(0, "ok", 1), (1, "failed", 1), (2, "ok", 1), (3, "ok", 1), (4, "dead", None)]
    ] == processing.verdicts("e")
    calls = processing.shop.calls()
    assert [0, 1] == [step for order, step, _ in calls if order == "a"]
    assert [0, 1, 2] == [step for order, step, _ in calls if order == "b"]
    assert [0, 1, 2, 3] == [step for order, step, _ in calls if order == "e"]
    (row,) = processing.table().where("session = 'a' AND number = 1").collect()
    assert 'a1: {"order":"a"}' == row.result.replace(" ", "").replace("a1:", "a1: ")
    failed = [(order, number, "failed") for order, number in (("b", 1), ("d", 0), ("e", 1))]
    assert failed == processing.unresolved()


@pytest.mark.slow
def test_each_kind_has_its_handler(processing):
    """The seed's Processor1 and Processor2 by ActivityInfo (003, 1.1); another kind fails. Failed
    events, and those that cannot be ordered, go to a feed by a query of their own, from the table.
    """
    orders = processing.orders
    orders.add(("a", 0), kind="pay")
    orders.add(("a", 1), kind="ship")
    orders.add(("a", 2), kind="fly", last="2")
    orders.add(("a", 3), kind="pay")

    processing.run(
        frame={"last": "headers['last']"},
        handler={"pay": lambda event: "paid", "ship": lambda event: "shipped"},
        activity="headers['kind']",
    )

    rows = processing.table().where("status <> 'dead'").orderBy("number")
    assert [
        ("ok", "paid", None),
        ("ok", "shipped", None),
        ("failed", None, "no handler for 'fly'"),
    ] == [tuple(row) for row in rows.select("status", "result", "detail").collect()]
    url = orders.create("dead")
    letters = orders.spark.readStream.format("delta").load(processing.at)
    letters = letters.where("status IN ('failed', 'dead')").select("headers", "data", "dead")
    query = letters.writeStream.foreachBatch(sessions.to_feed(url, producerId="dead"))
    query = query.option("checkpointLocation", str(orders.folder / "dead"))
    assert query.trigger(availableNow=True).start().awaitTermination(PATIENCE)
    rows = orders.spark.read.format("zeroeventhub").load(url).collect()
    reasons = sorted(json.loads(row.data)["reason"] for row in rows)
    assert reasons[0].startswith("closed: session 'a', number 3, expected 3")
    assert reasons[1] == "failed: session 'a', number 2: no handler for 'fly'"


@pytest.mark.slow
def test_a_repaired_event_is_known_after_its_session_was_forgotten(processing):
    """I repair a dead letter after a weekend. It is processed once, with the key of the event that
    failed. Events that were processed before are ignored. A session that was held continues: a
    replay of the event that holds it is a retry with other content.
    """
    add, again = processing.orders.add, {"session-control": "replay"}
    frame = {"last": "headers['last']", "keep_closed": "10 seconds"}
    add(("a", 0))
    add(("a", 1), fail="1")
    add(("a", 2), last="2")
    processing.run(frame=frame)
    processing.options["on_failure"] = "hold"
    add(("b", 0))
    add(("b", 1), fail="1")
    add(("b", 2), last="2")
    add(("c", 0), fail="9", at=1_000)  # from now on `a` and `b` are forgotten, and `c` is not
    add(("c", 1), at=1_000)
    processing.run(frame=frame)
    assert [("a", 1), ("b", 1), ("b", 2), ("c", 0), ("c", 1)] == [
        (order, number) for order, number, _ in processing.unresolved()
    ]

    add(("a", 1), ("a", 0), ("b", 1), ("c", 0), at=1_001, **again)
    add(("a", 1), ("c", 0), at=1_001, **again)
    processing.run(frame=frame)

    assert [
        (0, "ignored", None),
        (0, "ok", 1),
        (1, "ignored", None),
        (1, "failed", 1),
        (1, "ok", 2),
        (2, "ok", 1),
    ] == processing.verdicts("a")
    assert [
        *[(0, "ok", 1), (1, "failed", 1), (1, "ok", 2), (2, "waiting", 0), (2, "ok", 1)],
    ] == processing.verdicts("b")
    assert [(0, 2), (1, 1)] == processing.done("c")
    told = [each for order in "ac" for each in processing.details("ignored", order)]
    assert ["it was processed before"] * 3 == told
    assert {1} == {len(keys) for keys in processing.shop.keys().values()}
    assert 11 == len(processing.shop.calls())
    assert [] == processing.unresolved()


@pytest.mark.slow
def test_the_query_fails_and_no_event_does(processing):
    """Nothing is committed, and the batch is processed when the query starts again. If it is
    committed, and Spark forgets it in a crash, a repeated batch calls nothing.
    """
    processing.orders.add(("a", 0), fail="slow")
    processing.orders.add(("b", 0), fail="9")
    told = processing.fail(timeout="1 second")
    assert "the handler took over timeout=1 seconds" in told
    told = processing.fail(handler=Failing(), max_failures=0)
    assert "more than max_failures=0 events of a batch failed" in told

    calls = processing.orders.folder / "calls"

    def fine(event):
        with calls.open("a") as file:
            file.write(f"{event.session}\n")

    processing.run(handler=fine)
    processing.orders.forget(1)
    processing.run(handler=fine)
    assert [[(0, 1)], [(0, 1)]] == [processing.done("a"), processing.done("b")]
    assert ["a", "b"] == sorted(calls.read_text().split())


def test_wrong_arguments_are_named(processing):
    """Before anything runs."""
    given = {"table": "t", "name": "n", "checkpointLocation": "c"}
    for arguments, message in [
        ({"handler": 7}, "must be a function of an Event"),
        ({"handler": str, "activity": "data"}, "belong together"),
        ({"handler": {"a": str}}, "belong together"),
        ({"handler": str, "on_failure": "ignore"}, "on_failure='ignore' must be one of"),
        ({"handler": str, "result": "TEXTS"}, "result='TEXTS' must be a type"),
        ({"handler": str, "retries": -1}, "retries=-1"),
        ({"handler": str, "merge_keys": ["a"]}, "'merge_keys' is not for you"),
        ({"handler": Unpicklable()}, "cannot be pickled"),
    ]:
        with pytest.raises(OptionError, match=message.replace("(", "\\(")):
            sessions.process(**{**given, **arguments})


def test_frames_without_processing_are_refused(processing, spark):
    """The frame has to say which event of which session each row is."""
    given = {"table": processing.at, "name": "n", "checkpointLocation": "c"}
    with pytest.raises(OptionError, match=r"in_order\(…, processing=True\)"):
        sessions.process(str, **given)(spark.sql("SELECT 'ordered' AS status, NULL AS dead"), 0)
