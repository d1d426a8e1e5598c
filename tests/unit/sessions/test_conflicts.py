"""Two events with one number and other contents: neither is lost without a word."""

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.sessions.buckets import row, told
from zeh_spark.spark.sessions import state
from zeh_spark.spark.sessions.model import Policy
from zeh_spark.spark.sessions.state import Settings

OTHER = {"event": "other", "content": 2}


def comparing(**policy):
    return told(on_conflict="dead-letter", **policy)


@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize("where", ["batch", "held", "delivered", "closed"])
def test_an_event_with_a_known_number_and_other_content_is_a_dead_letter(where, same):
    """Wherever the first one is; with the same content it is a duplicate, as ever."""
    it = comparing()
    number = 1 if where == "held" else 0
    first = row("a", number, content=1, last=0 if where == "closed" else -1)
    again = row("a", number, clock=1, **({"content": 1} if same else OTHER))
    if where == "batch":
        it.take(first, again)
    else:
        it.take(first)
        it.take(again)

    assert ([] if same else [("conflict", "other")]) == it.dead
    for info in (json.loads(each.dead) for each in it.given if each.dead):
        assert ("a", number) == (info["session"], info["received"])
        assert f"an event with number {number} came before" in info["detail"]
        assert info["detail"].endswith(", with other content")
    assert int(same) == it.count("duplicates")
    assert ([] if where == "held" else ["a 0"]) == it.ordered
    it.take(row("a", 0, content=5))
    assert where != "held" or it.ordered == ["a 0", "a 1"]


def test_what_is_not_known_any_more_counts_as_other_content(monkeypatch):
    """Of the events with the lowest numbers, and of those before the option was given."""
    monkeypatch.setattr(state, "CONTENTS", 10)
    it = comparing()
    it.take(*(row("a", number, content=1) for number in range(100)))
    it.take(row("a", 0, content=1), row("a", 99, content=1))
    assert [("conflict", "a 0")] == it.dead
    assert "its content is not known any more" in json.loads(it.given[-1].dead or "")["detail"]

    before = told()
    before.take(row("a", 0, content=1))
    settings = Settings(Policy(on_conflict="dead-letter"), 4, it.settings.keep_closed)
    later = before.again(settings)
    later.take(row("a", 0, content=1))
    assert [("conflict", "a 0")] == later.dead


def test_contents_are_forgotten_without_the_option():
    """Then an event with a known number is a duplicate, whatever it holds."""
    it = comparing()
    it.take(row("a", 0, content=1))
    with_contents = it.size
    later = it.again(told().settings)
    later.take(row("a", 1, content=1))

    assert later.size < with_contents

    later.take(row("a", 1, **OTHER))
    assert ([], 1) == (later.dead, later.count("duplicates"))


arrivals = st.lists(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2), st.integers(1, 2)), max_size=6)
)


@given(arrivals, st.sampled_from(["hold", "dead-letter", "skip"]))
def test_a_dropped_event_is_equal_to_one_that_is_not(batches, on_gap):
    """Law: with the option, contents that came and left no trace do not exist."""
    it = told(on_conflict="dead-letter", on_gap=on_gap, gap_timeout=None)
    came, count = set(), Counter()
    for batch in batches:
        rows = [row("a", n, c, content=x, event=f"{n} {x}") for n, c, x in batch]
        it.take(*rows)
        came |= {each.event for each in rows}
        count.update(each.event for each in rows)

    held = {each for stored in it.stored.values() for each in stored.events.values()}
    seen = {each.event for each in it.given} | held
    assert came == seen
    assert sum(count.values()) == len(it.given) + len(held) + it.count("duplicates")
