"""What `inspect` shows of a session is what the gauges count."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.unit.sessions.buckets import Told, row, rows, told
from zeh_spark.sessions.inspecting import _sessions

HOLD = {"gap_timeout": 10, "on_gap": "hold"}


def shown(it: Told) -> dict[str, str]:
    """The status of each session by its name."""
    (found,) = _sessions([pa.RecordBatch.from_pydict({"blob": [it.blob]})])
    return {each["session"]: each["status"] for each in found.to_pylist()}


@pytest.mark.parametrize(
    ("policy", "status"),
    [
        ({"stale_timeout": 10}, {"a": "stale", "b": "stale", "c": "closed"}),
        (HOLD, {"a": "open", "b": "stale", "c": "closed"}),
        ({**HOLD, "stale_timeout": 10}, {"a": "stale", "b": "stale", "c": "closed"}),
        ({"gap_timeout": None}, {"a": "open", "b": "waiting", "c": "closed"}),
    ],
)
def test_a_session_that_was_reported_is_stale(policy, status):
    """Whether a gap or its silence was reported; as many as `stale_sessions` counts."""
    it = told(**policy)
    it.take(row("a", 0, clock=5), *rows("b", 0, 2, clock=5), row("c", 0, clock=5, last=0), now=5)

    it.judge(15)

    assert status == shown(it)
    assert list(status.values()).count("stale") == it.counts[-1]["stale_sessions"]


def test_a_session_that_advances_again_is_open():
    """It is no longer stale for the gauge either."""
    it = told(stale_timeout=10)
    it.take(row("a", 0, clock=5), now=5)
    it.judge(15)
    it.take(row("a", 1, clock=20), now=20)

    assert ({"a": "open"}, 0) == (shown(it), it.counts[-1]["stale_sessions"])
