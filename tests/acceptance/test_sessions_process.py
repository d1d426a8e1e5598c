"""Process the events of sessions: each arrow of the flow chart of seed 003 (1.2), on Spark."""

from __future__ import annotations

import json
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fix_lake import said, why_absent
from tests.fix_sessions import AT, needs_batches
from tests.fix_spark import check_killed, run_program
from tests.patience import PATIENCE

pytest.importorskip("delta", reason=why_absent())
pytest.importorskip("google.protobuf", reason="protobuf is not installed")

from zeh_spark import sessions
from zeh_spark.errors import OptionError
from zeh_spark.publish import Producer


class Shop:
    """A handler that writes down its calls, and fails as the events say.

    The header `fail` is a number of attempts that fail, or "slow".
    """

    def __init__(self, folder: Path) -> None:
        self.log = folder / "calls.ndjson"

    def __call__(self, event: sessions.Event) -> Any:
        order, step = event.headers["order"], int(event.headers["step"])
        call = {"place": [order, step], "attempt": event.attempt, "key": event.key}
        with self.log.open("a") as file:
            file.write(json.dumps(call) + "\n")
        told = event.headers.get("fail", "0")
        if told == "slow":
            threading.Event().wait()  # it never comes back
        if event.attempt <= int(told):
            raise ValueError(f"no {order}\x00 {event.attempt}")
        return f"{order}{step}: {event.data}"

    def calls(self) -> list[tuple[str, int, int]]:
        return [(*each["place"], each["attempt"]) for each in self._read()]

    def keys(self) -> dict[tuple[str, int], set[str]]:
        found: dict[tuple[str, int], set[str]] = {}
        for each in self._read():
            found.setdefault(tuple(each["place"]), set()).add(each["key"])
        return found

    def _read(self) -> list[dict[str, Any]]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [json.loads(line) for line in lines]


class Unpicklable:
    """It holds a lock, as an open connection does."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __call__(self, event: sessions.Event) -> None: ...


class Processing:
    """Sessions of `orders`, processed into a table."""

    def __init__(self, orders: Any) -> None:
        self.orders = orders
        self.at = str(orders.folder / "processed")
        self.shop = Shop(orders.folder)
        self.options: dict[str, Any] = {"retries": 0}

    def run(self, *, frame: dict[str, Any] | None = None, **options: Any) -> None:
        reader = {"headers": "_all"}
        given = self.orders.frame(processing=True, reader=reader, **(frame or {}))
        self.write(given, **options)

    def write(self, frame: Any, **options: Any) -> None:
        given = {"table": self.at, "name": "orders", "handler": self.shop, **self.options}
        given = {"checkpointLocation": str(self.orders.checkpoint), **given, **options}
        query = (
            frame.writeStream.foreachBatch(sessions.process(**given))
            .option("checkpointLocation", str(self.orders.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(PATIENCE)

    def fail(self, **options: Any) -> str:
        with pytest.raises(Exception) as raised:
            self.run(**options)
        return said(raised.value)

    def table(self) -> Any:
        return self.orders.spark.read.format("delta").load(self.at)

    def verdicts(self, order: str) -> list[tuple[int, str, int | None]]:
        """(step, status, attempt) of all rows of an order, in the order of steps and attempts."""
        rows = self.table().where(f"session = '{order}'").select("number", "status", "attempt")
        found = [tuple(row) for row in rows.collect()]
        return sorted(found, key=lambda row: (row[0], row[2] or 0, row[1]))

    def details(self, status: str) -> list[str]:
        rows = self.table().where(f"status = '{status}'").orderBy("session", "number").collect()
        return [row.detail for row in rows]

    def decide(self, order: str, word: str, number: int, attempt: object) -> None:
        headers = {"session-control": word, "session-attempt": str(attempt)}
        self.orders.add((order, number), **headers)


@pytest.fixture
def processing(orders):
    return Processing(orders)


def test_every_arrow_of_the_chart(processing):
    """Next in sequence, deferred, last, failed to the dead letters, deferred found (003, 1.2).
    [SB-06, SB-07]
    """
    add = processing.orders.add
    add(("a", 1), ("a", 0))  # deferred, then found
    add(("b", 0))
    add(("b", 1), fail="9")  # fails: to the dead letters, and the session continues
    add(("b", 2))
    add(("c", 0), last="0")  # the last: the session is closed
    add(("c", 1))
    add(("d", 0), fail="9", last="0")  # the last one fails

    processing.run(frame={"last": "headers['last']"})

    assert [(0, "ok", 1), (1, "ok", 1)] == processing.verdicts("a")
    assert [(0, "ok", 1), (1, "failed", 1), (2, "ok", 1)] == processing.verdicts("b")
    assert [(0, "ok", 1), (1, "dead", None)] == processing.verdicts("c")
    assert [(0, "failed", 1)] == processing.verdicts("d")
    calls = processing.shop.calls()
    assert [0, 1] == [step for order, step, _ in calls if order == "a"]
    assert [0, 1, 2] == [step for order, step, _ in calls if order == "b"]
    (row,) = processing.table().where("session = 'a' AND number = 1").collect()
    assert 'a1: {"order":"a"}' == row.result.replace(" ", "").replace("a1:", "a1: ")
    open_ = sessions.unresolved(processing.orders.spark, processing.at)
    assert {("b", 1), ("d", 0)} == {
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
def test_a_session_is_held_until_somebody_decides(processing):
    """on_failure="hold": what follows waits; a decision names the number and the attempt.
    [SB-07, SB-08]
    """
    add, decide = processing.orders.add, processing.decide
    processing.options["on_failure"] = "hold"
    add(("a", 0), ("x", 0))
    add(("a", 1), fail="1")
    add(("a", 2))
    processing.run()
    add(("a", 3), ("x", 1))
    decide("a", "retry", 1, 7)  # it was attempt 1
    decide("a", "retry", 2, 1)  # that one waits
    decide("y", "skip", 0, 1)  # there is no such session
    processing.run()
    waiting = [(0, "ok", 1), (1, "failed", 1), (2, "waiting", 0), (3, "waiting", 0)]
    assert waiting == [e for e in processing.verdicts("a") if e[1] not in ("ignored", "control")]
    assert [(0, "ok", 1), (1, "ok", 1)] == processing.verdicts("x")
    assert [
        "retry of number 1, attempt 7: the session is held by number 1, attempt 1",
        "retry of number 2, attempt 1: the session is held by number 1, attempt 1",
        "skip of number 0, attempt 1: no event of the session is held",
    ] == processing.details("ignored")

    decide("a", "retry", 1, 1)
    add(("a", 4))
    processing.run()

    done = [each for each in processing.verdicts("a") if each[1] == "ok"]
    assert [(0, "ok", 1), (1, "ok", 2), (2, "ok", 1), (3, "ok", 1), (4, "ok", 1)] == done
    steps = [step for order, step, _ in processing.shop.calls() if order == "a"]
    assert [0, 1, 1, 2, 3, 4] == steps
    assert 0 == sessions.unresolved(processing.orders.spark, processing.at).count()


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

    assert [(0, "skipped", 1), (1, "ok", 1)] == [
        each for each in processing.verdicts("a") if each[1] in ("ok", "skipped")
    ]


@pytest.mark.slow
def test_a_skip_acts_once(processing):
    """The second one finds nothing to skip, also if the next event fails."""
    processing.options["on_failure"] = "hold"
    processing.orders.add(("a", 0), fail="9")
    processing.orders.add(("a", 1), fail="9")
    processing.orders.add(("a", 2))
    processing.run()
    for _ in range(2):
        processing.decide("a", "skip", 0, 1)
        processing.run()

    assert [
        (0, "failed", 1),
        (0, "skipped", 1),
        (1, "waiting", 0),
        (1, "failed", 1),
        (2, "waiting", 0),
    ] == [each for each in processing.verdicts("a") if each[1] not in ("ignored", "control")]
    assert 1 == len(processing.details("control"))
    assert 1 == len(processing.details("ignored"))
    open_ = sessions.unresolved(processing.orders.spark, processing.at).orderBy("number").collect()
    assert [(1, "failed"), (2, "waiting")] == [(row.number, row.status) for row in open_]


@pytest.mark.slow
def test_a_repaired_event_releases_its_session(processing):
    """A replay of the event that holds the session is a retry with other content."""
    processing.options["on_failure"] = "hold"
    processing.orders.add(("a", 0), fail="9")
    processing.orders.add(("a", 1))
    processing.run()

    processing.orders.add(("a", 0), **{"session-control": "replay"})
    processing.run()

    done = [each for each in processing.verdicts("a") if each[1] == "ok"]
    assert [(0, "ok", 2), (1, "ok", 1)] == done
    assert 0 == sessions.unresolved(processing.orders.spark, processing.at).count()


@pytest.mark.slow
def test_two_queries_keep_their_verdicts_in_one_table(processing, tmp_path):
    """A session that one of them holds is not held for the other."""
    processing.options["on_failure"] = "hold"
    processing.orders.add(("a", 0), fail="1")
    processing.run()
    url = processing.orders.create("other")
    changed = {"folder": tmp_path / "other", "url": url, "producer": Producer(url, "shop")}
    other = Processing(replace(processing.orders, **changed))
    other.at = processing.at
    other.orders.add(("a", 0), ("a", 1))
    other.run(name="other", handler=lambda event: "fine")
    processing.orders.add(("a", 1))
    processing.run()

    rows = processing.table().select("processor", "number", "status").collect()
    assert [
        ("orders", 0, "failed"),
        ("orders", 1, "waiting"),
        ("other", 0, "ok"),
        ("other", 1, "ok"),
    ] == sorted(map(tuple, rows))


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
