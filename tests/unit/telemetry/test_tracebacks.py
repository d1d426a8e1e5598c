"""Tracebacks in the publisher's log: of bugs, and each once a minute."""

from __future__ import annotations

import logging

import pytest

from zeh_spark.errors import StoreError, ZeroEventHubError
from zeh_spark.service.telemetry.rare_log import RareTracebacks


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
