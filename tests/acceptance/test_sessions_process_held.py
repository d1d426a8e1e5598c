"""Sessions that an event's failure holds: decisions, replays and repaired events release them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.fix_lake import why_absent
from tests.fix_processing import Processing
from tests.fix_sessions import AT
from tests.fix_spark import in_batches
from tests.patience import PATIENCE

pytest.importorskip("delta", reason=why_absent())
pytest.importorskip("google.protobuf", reason="protobuf is not installed")

from zeh_spark import sessions
from zeh_spark.publish import Producer
from zeh_spark.spark.delta.delta_table import LakeTable


@pytest.mark.slow
def test_a_session_is_held_until_somebody_decides(processing, tmp_path):
    """on_failure="hold": what follows waits; a decision names the number and the attempt. A skip
    acts once: the second one finds nothing to skip, also if the next event fails. A session that
    one query holds is not held for another that keeps its verdicts in the same table.
    [SB-07, SB-08]

    I repair a dead letter after a weekend: `r`, and `w`, which is held. They were forgotten. It is
    processed once, with the key of the event that failed. Events that were processed before are
    ignored. A session that was held continues: a replay of the event that holds it is a retry with
    other content.
    """
    add, decide = processing.orders.add, processing.decide
    frame = {"last": "headers['last']", "keep_closed": "10 seconds"}
    again = {"session-control": "replay"}
    add(("r", 0), ("x", 0))
    add(("r", 1), fail="1")
    add(("r", 2), last="2")
    processing.run(frame=frame)
    processing.options["on_failure"] = "hold"
    add(("a", 0), ("w", 0))
    add(("a", 1), ("s", 0), ("s", 1), ("w", 1), fail="1")
    add(("a", 2), ("s", 2))
    add(("w", 2), last="2")
    add(("c", 0), fail="9", at=1_000)  # from now on `r` and `w` are forgotten, and `c` is not
    add(("c", 1), at=1_000)
    processing.run(frame=frame)
    assert [
        *[("a", 1), ("a", 2), ("c", 0), ("c", 1), ("r", 1)],
        *[("s", 0), ("s", 1), ("s", 2), ("w", 1), ("w", 2)],
    ] == [(order, number) for order, number, _ in processing.unresolved()]
    other = another(processing, tmp_path)
    other.orders.add(("a", 0), ("a", 1))
    other.run(name="other", handler=lambda event: "fine")

    add(("r", 1), ("r", 0), ("w", 1), ("c", 0), at=1_001, **again)
    add(("r", 1), ("c", 0), at=1_001, **again)
    add(("a", 3), ("x", 1))
    decide("a", "retry", 1, 7)  # it was attempt 1
    decide("a", "retry", 2, 1)  # that one waits
    decide("y", "skip", 0, 1)  # there is no such session
    decide("s", "skip", 0, 1)
    processing.run(frame=frame)
    events = ("ok", "failed", "skipped", "waiting")
    waits = [(2, "waiting", 0), (3, "waiting", 0)]
    skipped = [(0, "failed", 1), (0, "skipped", 1), (1, "waiting", 0), (1, "failed", 1)]
    skipped.append((2, "waiting", 0))
    assert [(0, "ok", 1), (1, "failed", 1), *waits] == processing.verdicts("a", *events)
    assert skipped == processing.verdicts("s", *events)
    assert [(0, 1), (1, 1)] == processing.done("x")
    assert [
        "retry of number 1, attempt 7: the session is held by number 1, attempt 1",
        "retry of number 2, attempt 1: the session is held by number 1, attempt 1",
        "skip of number 0, attempt 1: no event of the session is held",
    ] == processing.details("ignored", "a") + processing.details("ignored", "y")
    assert [
        *[(0, "ignored", None), (0, "ok", 1), (1, "ignored", None)],
        *[(1, "failed", 1), (1, "ok", 2), (2, "ok", 1)],
    ] == processing.verdicts("r")
    assert [
        *[(0, "ok", 1), (1, "failed", 1), (1, "ok", 2), (2, "waiting", 0), (2, "ok", 1)],
    ] == processing.verdicts("w")
    assert [(0, 2), (1, 1)] == processing.done("c")
    told = [each for order in "rc" for each in processing.details("ignored", order)]
    assert ["it was processed before"] * 3 == told

    decide("a", "retry", 1, 1)
    decide("s", "skip", 0, 1)
    add(("a", 4))
    processing.run(frame=frame)

    assert [(0, 1), (1, 2), (2, 1), (3, 1), (4, 1)] == processing.done("a")
    assert skipped == processing.verdicts("s", *events)
    assert [1, 1] == [len(processing.details(each, "s")) for each in ("control", "ignored")]
    assert [("s", 1, "failed"), ("s", 2, "waiting")] == processing.unresolved()
    calls = [(order, step) for order, step, _ in processing.shop.calls()]
    assert [0, 1, 1, 2, 3, 4] == [step for order, step in calls if order == "a"]
    assert 11 == len([order for order, _ in calls if order in "rwc"])
    assert {1} == {len(keys) for keys in processing.shop.keys().values()}
    rows = processing.table().where("processor = 'other'").select("number", "status").collect()
    assert [(0, "ok"), (1, "ok")] == sorted(map(tuple, rows))


def another(processing, tmp_path):
    """Processing of another feed into the same table."""
    url = processing.orders.create("other")
    changed = {"folder": tmp_path / "other", "url": url, "producer": Producer(url, "shop")}
    other = Processing(replace(processing.orders, **changed))
    other.at = processing.at
    return other


@pytest.fixture
def ours(processing):
    """`ours(handler)`: a function that runs the query with this handler as often as it is called.

    Its driver lives on between runs.
    """

    def make(handler, on_failure="hold"):
        orders = processing.orders
        given = {"table": processing.at, "name": "orders", "on_failure": on_failure, "retries": 0}
        write = sessions.process(handler, checkpointLocation=str(orders.checkpoint), **given)

        def run():
            frame = orders.frame(processing=True, reader={"headers": "_all"})
            assert in_batches(frame, write, orders.checkpoint).awaitTermination(PATIENCE)

        return run

    return make


@pytest.mark.slow
def test_a_session_that_another_driver_has_held_is_held(processing, ours):
    """It has committed the batch, which this driver finds in the table."""
    orders = processing.orders
    run = ours(lambda event: "fine")
    orders.add(("a", 0))
    run()
    orders.add(("a", 1), fail="1")
    processing.run(on_failure="hold")
    orders.forget(1)
    run()
    orders.add(("a", 2))
    run()

    assert [(0, "ok", 1), (1, "failed", 1), (2, "waiting", 0)] == processing.verdicts("a")


@pytest.mark.slow
def test_a_session_that_another_run_has_held_is_held_in_the_next(processing, ours):
    """My function is used again. When it ran before, there was none, and failures hold none."""
    orders = processing.orders
    run = ours(lambda event: "fine", on_failure="dead-letter")
    for step in range(2):
        orders.add(("a", step))
        run()
    orders.add(("a", 2), fail="1")
    processing.run(on_failure="hold")
    orders.add(("a", 3))
    run()

    assert [(2, "failed", 1), (3, "waiting", 0)] == processing.verdicts("a")[2:]


@pytest.mark.slow
def test_a_session_is_held_if_its_event_fails_when_its_handler_is_called_again(
    processing, ours, tmp_path, monkeypatch
):
    """As after the loss of an executor that had the verdicts, before they were committed."""

    def fail_again(event):
        (tmp_path / f"called-{event.number}").touch(exist_ok=False)

    def save(table, writer):
        monkeypatch.undo()
        blocks = table.spark.sparkContext._jsc.getPersistentRDDs()
        blocks[max(blocks)].unpersist(True)
        table.save(writer)

    monkeypatch.setattr(LakeTable, "save", save)
    run = ours(fail_again)
    processing.orders.add(("a", 0))
    run()
    processing.orders.add(("a", 1))
    run()

    assert [(0, "failed", 1), (1, "waiting", 0)] == processing.verdicts("a")


@pytest.mark.slow
def test_decisions_may_be_columns_and_need_no_time(processing):
    """A frame without headers: `control`, `attempt` and `time` are columns of its own. While a
    session is held, members of a STRUCT may change their places, and columns may be NOT NULL.
    """
    processing.options["on_failure"] = "hold"
    columns = ("order", "step", "word", "tried", "fail")
    named = [f"headers['{name}'] AS `{name}`" for name in columns]

    def run(*members: str) -> None:
        feed = processing.orders.feed(headers="_all")
        pair = ", ".join(f"'{name}', concat('{name}', headers['step'])" for name in members)
        more = [f"named_struct({pair}, 'one', 1) AS pair", "'fixed' AS fixed"]
        more.append(f"CASE WHEN headers['word'] IS NULL THEN {AT} END AS at")
        frame = feed.selectExpr(*named, *more)
        ordered = sessions.in_order(
            frame,
            session="order",
            sequence="step",
            time="at",
            control=frame["word"],
            attempt=frame["tried"],
            processing=True,
        )
        assert (False, False) == tuple(frame.schema[name].nullable for name in ("pair", "fixed"))
        processing.write(ordered, handler=handler)

    def handler(event: sessions.Event) -> int:
        row = event.row
        assert (f"a{event.number}", f"b{event.number}") == (row["pair"]["a"], row["pair"]["b"])
        assert ("fixed", 1) == (row["fixed"], row["pair"]["one"])
        return 1 // (row["fail"] != "1")

    processing.options["result"] = "BIGINT"
    processing.orders.add(("a", 0), fail="1")
    processing.orders.add(("a", 1))
    run("a", "b")
    processing.orders.add(("a", 0), word="skip", tried="1")
    run("b", "a")

    assert [(0, "skipped", 1), (1, "ok", 1)] == processing.verdicts("a", "ok", "skipped")
