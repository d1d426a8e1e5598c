"""Log lines that may come often."""

from __future__ import annotations

import logging
from types import SimpleNamespace

from zeh_spark.service.telemetry.rare_log import RareLog

LOG = logging.getLogger("zeh_spark.service.app.test")


def test_a_kind_is_written_once_a_minute_with_the_count_of_the_others(caplog):
    """One line says what happens, and how often."""
    clock = SimpleNamespace(now=0.0)
    rare = RareLog(LOG, clock=lambda: clock.now)
    for number in range(100):
        rare.warning("row", "row %d is bad", number)
    clock.now = 59.9
    rare.warning("row", "row %d is bad", 100)
    clock.now = 60.0
    rare.warning("row", "row %d is bad", 101)
    clock.now = 200.0
    rare.warning("row", "row %d is bad", 102)

    assert [
        "row 0 is bad",
        "row 101 is bad (100 more of this kind before)",
        "row 102 is bad",
    ] == caplog.messages


def test_kinds_do_not_hide_each_other_and_take_bounded_memory(caplog):
    rare = RareLog(LOG, clock=lambda: 0.0)
    for kind in ("a", "b", "a"):
        rare.error(kind, "%s", kind)

    assert ["a", "b"] == caplog.messages
    for number in range(5_000):
        rare.warning(number, "%d", number)
    assert 1_000 == len(rare._told)
