"""Log lines that may come often: at most one a minute of each kind, with how many were left out.

What a client, a row or a database does again and again must not fill the disk with its log, nor
hide the other lines. Runs in the publisher, on any thread.
"""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import partialmethod

from zeh_spark.errors import ZeroEventHubError

UVICORN = logging.getLogger("uvicorn.error")

SECONDS = 60.0
"""Least seconds between two lines of a kind."""

_KINDS = 1000
"""Most kinds that are remembered. Of more, the oldest ones are forgotten."""


@dataclass(eq=False)
class RareLog:
    """Writes at most one line of each kind in SECONDS."""

    log: logging.Logger
    clock: Callable[[], float] = time.monotonic
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _told: dict[Hashable, tuple[float, int]] = field(default_factory=dict, init=False)

    def write(
        self,
        level: int,
        kind: Hashable,
        message: str,
        *args: object,
        exc_info: BaseException | None = None,
    ) -> None:
        """Write a line, unless one of its kind was written a little while ago: then count it.

        Values of `kind` are not chosen by clients. The traceback of `exc_info` is written, too.
        """
        left_out = self.left_out(kind)
        if left_out is None:
            return
        if left_out:
            message, args = f"{message} (%d more of this kind before)", (*args, left_out)
        self.log.log(level, message, *args, exc_info=exc_info)

    warning = partialmethod(write, logging.WARNING)
    error = partialmethod(write, logging.ERROR)

    def left_out(self, kind: Hashable) -> int | None:
        """Return how many lines were left out, if a line may be written now; None if not."""
        now = self.clock()
        with self._lock:
            at, count = self._told.get(kind, (None, 0))
            if at is not None and now - at < SECONDS:
                self._told[kind] = at, count + 1
                return None
            self._told.pop(kind, None)
            self._told[kind] = now, 0
            if len(self._told) > _KINDS:
                del self._told[next(iter(self._told))]
            return count


class RareTracebacks(logging.Filter):
    """A filter of the tracebacks that uvicorn logs for each aborted answer.

    A bug is logged with its traceback, but not for each request that meets it.

    Args:
        known: Errors that are logged where they are raised. Their tracebacks never pass.
    """

    def __init__(self, known: tuple[type[BaseException], ...]) -> None:
        super().__init__()
        self._known = known
        self._rare = RareLog(UVICORN)

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if error is None:
            return True
        if isinstance(error, self._known):
            return False
        cause = error.__cause__
        if isinstance(error, RuntimeError) and isinstance(cause, ZeroEventHubError):
            # Starlette's way to say that an answer has begun, so that it cannot become an error.
            record.exc_info, record.exc_text = None, None
            record.msg = f"an answer was broken off, and its reader asks again: {cause}"
            return self._rare.left_out((type(error), type(cause))) is not None
        frames = traceback.extract_tb(error.__traceback__)
        where = (frames[-1].filename, frames[-1].lineno) if frames else None
        left_out = self._rare.left_out((type(error), where))
        if left_out:
            record.msg = f"{str(record.msg).strip()} ({left_out} more of this kind before)"
        return left_out is not None
