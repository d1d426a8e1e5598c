"""Work whose failure becomes a value, for the thread that waits for it, or for the log.

Rule for editors: the only broad `except` of the stores is here. A caller of `attempted` raises the
failure, passes it on, or logs it, and never drops it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from sqlalchemy.exc import SQLAlchemyError

from zeh_spark.errors import StoreError

T = TypeVar("T")


def attempted(work: Callable[[], T]) -> Future[T]:
    """Do work in this thread, and return a finished future.

    The future has what the work returned, or the Exception that it raised.
    """
    try:
        result = work()
    except Exception as exc:  # noqa: BLE001 - the future raises it in `result`
        return failed(exc)
    done: Future[T] = Future()
    done.set_result(result)
    return done


def failed(exc: BaseException) -> Future[T]:
    done: Future[T] = Future()
    done.set_exception(exc)
    return done


def hand_on(outcome: Future[T], waiting: Future[T]) -> None:
    """Give a waiting future the outcome of a finished one."""
    if exc := outcome.exception():
        waiting.set_exception(exc)
    else:
        waiting.set_result(outcome.result())


def logged(log: logging.Logger, consequence: str, work: Callable[[], T]) -> T | None:
    """Do work in a thread that continues whatever fails, and log a failure with its consequence.

    It returns what the work returned; None if it failed.

    What a database or a store may raise at any time is a warning of one line. Anything else is a
    bug: an error with its traceback.
    """
    done = attempted(work)
    failure = done.exception()
    if isinstance(failure, SQLAlchemyError | StoreError):
        log.warning("%s: %s", consequence, str(failure).partition("\n")[0])
    elif failure:
        log.error(consequence, exc_info=failure)
    return None if failure else done.result()
