"""What Spark 4.0 and 4.1 lack: to say where a batch begins, and whether a run goes on after it.

They call `latestOffset` without arguments, and `partitions(x, x)` to restore an offset. A run with
availableNow or once has one batch, and nothing tells it from a stream that goes on. So here the
last offset is kept, the first batch of a run may be larger than the others, and what it leaves is
told: in its offset, because these versions show no more of a source in a query's progress, and by a
warning.

Rule for editors: nothing else in the source knows of these versions. Runs on the driver.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from zeh_spark.client.http.lag import Lag, metrics
from zeh_spark.errors import CheckpointError
from zeh_spark.spark.frames.compat import HAS_ADMISSION_CONTROL
from zeh_spark.spark.source.batch_source import Limits
from zeh_spark.wire.phrases import counted

if TYPE_CHECKING:
    from zeh_spark.spark.source.stream_dispatcher import StreamDriver

log = logging.getLogger(__name__)

FIRST_FACTOR = 4
"""How many times as large as `maxBytesPerTrigger` the first batch of a run may be, where a run with
availableNow or once has no second one."""


class OlderSpark:
    """A run on a Spark that does not say from where to read."""

    def __init__(self) -> None:
        self._last: Mapping[str, Any] | None = None

    def latest_offset(self, driver: StreamDriver, *, finite: bool) -> dict[str, Any]:
        """Return the end of the batch after the last one.

        The first batch of a run has all that the feed holds, as far as `FIRST_FACTOR` allows.
        """
        first = driver.is_first
        limits = Limits(finite=finite, factor=FIRST_FACTOR if first else 1)
        behind = partial(_behind, driver.options.url, first=first)
        start = dict(self._last or driver.initial())
        self._last = end = driver.latest_offset(start, limits, behind)
        return end

    def restore(self, end: Mapping[str, Any]) -> None:
        """Continue at an offset."""
        if self._last is not None and self._last != end:
            raise CheckpointError(
                "Spark requested offsets before it restored the checkpoint. Set "
                "spark.sql.streaming.triggerAvailableNowWrapper.enabled=false; otherwise events "
                "are duplicated",
                expected=self._last,
                got=end,
                anchor="triggeravailablenowwrapper",
            )
        self._last = end


def _behind(url: object, more: bool, known: Lag | None, *, first: bool) -> dict[str, Any]:
    """Return what an offset tells of the feed's end; warn if a run may leave events."""
    more &= known is None or known.total > 0
    if more and first:
        log.warning(
            "the first batch of this run leaves %s of %s unread. On Spark 4.0 and 4.1 a run with "
            "availableNow or once has one batch: read the feed to its end with zeh_spark.drain. A "
            "query with another trigger goes on",
            counted(known.total, "event") if known else "events whose number is unknown",
            url,
        )
    return {"more": more, **metrics(known)}


def warn_of_repetition(driver: StreamDriver) -> None:
    """Warn that a run, which may have one batch only, begins with one that Spark repeats."""
    if driver.is_first and not HAS_ADMISSION_CONTROL:
        log.warning(
            "this run repeats the last batch of %s, which an earlier run has not finished. On "
            "Spark 4.0 and 4.1 a run with availableNow or once reads no new events after that: "
            "read the feed to its end with zeh_spark.drain. A query with another trigger goes on",
            driver.options.url,
        )
