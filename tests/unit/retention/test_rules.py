"""Removing old events ends, whatever a store does."""

from __future__ import annotations

import threading

import pytest

from tests.scratch_store import ScratchStore
from tests.store_contract.writers import FEED, chunk, everything, publish
from zeh_spark.service.retention.pruner import Pruner
from zeh_spark.service.retention.rules import STEP_CHUNKS, prune
from zeh_spark.service.store.acts import Actor
from zeh_spark.service.store.clock import DAY_MS
from zeh_spark.service.store.interface import Retention


class Forgetful(ScratchStore):
    """A store that forgets that it removed events."""

    def remove(self, feed: str, upto: int, *, by: Actor | None = None) -> None: ...


@pytest.mark.timeout(20)
def test_pruning_a_store_that_removes_nothing_is_an_error() -> None:
    store = Forgetful(f=1)
    for _ in range(3):
        publish(store, chunk(0, b"1"), feed="f")
    with pytest.raises(RuntimeError, match="feed 'f': events up to position 3 were removed and"):
        prune(store, "f", Retention(bytes=1))


def test_a_pruner_stops_between_two_steps() -> None:
    """My publisher stops at once when it is told to, however much there is to remove."""
    removed = threading.Event()

    class Slow(ScratchStore):
        """Tells that something was removed, and takes until the pruner is told to end."""

        def remove(self, feed: str, upto: int, *, by: Actor | None = None) -> None:
            super().remove(feed, upto, by=by)
            removed.set()
            assert pruner._ended.wait(30)

    store = Slow(orders=1)
    store.append(FEED, [chunk(0, b"1")] * 10 * STEP_CHUNKS)
    store.set_retention("orders", Retention(bytes=1))
    pruner = Pruner(store)
    with pruner:
        assert removed.wait(30)

    assert len(everything(store)) == 9 * STEP_CHUNKS


def test_a_rule_that_is_switched_off_ends_what_is_removed_by_size() -> None:
    """Also while the clock is not believed."""
    now = [1_000 * DAY_MS]

    class SwitchedOff(ScratchStore):
        """Its retention is switched off after the first step."""

        def remove(self, feed: str, upto: int, *, by: Actor | None = None) -> None:
            super().remove(feed, upto, by=by)
            self.set_retention(feed, Retention())

    store = SwitchedOff(clock=lambda: now[0], orders=1)
    store.append(FEED, [chunk(0, b"1")] * 3 * STEP_CHUNKS)
    now[0] += 2 * DAY_MS
    store.set_retention("orders", Retention(bytes=1))
    Pruner(store)._prune_all()

    assert 2 * STEP_CHUNKS == len(everything(store))


def test_a_clock_that_jumps_while_events_are_removed_removes_no_more() -> None:
    """It was right when the pruner looked at it; the rest is mine to decide about."""
    ahead = [0]
    jumped = threading.Event()

    class Jumping(ScratchStore):
        """Its clock jumps by 300 days after the first step."""

        def remove(self, feed: str, upto: int, *, by: Actor | None = None) -> None:
            super().remove(feed, upto, by=by)
            ahead[0] = 300 * DAY_MS
            jumped.set()

    store = Jumping(clock=lambda: 1_000 * DAY_MS + ahead[0], orders=1)
    store.append(FEED, [chunk(0, b"1")] * 3 * STEP_CHUNKS)
    ahead[0] = DAY_MS // 2
    store.set_retention("orders", Retention(age_ms=1))
    with Pruner(store):
        assert jumped.wait(30)

    assert 2 * STEP_CHUNKS == len(everything(store))
