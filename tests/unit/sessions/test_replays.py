"""Replays of events whose session is known, forgotten or in use again: ordering and tasks together.

The table is a list here. `a` is the session's name, also when it is used again.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.sessions import buckets
from tests.unit.sessions.tasks import batch, ran
from zeh_spark.spark.sessions.handling import OPEN, Past, replayed
from zeh_spark.spark.sessions.model import SessionEvent

RANK = {"skipped": 0, "ok": 1, "waiting": 2, "failed": 3}
FORGOTTEN = 1_000
"""Milliseconds after which a closed session is not known."""


@dataclass
class Site:
    """A bucket, tasks and a table. An event is "use:number", with "!" if it fails; a replay of it
    has "r" instead. After `forget` no session that was closed is known.
    """

    on_failure: str = "dead-letter"
    table: list[dict[str, Any]] = field(default_factory=list)
    now: int = 0

    def __post_init__(self) -> None:
        self.told = buckets.told(keep_closed=100, processing=True)

    def forget(self) -> Site:
        self.now += FORGOTTEN
        return self

    def take(self, *events: str, last: int = 9) -> Site:
        self.now += 1
        rows = [self._row(event, last) for event in events]
        given = [(each.event, json.loads(each.dead or "")) for each in self.told.take(
            *rows, now=self.now
        )]  # fmt: skip
        self.table += [
            {"status": "dead", "number": said["received"], "data": event, "begun": None}
            for event, said in given
            if "reason" in said
        ]
        alive = [(event, said) for event, said in given if "reason" not in said]
        self.table += self._processed(alive)
        return self

    def _row(self, event: str, last: int) -> SessionEvent:
        number = int(event.partition(":")[2].rstrip("!r"))
        control = "replay" if "r" in event else ""
        return buckets.row("a", number, self.now, event=event, control=control, last=last)

    def _processed(self, alive: list[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
        kept = [each for each in self.newest() if each["held"] and each["status"] in OPEN]
        rows = sorted(kept, key=lambda each: (each["begun"] or 0, each["number"]))
        for event, said in alive:
            told = {"status": "ordered", "data": event, "key": f"key {event}", "attempt": 0}
            rows.append({**said, **told})
        given = batch(
            [(row["status"], "a", row["number"]) for row in rows],
            begun=[row["begun"] for row in rows],
            event=[{"data": row["data"], "headers": []} for row in rows],
            event_key=[row["key"] for row in rows],
            control=["replay" if "r" in row["data"] else "" for row in rows],
            attempts=[row["attempt"] for row in rows],
        )
        past: dict[tuple[str, int], dict[int | None, Past]] = {}
        for _, said in alive:
            past["a", said["number"]] = {
                each["begun"]: Past(each["status"], each["attempt"], each["key"])
                for each in self.newest()
                if each["number"] == said["number"]
            }
        holding = [each for each in kept if each["status"] == "failed"]
        by = [(each["begun"], each["number"], each["attempt"]) for each in holding]
        found = ran(
            handler, given, on_failure=self.on_failure, held={"a": by[0]} if by else {}, past=past
        )
        return [{**row, "data": row["event"]["data"], "key": row["event_key"]} for row in found]

    def newest(self) -> list[dict[str, Any]]:
        found: dict[tuple[int | None, int], dict[str, Any]] = {}
        for row in self.table:
            if row["status"] in RANK:
                place = row["begun"], row["number"]
                both = [row, *([found[place]] if place in found else [])]
                found[place] = max(both, key=lambda r: (r["attempt"], -RANK[r["status"]]))
        return list(found.values())

    def unresolved(self) -> list[int]:
        return [row["number"] for row in self.newest() if row["status"] in OPEN]

    def said(self, status: str) -> list[str]:
        return [row["data"] for row in self.table if row["status"] == status]

    def keys(self) -> list[str]:
        return [row["result"] for row in self.table if row["status"] == "ok"]


def handler(event):
    if "!" in event.data:
        raise ValueError("broken")
    return event.key


@pytest.mark.parametrize("forgotten", [True, False])
def test_a_repaired_event_is_handled_once_under_its_first_key(forgotten):
    """The table knows it, whatever the state still holds."""
    site = Site().take("1:0", "1:1!", "1:2", last=2)
    site = site.forget() if forgotten else site

    site.take("1:1r").take("1:0r", "1:2r", "1:1r")

    assert ["1:0", "1:2", "1:1r"] == site.said("ok")
    assert ["key 1:0", "key 1:2", "key 1:1!"] == site.keys()
    assert (["1:0r", "1:1r", "1:2r"], []) == (site.said("ignored"), site.unresolved())


def test_a_repaired_event_releases_a_session_that_was_forgotten():
    """As a retry does; and what comes under the name again waits until then."""
    site = Site("hold").take("1:0", "1:1!", "1:2", last=2).forget()
    site.take("2:0")
    assert (["1:2", "2:0"], [1, 2, 0]) == (site.said("waiting"), site.unresolved())

    site.take("1:1r")

    assert ["1:0", "1:1r", "1:2", "2:0"] == site.said("ok")
    assert ["key 1:0", "key 1:1!", "key 1:2", "key 2:0"] == site.keys()
    assert [] == site.unresolved()


def test_a_replay_loses_no_event_of_a_session_that_has_its_name_now():
    """Before that, beside its event with the number, and in its place: then that is a dead letter,
    and is processed if it is replayed itself.
    """
    site = Site().take("1:0", "1:1!", "1:2!", "1:3!", last=3).forget()

    site.take("1:1r").take("2:0").take("2:1").take("2:2", "1:2r").take("1:3r").take("2:3")

    assert ["1:0", "1:1r", "2:0", "2:1", "2:2", "1:2r", "1:3r"] == site.said("ok")
    assert ["key 1:1!", "key 1:2!", "key 1:3!"] == [key for key in site.keys() if "!" in key]
    assert (["2:3"], []) == (site.said("dead"), site.unresolved())
    assert ["2:3r"] == site.take("2:3r").take("2:3r").said("ok")[7:]


def test_an_event_that_nobody_has_seen_is_processed_when_it_is_replayed():
    """Such as a dead letter without a number: the session continues after it."""
    site = Site().take("1:0r").take("1:1", "1:0r").take("1:2")

    assert (["1:0r", "1:1", "1:2"], ["1:0r"]) == (site.said("ok"), site.said("ignored"))


def test_a_replay_of_an_event_that_waits_in_the_state_is_a_dead_letter():
    """There is a row for each replay."""
    site = Site().take("1:1").take("1:1r").take("1:0")

    assert (["1:1r"], ["1:0", "1:1"]) == (site.said("dead"), site.said("ok"))


def test_a_feed_that_is_read_again_in_one_batch_gives_the_same():
    """The replay comes after the event that fails, also in one batch with it."""
    site = Site().take("1:0", "1:1!", "1:1r", "1:2", last=2)

    assert (["1:0", "1:2", "1:1r"], []) == (site.said("ok"), site.unresolved())


@pytest.mark.parametrize(
    ("begun", "past", "expected"),
    [
        (None, {}, None),
        (5, {}, 5),
        (None, {1: "ok", 3: "ok"}, 3),
        (None, {1: "failed", 3: "ok"}, 1),
        (5, {1: "failed", 5: "ok"}, 1),
        (5, {1: "failed", 3: "waiting", 5: "ok"}, 3),
        (5, {1: "ok", 5: "failed"}, 5),
        (5, {1: "ok"}, 5),
        (None, {None: "failed", 1: "ok"}, None),
        (None, {None: "failed", 1: "failed"}, 1),
    ],
)
def test_a_replayed_event_is_the_one_that_is_not_processed(begun, past, expected):
    """Else the one that the state knows, else the newest."""
    assert expected == replayed(begun, {at: Past(said, 1, "k") for at, said in past.items()})


@st.composite
def histories(draw: st.DrawFn) -> list[list[str] | None]:
    """A name that is used several times. What fails is replayed before it is used again, with other
    replays, in any order and in any batches. None stands for a time after which it is forgotten.
    """
    found: list[list[str] | None] = []
    for use in range(draw(st.integers(1, 3))):
        numbers = range(draw(st.integers(1, 4)))
        failed = draw(st.sets(st.sampled_from(numbers)))
        events = [f"{use}:{n}{'!' * (n in failed)}" for n in numbers]
        found += _cut(draw, draw(st.permutations(events)))
        found += [None] * draw(st.booleans())
        more = draw(st.lists(st.sampled_from(numbers), max_size=4))
        again = draw(st.permutations([*failed, *more]))
        found += _cut(draw, [f"{use}:{n}r" for n in again])
        found += [[f"{use}:{n}r"] for n in sorted(failed)]  # one that waits is not changed before
        found += [None, *_cut(draw, [f"{use}:{n}r" for n in more]), None]
    return found


def _cut(draw: st.DrawFn, events: list[str]) -> list[list[str] | None]:
    cut = draw(st.integers(0, len(events)))
    return [part for part in (events[:cut], events[cut:]) if part]


@given(histories(), st.sampled_from(["dead-letter", "hold"]))
def test_every_event_is_processed_once_whatever_is_forgotten_and_replayed(history, on_failure):
    """Law: with the key of the first time, and each replay has a row."""
    site = Site(on_failure)
    events = [each for part in history for each in part or []]
    for part in history:
        if part is None:
            site.forget()
        else:
            use = part[0].partition(":")[0]
            last = max(int(e.strip("!r")[-1]) for e in events if e.partition(":")[0] == use)
            site.take(*part, last=last)

    own = [each for each in events if "r" not in each]
    assert sorted(f"key {each}" for each in own) == sorted(site.keys())
    assert ([], []) == (site.unresolved(), site.said("dead"))
    answered = Counter(row["data"] for row in site.table if "r" in row["data"])
    assert not Counter(each for each in events if "r" in each) - answered
