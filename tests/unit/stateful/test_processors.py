"""Python searches for cycles rarely while a task takes a batch, and as before after it."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("google.protobuf", reason="protobuf is not installed")

from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from zeh_spark import dedup
from zeh_spark.sessions.model import Policy
from zeh_spark.sessions.operator import SessionProcessor
from zeh_spark.sessions.state import Settings
from zeh_spark.stateful.ids_operator import IdProcessor

HANDLE: Any = SimpleNamespace(getValueState=lambda *_: None, getMapState=lambda *_: None)
"""What Spark gives a task, without state."""


@pytest.mark.parametrize(
    "processor",
    [
        SessionProcessor(Settings(Policy(), 1, 1)),
        IdProcessor(1, 1, 1),
        dedup._Processor(1, 1, None),
    ],
    ids=["in_order", "drop_seen by ids", "drop_seen"],
)
def test_a_task_searches_for_cycles_rarely(processor: StatefulProcessor) -> None:
    """And leaves the worker, which other tasks use after it, as it was."""
    of_tests, before = gc.get_threshold(), (700, 10, 10)
    gc.set_threshold(*before)  # those of a worker: tests have larger ones

    processor.init(HANDLE)
    during = gc.get_threshold()
    processor.close()

    after = gc.get_threshold()
    gc.set_threshold(*of_tests)
    assert during[0] > 10 * before[0]
    assert before == after
