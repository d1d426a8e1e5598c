"""Work whose failure is handed on as a value: to the thread that waits for it, or to the log.

Rule for editors: the only broad `except` of the stores is here. Whoever calls `attempted` raises
the failure, hands it on, or logs it; nobody drops it.
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
    """Do work in this thread. Returns a future that is done: with what the work returned, or with
    the Exception that it raised.
    """
    try:
        result = work()
    except Exception as exc:  # noqa: BLE001 - whoever asks the future for its result gets it raised
        return failed(exc)
    done: Future[T] = Future()
    done.set_result(result)
    return done


def failed(exc: BaseException) -> Future[T]:
    """A future that raises this."""
    done: Future[T] = Future()
    done.set_exception(exc)
    return done


def hand_on(outcome: Future[T], waiting: Future[T]) -> None:
    """Tell whoever waits for a future the outcome of one that is done."""
    if exc := outcome.exception():
        waiting.set_exception(exc)
    else:
        waiting.set_result(outcome.result())


def logged(log: logging.Logger, consequence: str, work: Callable[[], object]) -> None:
    """Do work of a thread that goes on whatever fails: a failure is logged, with the consequence.

    What a database or a store may raise at any time is a warning of one line. Anything else is a
    fault of ours: an error with its traceback.
    """
    failure = attempted(work).exception()
    if isinstance(failure, SQLAlchemyError | StoreError):
        log.warning("%s: %s", consequence, str(failure).partition("\n")[0])
    elif failure:
        log.error(consequence, exc_info=failure)
