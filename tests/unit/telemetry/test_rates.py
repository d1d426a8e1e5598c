"""The events of the last hour, by minutes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from zeh_spark.service.telemetry import rates as rates_module
from zeh_spark.service.telemetry.lag import Lag
from zeh_spark.service.telemetry.rates import SLOT_SECONDS, SLOTS, Rate, Rates


def test_events_are_counted_in_the_minute_in_which_they_came() -> None:
    clock = SimpleNamespace(now=1e6)
    rates = Rates(lambda: clock.now)
    rates.add("orders", 3, 0)
    clock.now += SLOT_SECONDS
    rates.add("orders", 4, 1)
    rates.add("orders", 5, 0)

    found = rates.of("orders")

    assert ((3, 9), (0, 1)) == (found.published[-2:], found.served[-2:])
    assert Rate() == rates.of("nothing")


def test_an_hour_later_nothing_is_left() -> None:
    """Also if nothing was counted in between."""
    clock = SimpleNamespace(now=1e6)
    rates = Rates(lambda: clock.now)
    rates.add("orders", 3, 2)
    clock.now += SLOT_SECONDS * (SLOTS - 1)
    before = rates.of("orders")
    clock.now += SLOT_SECONDS

    assert (3, 2) == (before.published[0], before.served[0])
    assert Rate() == rates.of("orders")


def test_the_ring_turns_over_many_hours() -> None:
    """Each hour shows its own events, whatever was in the same slots before."""
    clock = SimpleNamespace(now=1e6)
    rates = Rates(lambda: clock.now)
    for count in range(1, 3 * SLOTS + 1):
        rates.add("orders", count, 0)
        clock.now += SLOT_SECONDS
    clock.now -= SLOT_SECONDS

    assert tuple(range(2 * SLOTS + 1, 3 * SLOTS + 1)) == rates.of("orders").published


def test_the_lag_of_a_minute_is_the_last_one_that_was_found() -> None:
    """A minute in which nobody looked has none, and neither has one that is an hour ago."""
    clock = SimpleNamespace(now=1e6)
    rates = Rates(lambda: clock.now)
    behind = [Lag("ledger", 2, 2, events, None) for events in (9, 5, 7)]
    rates.note_lags([("orders", behind[0]), ("payments", behind[1])])
    rates.note_lags([("orders", behind[1])])
    clock.now += 2 * SLOT_SECONDS
    rates.note_lags([("orders", behind[2])])

    found = rates.lags_of("orders", behind[2])
    assert ((5, None, 7), SLOTS) == (found[-3:], len(found))
    assert {None} == set(found[:-3])
    assert 5 == rates.lags_of("payments", behind[1])[-3]

    clock.now += (SLOTS - 2) * SLOT_SECONDS
    assert {None, 7} == set(rates.lags_of("orders", behind[2]))


def test_a_minute_has_only_the_largest_lags(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often somebody looks in it: each note takes memory for an hour."""
    monkeypatch.setattr(rates_module, "CONSUMERS", 2)
    rates = Rates(lambda: 1e6)
    behind = {
        name: Lag(name, 1, 1, events, None)
        for name, events in zip("abcd", (1, 4, 3, 2), strict=True)
    }
    for names in ("ab", "cd"):
        rates.note_lags([("orders", behind[each]) for each in names])
    found = {name: rates.lags_of("orders", lag)[-1] for name, lag in behind.items()}
    assert {"a": None, "b": 4, "c": 3, "d": None} == found
