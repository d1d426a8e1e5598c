"""A filter of the tracebacks that uvicorn logs for each aborted answer.

An answer that is aborted on purpose is logged elsewhere. A bug is logged with its traceback, but
not for each request that meets it. Runs in the publisher's process.
"""

from __future__ import annotations

import logging
import traceback

from zeh_spark.errors import ZeroEventHubError
from zeh_spark.service.telemetry.rare_log import RareLog

log = logging.getLogger("uvicorn.error")


class RareTracebacks(logging.Filter):
    """Lets a traceback of each place pass once a minute, and none of the errors that are known.

    Args:
        known: Errors that are logged where they are raised.
    """

    def __init__(self, known: tuple[type[BaseException], ...]) -> None:
        super().__init__()
        self._known = known
        self._rare = RareLog(log)

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
