"""Spark's side of a bucket: its state, its timer, and frames in and out. Runs in tasks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from zeh_spark.spark.sessions import state
from zeh_spark.spark.sessions.bucket import BucketBatch, Given
from zeh_spark.spark.sessions.model import SessionEvent
from zeh_spark.spark.sessions.state import Settings
from zeh_spark.spark.stateful import state_buckets
from zeh_spark.spark.stateful.state_buckets import BucketProcessor, StateMap

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql.streaming.stateful_processor import (
        ExpiredTimerInfo,
        StatefulProcessorHandle,
        TimerValues,
    )

SEGMENTS = "zeh_segments"


class SessionProcessor(BucketProcessor):
    """Gives each event once, in order or as a dead letter; the same result for the same batches."""

    STATE, PARTS, COLUMN = "zeh_sessions", "zeh_session_parts", "sessions"

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def init(self, handle: StatefulProcessorHandle) -> None:
        super().init(handle)
        self._handle = handle
        self._counted: set[int] = set()
        self._segments = StateMap(
            handle.getMapState(SEGMENTS, "session STRING, segment BIGINT", "events BINARY")
        )

    def empty(self) -> bytes:
        return state.empty(self._settings)

    def handleInputRows(
        self, key: Any, rows: Iterator[Any], timerValues: TimerValues
    ) -> Iterator[pd.DataFrame]:
        mark = max(0, timerValues.getCurrentWatermarkInMs())
        blob, batch = self._open()
        before = batch.timer
        now = batch.now(mark, first=True)
        given = batch.take([SessionEvent.parted(each) for each in state_buckets.rows(rows)], now)
        yield from state_buckets.frames(given, Given._fields)
        yield from self._close(int(key[0]), blob, batch, before, mark)

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[pd.DataFrame]:
        mark = max(0, timerValues.getCurrentWatermarkInMs())
        blob, batch = self._open()
        now = batch.now(mark, first=int(key[0]) not in self._counted)
        yield from state_buckets.frames(batch.judge(now), Given._fields)
        timer = expiredTimerInfo.getExpiryTimeInMs()
        yield from self._close(int(key[0]), blob, batch, timer, mark, fired=True)

    def _open(self) -> tuple[bytes | None, BucketBatch]:
        blob = self.blob()
        return blob, BucketBatch(blob, self._settings, self._parts, self._segments)

    def _close(
        self,
        key: int,
        before: bytes | None,
        batch: BucketBatch,
        timer: int | None,
        mark: int,
        *,
        fired: bool = False,
    ) -> Iterator[pd.DataFrame]:
        blob, counts = batch.save(again=key in self._counted, soon=mark + 1, fired=fired)
        self._counted.add(key)
        if blob != before:
            self._state.update((blob,))
        if batch.timer != timer:
            if timer is not None and not fired:  # Spark removes a timer that fired
                self._handle.deleteTimer(timer)
            if batch.timer is not None:
                self._handle.registerTimer(batch.timer)
        yield from state_buckets.frames([counts], Given._fields)
