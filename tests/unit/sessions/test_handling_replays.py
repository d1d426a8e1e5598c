"""Replays of events that tasks processed before, beside decisions and in sessions that are held."""

from __future__ import annotations

import pytest

from tests.cases import each_case
from tests.unit.sessions.tasks import batch, ran
from zeh_spark.sessions.handling import Past


def replayed(*rows, past, held=None, on_failure="hold", handler=lambda event: "done"):
    """(number, status, attempt) of what comes of (status, number, control, attempts) rows."""
    given = batch(
        [(each[0], "a", each[1]) for each in rows],
        control=[each[2] for each in rows],
        attempts=[each[3] for each in rows],
        attempt=[1 if each[0] == "control" else None for each in rows],
    )
    found = ran(
        handler,
        given,
        on_failure=on_failure,
        held={"a": held} if held else {},
        past={("a", number): {0: said} if said else {} for number, said in past.items()},
    )
    return [(row["number"], row["status"], row["attempt"]) for row in found]


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


def from_the_fifth(event):
    if event.attempt < 5:
        raise ValueError("not yet")
    return "done"


@each_case(
    ("rows", "options", "expected"),
    [
        # a replay that waits is processed when its session is released, also in the same batch
        ([("failed", 3, "", 1), ("waiting", 4, "", 0), ("ordered", 1, "replay", 0),
          ("ordered", 3, "replay", 0)],
         {"held": (0, 3, 1), "past": {3: Past("failed", 1, "k")}},
         [(1, "waiting", 0), (3, "ok", 2), (4, "ok", 1), (1, "ok", 1)]),
        # each replay continues the attempts of the one before, so that the newest verdict has the
        # highest
        ([("ordered", 1, "replay", 0)] * 3,
         {"past": {1: Past("failed", 3, "k")}, "on_failure": "dead-letter",
          "handler": from_the_fifth},
         [(1, "failed", 4), (1, "ok", 5), (1, "ignored", None)]),
        # an event and its replay in one batch are processed once: the first processing is noted for
        # the replays that come after it
        ([("ordered", 1, "", 0), ("ordered", 1, "replay", 0)],
         {"past": {1: None}, "on_failure": "dead-letter"}, [(1, "ok", 1), (1, "ignored", None)]),
    ],
)  # fmt: skip
def test_what_comes_of_replays(rows, options, expected):
    assert expected == replayed(*rows, **options)


@pytest.mark.parametrize("held", [(0, 1, 1), None])
def test_a_repaired_event_has_the_key_of_the_one_that_failed(held):
    """A service that saw the failed call recognizes the next one."""
    new = slice(0 if held else 1, None)
    given = batch(
        [("failed", "a", 1), ("ordered", "a", 1)][new],
        event_key=["first", "second"][new],
        control=["", "replay"][new],
    )
    found = ran(
        lambda event: event.key,
        given,
        on_failure="hold" if held else "dead-letter",
        held={"a": held} if held else {},
        past={("a", 1): {0: Past("failed", 1, "first")}},
    )

    assert [("first", "first", 2)] == [(r["result"], r["event_key"], r["attempt"]) for r in found]
