"""Python searches for cycles rarely while a task takes a batch, and as before after it."""

from __future__ import annotations

import gc
from types import SimpleNamespace

import pytest

pytest.importorskip("google.protobuf", reason="protobuf is not installed")

from zeh_spark.stateful.ids_operator import IdProcessor


def test_a_task_searches_for_cycles_rarely() -> None:
    """And leaves the worker, which other tasks use after it, as it was."""
    of_tests, before = gc.get_threshold(), (700, 10, 10)
    gc.set_threshold(*before)  # those of a worker: tests have larger ones
    processor = IdProcessor(1, 1, 1)

    processor.init(SimpleNamespace(getValueState=lambda *_: None, getMapState=lambda *_: None))
    during = gc.get_threshold()
    processor.close()

    after = gc.get_threshold()
    gc.set_threshold(*of_tests)
    assert during[0] > 10 * before[0]
    assert before == after
