"""Spark's side of a bucket: its value, what is kept beside it, and its tasks' processor.

Runs in tasks.
"""

from __future__ import annotations

import gc
from abc import abstractmethod
from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.stateful_processor import StatefulProcessor

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import (
        MapState,
        StatefulProcessorHandle,
        TimerValues,
    )

_RARELY = (50_000, 50, 100)
"""Thresholds of Python's search for unreachable cycles while a task takes a batch.

The events of a batch are some objects each, which stay until the batch leaves, so that a search
finds nothing. By default there is one after 700 new objects, or 2,000 in newer versions of Python.
Measured: that took a sixth of Python's time in sessions.
"""


class BucketProcessor(StatefulProcessor):
    """A processor that keeps one value for each bucket, in the state `STATE` of one column."""

    STATE = ""
    COLUMN = ""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._thresholds = gc.get_threshold()
        gc.set_threshold(*_RARELY)
        self._state = handle.getValueState(self.STATE, f"{self.COLUMN} BINARY")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: TimerValues) -> None:
        """Give a bucket its first value, in the first batch.

        So a bucket without a value shows that the number of buckets was changed.
        """
        self._state.update((self.empty(),))

    @abstractmethod
    def empty(self) -> bytes:
        """Return the value of a bucket that has taken nothing."""

    def blob(self) -> bytes | None:
        """Return the value of the bucket; None if the number of buckets was changed."""
        value = self._state.get()
        return bytes(value[0]) if value else None

    def close(self) -> None:
        """Search for cycles as often as before: other tasks use the worker again."""
        gc.set_threshold(*self._thresholds)


class StateMap(MutableMapping[Any, bytes]):
    """Spark's map state of a bucket, by the tuple of its key's columns."""

    def __init__(self, state: MapState) -> None:
        self._state = state

    def __getitem__(self, key: Any) -> bytes:
        value = self._state.getValue(key)
        if value is None:
            raise KeyError(key)
        return bytes(value[0])

    def __setitem__(self, key: Any, value: bytes) -> None:
        self._state.updateValue(key, (value,))

    def __delitem__(self, key: Any) -> None:
        self._state.removeKey(key)

    def __iter__(self) -> Iterator[Any]:
        return self._state.keys()

    def __len__(self) -> int:
        return sum(1 for _ in self)
