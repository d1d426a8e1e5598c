"""Replays of events that tasks processed before, beside decisions and in sessions that are held."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
from pyspark import cloudpickle

from tests.unit.sessions.tasks import PLAN, batch
from zeh_spark.sessions.handling import Past, task


def replayed(*rows, held=None, past=None, on_failure="hold", handler=None):
    """(number, status, attempt) of what comes of (status, number, control, attempts) rows."""
    given = batch([(each[0], "a", each[1]) for each in rows], pa.string())
    columns = given.to_pydict()
    columns["control"] = [each[2] for each in rows]
    columns["attempts"] = [each[3] for each in rows]
    columns["attempt"] = [1 if each[0] == "control" else None for each in rows]
    plan = replace(
        PLAN,
        handlers=cloudpickle.dumps({None: handler or (lambda event: "done")}),
        on_failure=on_failure,
        held={"a": held} if held else {},
        past={("a", number): {0: said} if said else {} for number, said in (past or {}).items()},
    )
    given = pa.RecordBatch.from_pydict(columns, given.schema)
    rows = [row for out in task(plan)(iter([given])) for row in out.to_pylist()]
    return [(row["number"], row["status"], row["attempt"]) for row in rows]


@pytest.mark.parametrize(("word", "first"), [("retry", ("ok", 2)), ("skip", ("skipped", 1))])
def test_a_replay_beside_the_decision_is_ignored(word, first):
    """The decision comes first, and processes what waits: nothing is processed twice."""
    found = replayed(
        ("failed", 1, "", 1),
        ("waiting", 2, "", 0),
        ("control", 1, word, 0),
        ("ordered", 1, "replay", 0),
        ("ordered", 2, "replay", 0),
        held=(0, 1, 1),
        past={1: Past("failed", 1, "k"), 2: Past("waiting", 0, "k")},
    )

    assert [(1, *first), (2, "ok", 1), (1, "ignored", None), (2, "ignored", None)] == found[1:]


def test_a_replay_that_waits_is_processed_when_its_session_is_released():
    """Also if that is in the same batch."""
    found = replayed(
        ("failed", 3, "", 1),
        ("waiting", 4, "", 0),
        ("ordered", 1, "replay", 0),
        ("ordered", 3, "replay", 0),
        held=(0, 3, 1),
        past={3: Past("failed", 1, "k")},
    )

    assert [(1, "waiting", 0), (3, "ok", 2), (4, "ok", 1), (1, "ok", 1)] == found


def test_each_replay_continues_the_attempts_of_the_one_before():
    """So that the newest verdict has the highest attempt."""

    def handler(event):
        if event.attempt < 5:
            raise ValueError("not yet")
        return "done"

    found = replayed(
        *[("ordered", 1, "replay", 0)] * 3,
        past={1: Past("failed", 3, "k")},
        on_failure="dead-letter",
        handler=handler,
    )

    assert [(1, "failed", 4), (1, "ok", 5), (1, "ignored", None)] == found


def test_an_event_and_its_replay_in_one_batch_are_processed_once():
    """The first processing of a batch is noted for the replays that come after it."""
    found = replayed(
        ("ordered", 1, "", 0),
        ("ordered", 1, "replay", 0),
        past={1: None},
        on_failure="dead-letter",
    )

    assert [(1, "ok", 1), (1, "ignored", None)] == found


@pytest.mark.parametrize("held", [(0, 1, 1), None])
def test_a_repaired_event_has_the_key_of_the_one_that_failed(held):
    """A service that saw the failed call recognizes the next one."""
    keys = []

    def handler(event):
        return event.key

    given = batch([("failed", "a", 1), ("ordered", "a", 1)][0 if held else 1 :], pa.string())
    columns = {**given.to_pydict(), "event_key": ["first", "second"][0 if held else 1 :]}
    columns["control"] = ["", "replay"][0 if held else 1 :]
    plan = replace(
        PLAN,
        handlers=cloudpickle.dumps({None: handler}),
        on_failure="hold" if held else "dead-letter",
        held={"a": held} if held else {},
        past={("a", 1): {0: Past("failed", 1, "first")}},
    )
    for out in task(plan)(iter([pa.RecordBatch.from_pydict(columns, given.schema)])):
        keys += [(row["result"], row["event_key"], row["attempt"]) for row in out.to_pylist()]

    assert [("first", "first", 2)] == keys
