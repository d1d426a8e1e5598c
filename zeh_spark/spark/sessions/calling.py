"""Call a handler: with an event, within a time, for a result of one type.

Runs in tasks.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    _make_type_verifier,
)

from zeh_spark.errors import ProcessingError

DETAIL = 1_000
"""Most characters of a failure's text that are kept."""


class Retry(Exception):
    """Raised by a handler if the event is not the cause: the query fails, and repeats the batch.

    Use it for faults that affect all events, such as a service that does not answer.
    """


@dataclass(frozen=True, slots=True)
class Event:
    """An event as a handler gets it.

    Attributes:
        data: The column `data`; None if the frame has none.
        headers: The column `headers` as a dictionary; empty if the frame has none.
        session: The session's key.
        number: The event's number in the session.
        attempt: How often this event was tried, from 1. If Spark repeats a batch,
            it starts with the same number again.
        key: The event's identity, the same whenever the event is processed: give it to a service
            that recognizes repeated calls.
        row: All columns of the event by name. Maps are dictionaries.
    """

    data: Any
    headers: Mapping[str, str]
    session: str
    number: int
    attempt: int
    key: str
    row: Mapping[str, Any]


Handler = Callable[[Event], Any]


class Caller:
    """Makes the calls of a task, in one thread, which is another one if calls have a time limit.

    Python cannot stop a call. The error ends the task's process, and the call with it.

    Attributes:
        stuck: Whether a call has not come back in its time.
    """

    def __init__(self, timeout: float | None) -> None:
        self.stuck = False
        self._timeout = timeout
        self._calls: queue.SimpleQueue[Callable[[], Any]] = queue.SimpleQueue()
        self._ends: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def call(self, function: Callable[[], Any]) -> Any:
        """Return what the function returns, or raise what it raises."""
        if self._timeout is None:
            return function()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="zeh-handler", daemon=True)
            self._thread.start()
        self._calls.put(function)
        try:
            value, error = self._ends.get(timeout=self._timeout)
        except queue.Empty:
            self.stuck = True
            raise ProcessingError(
                f"the handler took over timeout={self._timeout:g} seconds"
            ) from None
        if error is not None:
            raise error
        return value

    def _run(self) -> None:
        while True:
            function = self._calls.get()
            try:
                self._ends.put((function(), None))
            except BaseException as exc:  # noqa: BLE001 - it is raised by `call`
                self._ends.put((None, exc))


def one_line(exc: BaseException) -> str:
    """Return an error as one line that every store accepts."""
    text = f"{type(exc).__name__}: {exc}".encode("utf-8", "replace").decode()
    shown = "".join(each if each.isprintable() else " " for each in text[: 4 * DETAIL])
    return " ".join(shown.split())[:DETAIL]


# Values


def checked(value: Any, kind: DataType, arrow: pa.DataType) -> Any:
    """Return a handler's result as Arrow takes it.

    A STRUCT is a dictionary. There is one kind of exception for each kind of wrong value: one that
    is not of the type, or of which something would be lost.
    """
    _make_type_verifier(kind)(value)
    result = _exact(value, kind)
    pa.array([result], arrow)
    return result


def _exact(value: Any, kind: DataType) -> Any:
    """Return a value that its type has accepted.

    Raises TypeError if something of it would be lost: a member that the type has not, a time, or a
    time zone.
    """
    if value is None:
        return None
    if isinstance(kind, StructType):
        if not isinstance(value, dict):
            raise TypeError(f"{type(value).__name__} for a STRUCT; give a dict")
        if others := value.keys() - set(kind.names):
            raise TypeError(f"the STRUCT has no member {sorted(others)[0]!r}")
        return {each.name: _exact(value.get(each.name), each.dataType) for each in kind}
    if isinstance(kind, ArrayType):
        return [_exact(each, kind.elementType) for each in value]
    if isinstance(kind, MapType):
        return [
            (_exact(name, kind.keyType), _exact(each, kind.valueType))
            for name, each in value.items()
        ]
    if isinstance(value, datetime):
        _check_time(value, kind)
    if isinstance(kind, StringType):  # of which PySpark's verifier takes any value
        if not isinstance(value, str):
            raise TypeError(f"{type(value).__name__} for a STRING")
        value.encode()  # fails for half of a surrogate pair, which no file can hold
    return value


def _check_time(value: datetime, kind: DataType) -> None:
    if isinstance(kind, DateType):
        raise TypeError("a datetime for a DATE, which has no time of day; give a date")
    if isinstance(kind, TimestampType) and value.tzinfo is None:
        raise TypeError("a datetime without a time zone for a TIMESTAMP")
    if isinstance(kind, TimestampNTZType) and value.tzinfo is not None:
        raise TypeError("a datetime with a time zone for a TIMESTAMP_NTZ, which has none")


def plain(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """Return the function that makes dictionaries of maps at any depth; None if there are none."""
    if pa.types.is_map(kind):
        item = plain(kind.item_type) or _same
        return lambda pairs: None if pairs is None else {name: item(each) for name, each in pairs}
    if pa.types.is_struct(kind):
        fields = [kind.field(place) for place in range(kind.num_fields)]
        inner = {each.name: convert for each in fields if (convert := plain(each.type))}
        if not inner:
            return None
        return lambda value: (
            None
            if value is None
            else {name: inner.get(name, _same)(each) for name, each in value.items()}
        )
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        item_of = plain(kind.value_type)
        if item_of is None:
            return None
        return lambda values: None if values is None else [item_of(each) for each in values]
    return None


def _same(value: Any) -> Any:
    return value
