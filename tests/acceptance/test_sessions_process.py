"""Process the events of sessions: each arrow of the flow chart of seed 003 (1.2), on Spark."""

from __future__ import annotations

import json
import threading
from collections import Counter

import pytest

from tests.fix_lake import said, why_absent
from tests.fix_sessions import needs_batches
from tests.fix_spark import check_killed, run_program
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
    open_ = sessions.unresolved(processing.orders.spark, processing.at)
    assert {("b", 1), ("d", 0), ("e", 1)} == {
        tuple(row) for row in open_.select("session", "number").collect()
    }


@pytest.mark.slow
def test_dead_letters_are_read_from_the_table(processing):
    """Failed events and those that cannot be ordered go to a feed by a query of their own."""
    orders = processing.orders
    orders.add(("b", 0), fail="9")
    orders.add(("b", 1), last="1")
    orders.add(("b", 2))
    processing.run(frame={"last": "headers['last']"})
    url = orders.create("dead")
    letters = orders.spark.readStream.format("delta").load(processing.at)
    letters = letters.where("status IN ('failed', 'dead')").select("headers", "data", "dead")

    query = letters.writeStream.foreachBatch(sessions.to_feed(url, producerId="dead"))
    query = query.option("checkpointLocation", str(orders.folder / "dead")).trigger(
        availableNow=True
    )
    assert query.start().awaitTermination(PATIENCE)

    rows = orders.spark.read.format("zeroeventhub").load(url).collect()
    reasons = sorted(json.loads(row.data)["reason"] for row in rows)
    assert reasons[0].startswith("closed: session 'b', number 2, expected 2")
    assert reasons[1] == "failed: session 'b', number 0: ValueError: no b 1"


@pytest.mark.slow
def test_a_replayed_event_is_processed_unless_it_was(processing):
    """It passes the ordering, and an `ok` drops it."""
    add = processing.orders.add
    add(("b", 0), ("b", 1), fail="1")
    processing.run()
    assert [(0, "failed", 1), (1, "failed", 1)] == processing.verdicts("b")

    add(("b", 0), **{"session-control": "replay"})
    add(("b", 0), **{"session-control": "replay"})
    processing.run()
    add(("b", 0), **{"session-control": "replay"})
    processing.run()

    verdicts = processing.verdicts("b")
    assert [(0, "failed", 1), (0, "ok", 2), (1, "failed", 1)] == [
        each for each in verdicts if each[1] != "ignored"
    ]
    assert ["it was processed before"] * 2 == processing.details("ignored")
    assert 3 == len(processing.shop.calls())


@pytest.mark.slow
def test_a_repaired_event_is_known_after_its_session_was_forgotten(processing):
    """I repair a dead letter after a weekend. It is processed once, with the key of the event that
    failed. Events that were processed before are ignored. A session that was held continues.
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
    add(("c", 0), at=1_000)  # from now on `a` and `b` are forgotten
    processing.run(frame=frame)
    open_ = sessions.unresolved(processing.orders.spark, processing.at).orderBy("session", "number")
    assert [("a", 1), ("b", 1), ("b", 2)] == [(row.session, row.number) for row in open_.collect()]

    add(("a", 1), ("a", 0), ("b", 1), at=1_001, **again)
    processing.run(frame=frame)

    assert [
        *[(0, "ignored", None), (0, "ok", 1), (1, "failed", 1), (1, "ok", 2), (2, "ok", 1)],
    ] == processing.verdicts("a")
    assert [
        *[(0, "ok", 1), (1, "failed", 1), (1, "ok", 2), (2, "waiting", 0), (2, "ok", 1)],
    ] == processing.verdicts("b")
    assert ["it was processed before"] == processing.details("ignored")
    assert {1} == {len(keys) for keys in processing.shop.keys().values()}
    assert 9 == len(processing.shop.calls())
    assert 0 == sessions.unresolved(processing.orders.spark, processing.at).count()


@pytest.mark.slow
def test_each_kind_has_its_handler(processing):
    """The seed's Processor1 and Processor2 by ActivityInfo (003, 1.1); another kind fails."""
    add = processing.orders.add
    add(("a", 0), kind="pay")
    add(("a", 1), kind="ship")
    add(("a", 2), kind="fly")

    processing.run(
        handler={"pay": lambda event: "paid", "ship": lambda event: "shipped"},
        activity="headers['kind']",
    )

    rows = processing.table().orderBy("number").select("status", "result", "detail").collect()
    assert [
        ("ok", "paid", None),
        ("ok", "shipped", None),
        ("failed", None, "no handler for 'fly'"),
    ] == [tuple(row) for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fail", "options", "message"),
    [
        ("slow", {"timeout": "1 second"}, "the handler took over timeout=1 seconds"),
        ("9", {"max_failures": 0}, "more than max_failures=0 events of a batch failed"),
    ],
)
def test_the_query_fails_and_no_event_does(processing, fail, options, message):
    """Nothing is committed, and the batch is processed when the query starts again."""
    processing.orders.add(("a", 0), fail=fail)

    assert message in processing.fail(**options)

    processing.run(handler=lambda event: "fine")
    assert [(0, "ok", 1)] == processing.verdicts("a")


@pytest.mark.slow
def test_a_repeated_batch_that_is_committed_calls_nothing(processing):
    """Spark forgets the batch in a crash; the table has it."""
    processing.orders.add(("a", 0), ("a", 1))
    processing.run()
    processing.orders.forget(1)

    processing.run()

    assert {("a", 0): 1, ("a", 1): 1} == Counter(
        (order, step) for order, step, _ in processing.shop.calls()
    )
    assert [(0, "ok", 1), (1, "ok", 1)] == processing.verdicts("a")


@pytest.mark.slow
@pytest.mark.kill
def test_each_event_has_one_verdict_whatever_is_killed(processing, tmp_path):
    """The driver in a handler and after the commit, a task's process in a handler: the table has
    each event once, and a repeated call has the key of the first.
    """
    orders, calls = processing.orders, tmp_path / "calls"
    orders.add(*(("a", step) for step in range(4)), *(("b", step) for step in range(4)))
    job = {
        "url": orders.url,
        "checkpoint": str(orders.checkpoint),
        "table": processing.at,
        "calls": str(calls),
    }
    for crash in ("handler", "commit", "worker", None):
        done = run_program("process_sessions.py", {**job, "crash": crash})
        check_killed(done, killed=crash in ("handler", "commit"))
        if crash == "commit":  # what the next runs process is repeated by a lost process only
            orders.add(*(("c", step) for step in range(4)))

    rows = processing.table().select("session", "number", "status", "attempt", "result").collect()
    assert sorted(map(tuple, rows)) == [
        (order, step, "ok", 1, f"{order}{step}") for order in "abc" for step in range(4)
    ]
    called = [line.split() for line in calls.read_text().splitlines()]
    times = Counter((order, int(step)) for order, step, _, _ in called)
    assert {2} == {times[order, 2] for order in "c"}
    assert (1, 2) == (times["c", 3], max(times.values()))
    began = [order for order, *_ in called].index("c")
    assert {"c"} == {order for order, *_ in called[began:]}  # what was committed is not called
    assert 12 == len({key for *_, key in called})
    assert {"1"} == {attempt for _, _, attempt, _ in called}


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


@pytest.mark.slow
@needs_batches
def test_frames_without_processing_are_refused(processing):
    """The frame has to say which event of which session each row is."""
    orders = processing.orders
    orders.add(("a", 0))
    given = {"table": processing.at, "name": "n", "checkpointLocation": str(orders.checkpoint)}
    query = orders.frame().writeStream.foreachBatch(sessions.process(str, **given))
    query = query.option("checkpointLocation", str(orders.checkpoint)).trigger(availableNow=True)
    with pytest.raises(Exception) as raised:
        query.start().awaitTermination()
    assert "in_order(…, processing=True)" in said(raised.value)
