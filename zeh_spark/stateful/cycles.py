"""Python's search for unreachable cycles, made rare while a task takes a batch. Runs in tasks."""

from __future__ import annotations

import gc

_RARELY = (50_000, 50, 100)


class RareCollection:
    """Searches rarely, from the start of a task until `end`.

    The events of a batch are some objects each, which stay until the batch leaves, so that a search
    finds nothing. By default there is one after 700 new objects, or 2,000 in newer versions of
    Python. Measured: that took a sixth of Python's time in sessions. The thresholds are set back
    at the end, because other tasks use the worker again.
    """

    def __init__(self) -> None:
        self._before = gc.get_threshold()
        gc.set_threshold(*_RARELY)

    def end(self) -> None:
        """Search as often as before."""
        gc.set_threshold(*self._before)
