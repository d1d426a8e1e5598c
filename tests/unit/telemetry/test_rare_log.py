"""Log lines that may come often."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from zeh_spark.errors import StoreError, ZeroEventHubError
from zeh_spark.service.telemetry.rare_log import RareLog, RareTracebacks

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


@pytest.fixture
def log() -> logging.Logger:
    made = logging.Logger("uvicorn.error")
    made.addFilter(RareTracebacks((StoreError,)))
    return made


def failed(log: logging.Logger, error: BaseException, cause: Exception | None = None) -> str | None:
    """What is logged when a request ends with an error; None if nothing is."""
    written: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = written.append  # type: ignore[method-assign]
    log.addHandler(handler)
    try:
        raise error from cause
    except type(error):
        log.exception("Exception in ASGI application\n")
    log.removeHandler(handler)
    return logging.Formatter("%(message)s").format(written[0]) if written else None


def test_what_is_logged_elsewhere_is_left_out(log: logging.Logger) -> None:
    assert failed(log, StoreError("the store is busy")) is None


def test_an_answer_that_is_broken_off_is_one_line(log: logging.Logger) -> None:
    """Its reader asks again, and is told what is wrong."""
    gone = ZeroEventHubError("the cursor '5' is gone")
    first, second = (failed(log, RuntimeError("already started"), gone) for _ in range(2))

    assert first == (
        "an answer was broken off, and its reader asks again: [ZEH_ERROR] the cursor '5' is gone"
    )
    assert second is None
