"""Call a handler for each event of a session in its order, and say what became of it.

Runs in tasks, in the partitions of `processing`. A task gets the rows of whole sessions: first the
events of a session that the table keeps, then those of the batch in their order. It returns a row
for each row of the batch, and one for each kept event about which there is news.

The event's own columns are passed on as Arrow, so that a table has them as they came.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Literal, NamedTuple

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.types import DataType

from zeh_spark.errors import ProcessingError, at_spark_border
from zeh_spark.spark.sessions.calling import (
    DETAIL,
    Caller,
    Event,
    Handler,
    Retry,
    checked,
    one_line,
    plain,
)

OnFailure = Literal["dead-letter", "hold", "fail"]
"""What happens after an event whose processing failed."""

OPEN = ("failed", "waiting")
"""Statuses of events that are not processed yet."""

VERDICTS = (*OPEN, "ok", "skipped")
"""Statuses of events, of one attempt the newest last; other rows say nothing about an event.

A failure after a wait has a higher attempt.
"""

_FIRST_WAIT, _LONGEST_WAIT = 0.5, 10.0
"""Seconds before the first retry, and before any."""


HeldBy = tuple[int | None, int, int]
"""A failed event that holds its session, as (begun, number, attempt).

`begun` is when the session began, in milliseconds since 1970; None if its beginning was not known
when the event came.
"""


class Past(NamedTuple):
    """The newest verdict on an event."""

    status: str
    attempt: int
    key: str


@dataclass(frozen=True)
class Plan:
    """What tasks have to know.

    Attributes:
        handlers: The handlers by kind of event, pickled; one of the kind None if there are no
            kinds.
        retry_seconds: How long a task may spend on retries.
        timeout: How long a call may take, in seconds; None for no limit.
        held: The failed event of each session that is held.
        past: The newest verdicts on events that are replayed in the batch, by (session, number),
            and then by when the session began: several sessions may have had its name.
    """

    handlers: bytes
    result: DataType
    on_failure: OnFailure
    retries: int
    retry_seconds: float
    timeout: float | None
    max_failures: int
    held: Mapping[str, HeldBy]
    past: Mapping[tuple[str, int], Mapping[int | None, Past]]


def replayed(begun: int | None, past: Mapping[int | None, Past]) -> int | None:
    """Return when the session of a replayed event began: which event of the table it is.

    The newest that is not processed yet; else that of the session which the state knows; else the
    newest. If the table has none, it is a new event. `past` has the newest verdicts on events with
    its session and number, by when their session began; by None those on events whose session was
    not known.
    """
    still_open = [at for at, verdict in past.items() if verdict.status in OPEN]
    if begun is not None and not still_open:
        return begun
    return max(still_open or past, key=lambda at: -1 if at is None else at, default=None)


INPUT = (
    "status", "session", "begun", "number", "control", "attempt", "kind", "event_key", "attempts",
)  # fmt: skip
"""The columns of a row that a task looks at."""

RESULT = "result"
"""A column of NULLs: its Arrow type is that of results, as Spark wants it."""

PASSED = ("dead", "event")
"""The columns that a task passes on: why an event is dead, and its own columns as a STRUCT."""

OUTPUT = pa.schema(
    {
        "session": pa.string(),
        "number": pa.int64(),
        "begun": pa.int64(),
        "status": pa.string(),
        "attempt": pa.int64(),
        "detail": pa.string(),
        "event_key": pa.string(),
        "held": pa.bool_(),
    }
)
"""What a task says about an event, beside the result and the columns that it passes on."""


class _Row(NamedTuple):
    """A row that came, and where its columns are.

    Attributes:
        status: "ordered", "control", "dead"; of a kept event "failed" or "waiting".
        begun: When the session began, in milliseconds since 1970; None for a replayed event of a
            session that is not known.
        past: The status that the table has of a replayed event; None if it has none.
    """

    batch: pa.RecordBatch
    place: int
    status: str
    session: str
    begun: int | None
    number: int
    control: str
    attempt: int | None
    kind: str | None
    key: str
    attempts: int
    past: str | None = None


class _Verdict(NamedTuple):
    status: str
    attempt: int | None = None
    result: Any = None
    detail: str | None = None
    held: bool | None = None


def task(plan: Plan) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function for `mapInArrow`."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with closing(_Handlers(plan)) as handlers:
            yield from _Task(plan, handlers).run(batches)

    return at_spark_border(run)


class _Task:
    """The sessions of one partition."""

    def __init__(self, plan: Plan, handlers: _Handlers) -> None:
        self._plan = plan
        self._handlers = handlers
        self._held = dict(plan.held)
        self._failed: dict[str, _Row] = {}
        self._waiting: dict[str, deque[_Row]] = defaultdict(deque)
        self._past = {event: dict(verdicts) for event, verdicts in plan.past.items()}

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            verdicts = [said for row in _rows(batch) for said in self._noted(row)]
            if verdicts:
                yield _output(verdicts)

    def _noted(self, row: _Row) -> Iterator[tuple[_Row, _Verdict]]:
        """Take a row, and note the verdicts that a later replay in the batch has to know."""
        for about, verdict in self._take(row):
            past = self._past.get((about.session, about.number))
            if past is not None and verdict.status in VERDICTS:
                past[about.begun] = Past(verdict.status, verdict.attempt or 0, about.key)
            yield about, verdict

    def _take(self, row: _Row) -> Iterator[tuple[_Row, _Verdict]]:
        if row.status == "dead":
            yield row, _Verdict("dead")
        elif row.status == "failed":
            self._failed[row.session] = row
        elif row.status == "waiting":
            self._waiting[row.session].append(row)
        elif row.status == "control":
            yield from self._decide(row)
        else:
            yield from self._event(row)

    # Events

    def _event(self, row: _Row) -> Iterator[tuple[_Row, _Verdict]]:
        if row.control == "replay":
            row = self._known(row)
        held = self._held.get(row.session)
        if row.past in ("ok", "skipped"):
            yield row, _Verdict("ignored", detail="it was processed before")
        elif held is None:
            yield row, self._process(row)
        elif (row.begun, row.number) == held[:2] and row.control == "replay":
            row = row._replace(attempts=held[2])
            yield row, self._process(row)
            yield from self._continue(row.session)
        elif row.past == "waiting":
            yield row, _Verdict("ignored", detail="the event waits already")
        else:
            self._waiting[row.session].append(row._replace(status="waiting", control=""))
            yield row, _Verdict("waiting", row.attempts, held=True)

    def _known(self, row: _Row) -> _Row:
        past = self._past.get((row.session, row.number), {})
        row = row._replace(begun=replayed(row.begun, past))
        if (found := past.get(row.begun)) is None:
            return row
        return row._replace(past=found.status, attempts=found.attempt, key=found.key)

    def _process(self, row: _Row) -> _Verdict:
        """Call the handler, and hold the session or let it go on."""
        verdict = self._handlers.process(row)
        was_open = row.status in OPEN or row.past in OPEN or row.session in self._held
        if verdict.status == "ok" or self._plan.on_failure != "hold":
            self._held.pop(row.session, None)
            return verdict._replace(held=False if was_open else None)
        self._held[row.session] = (row.begun, row.number, verdict.attempt or 0)
        self._failed[row.session] = row._replace(status="failed", attempts=verdict.attempt or 0)
        return verdict._replace(held=True)

    # Held sessions

    def _decide(self, row: _Row) -> Iterator[tuple[_Row, _Verdict]]:
        held = self._held.get(row.session)
        if held is None or held[1:] != (row.number, row.attempt):
            what = "no event of the session is held"
            if held is not None:
                what = f"the session is held by number {held[1]}, attempt {held[2]}"
            named = f"number {row.number}, attempt {row.attempt}"
            yield row, _Verdict("ignored", detail=f"{row.control} of {named}: {what}")
            return
        yield row, _Verdict("control", detail=f"{row.control} of number {row.number}")
        failed = self._failed[row.session]
        if row.control == "skip":
            del self._held[row.session]
            yield failed, _Verdict("skipped", failed.attempts, held=False)
        else:
            yield failed, self._process(failed)
        yield from self._continue(row.session)

    def _continue(self, session: str) -> Iterator[tuple[_Row, _Verdict]]:
        """Process what waits, until there is nothing more or an event fails."""
        waiting = self._waiting[session]
        while waiting and session not in self._held:
            row = waiting.popleft()
            yield row, self._process(row)


class _Handlers:
    """The handlers of a task, from their first use to their end."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._handlers: Mapping[str | None, Handler] | None = None
        self._opened: list[Handler] = []
        self._caller = Caller(plan.timeout)
        self._retry_until = plan.retry_seconds
        self._failures = 0
        self._converted: dict[int, tuple[pa.RecordBatch, list[dict[str, Any]]]] = {}

    def process(self, row: _Row) -> _Verdict:
        """Call the handler until it succeeds or the retries are used up.

        Raises ProcessingError if the query has to fail: the handler asks for it, a call takes too
        long, too many events fail, or `on_failure` says so.
        """
        plan, verdict = self._plan, _Verdict("failed", row.attempts)
        handler = self._handler(row.kind)
        if handler is None:
            verdict = _Verdict("failed", row.attempts + 1, detail=f"no handler for {row.kind!r}")
        else:
            event = self._event(row)
            for again in range(plan.retries + 1):
                if again:
                    self._wait(again, event, verdict)
                event = replace(event, attempt=row.attempts + again + 1)
                verdict, final = self._call(handler, event, _result_type(row.batch))
                if final:
                    break
        if verdict.status == "failed":
            self._count(row, verdict)
        return verdict

    def close(self) -> None:
        """Close the handlers that have `close()`, unless a call has not come back."""
        for handler in self._opened:
            if hasattr(handler, "close") and not self._caller.stuck:
                self._caller.call(handler.close)

    def _handler(self, kind: str | None) -> Handler | None:
        if self._handlers is None:
            self._handlers = cloudpickle.loads(self._plan.handlers)
            for handler in {id(each): each for each in self._handlers.values()}.values():
                if hasattr(handler, "open"):
                    self._caller.call(handler.open)
                self._opened.append(handler)
        return self._handlers.get(None) or self._handlers.get(kind)

    def _call(self, handler: Handler, event: Event, kind: pa.DataType) -> tuple[_Verdict, bool]:
        """Return the verdict of one call, and whether it is final."""
        try:
            value = self._caller.call(lambda: handler(event))
        except (Retry, ProcessingError) as exc:
            raise ProcessingError(
                f"{_place(event)}: {one_line(exc)}. The batch is repeated when the query starts "
                f"again",
            ) from exc
        except Exception as exc:  # noqa: BLE001 - whatever the user's code raises
            return _Verdict("failed", event.attempt, detail=one_line(exc)), False
        try:
            return _Verdict("ok", event.attempt, checked(value, self._plan.result, kind)), True
        except Exception as exc:  # noqa: BLE001 - there is one for each kind of wrong value
            what = f"the result is no {self._plan.result.simpleString()}: {one_line(exc)}"
            return _Verdict("failed", event.attempt, detail=what[:DETAIL]), True

    def _wait(self, again: int, event: Event, verdict: _Verdict) -> None:
        wait = min(_FIRST_WAIT * 2 ** (again - 1), _LONGEST_WAIT)
        if wait > self._retry_until:
            raise ProcessingError(
                f"{_place(event)}: {verdict.detail}; the retries of this task took over "
                f"retry_time={self._plan.retry_seconds:g} seconds. End the cause, or raise "
                f"retry_time, or lower retries; the batch is repeated when the query starts again",
            )
        self._retry_until -= wait
        time.sleep(wait)

    def _count(self, row: _Row, verdict: _Verdict) -> None:
        self._failures += 1
        where = f"session {row.session!r}, number {row.number}, attempt {verdict.attempt}"
        if self._plan.on_failure == "fail":
            raise ProcessingError(
                f"{where}: {verdict.detail}. on_failure='fail' stops the query: repair the "
                f"handler, and start it again",
            )
        if self._failures > self._plan.max_failures:
            raise too_many(self._plan.max_failures, f"{where}: {verdict.detail}")

    def _event(self, row: _Row) -> Event:
        values = self._values(row.batch)[row.place]
        headers = values.get("headers")
        return Event(
            data=values.get("data"),
            headers=headers if isinstance(headers, dict) else {},
            session=row.session,
            number=row.number,
            attempt=row.attempts,
            key=row.key,
            row=values,
        )

    def _values(self, batch: pa.RecordBatch) -> list[dict[str, Any]]:
        """Return the columns of a batch's events, converted once."""
        if id(batch) not in self._converted:
            column = batch.column("event")
            convert, values = plain(column.type), column.to_pylist()
            self._converted = {id(batch): (batch, [*map(convert, values)] if convert else values)}
        return self._converted[id(batch)][1]


def too_many(limit: int, example: str) -> ProcessingError:
    return ProcessingError(
        f"more than max_failures={limit} events of a batch failed, for instance {example}. Nothing "
        f"of the batch is committed. End the cause, or raise max_failures, and start the query "
        f"again",
    )


# Rows in and out


def _rows(batch: pa.RecordBatch) -> Iterator[_Row]:
    columns = [batch.column(name).to_pylist() for name in INPUT]
    for place, values in enumerate(zip(*columns, strict=True)):
        yield _Row(batch, place, *values)


def _output(verdicts: list[tuple[_Row, _Verdict]]) -> pa.RecordBatch:
    """Return what a task says as one Arrow batch: OUTPUT, the result, and PASSED."""
    runs = [[*run] for _, run in groupby((row for row, _ in verdicts), lambda row: id(row.batch))]
    parts = [
        run[0].batch.select(list(PASSED)).take(pa.array([row.place for row in run])) for run in runs
    ]
    passed = pa.Table.from_batches(parts).combine_chunks()
    rows = [
        (row.session, row.number, row.begun, v.status, v.attempt, v.detail, row.key, v.held)
        for row, v in verdicts
    ]
    told = zip(zip(*rows, strict=True), OUTPUT.types, strict=True)
    columns = [pa.array(values, kind) for values, kind in told]
    results = pa.array([said.result for _, said in verdicts], _result_type(verdicts[0][0].batch))
    return pa.RecordBatch.from_arrays(
        [*columns, results, *(passed.column(name).chunk(0) for name in PASSED)],
        names=[*OUTPUT.names, RESULT, *PASSED],
    )


def _result_type(batch: pa.RecordBatch) -> pa.DataType:
    return batch.schema.field(RESULT).type


def _place(event: Event) -> str:
    return f"session {event.session!r}, number {event.number}, attempt {event.attempt}"
