"""What a stream asks of a source of batches, whichever way the events come.

`StreamDriver` has two: `PagedSource` follows the cursors of any publisher on the driver, and
`PlannedSource` has the batches that our publisher plans, which tasks fetch ("direct reads").
Neither knows the other.

Rule for editors: what only one of the two does is no part of this contract.

Runs on the driver.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

from zeh_spark.client.http.lag import Lag
from zeh_spark.errors import OptionError, ReplayError
from zeh_spark.spark.source.offsets import Offset, Position, StagedBatch
from zeh_spark.spark.source.options import SourceOptions
from zeh_spark.spark.source.tasks import FeedTask
from zeh_spark.wire.feed_identity import Epoch
from zeh_spark.wire.phrases import counted
from zeh_spark.wire.stamp_columns import POSITION

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Limits:
    """For what a batch waits, and how much it may have, beside the options.

    Args:
        finite: whether the run ends when it has read the feed to its end.
        first: whether it is the run's first batch, which waits for an answer.
        factor: how many times as large as usual it may be. Above 1 it waits for all that the feed
            holds, as far as this allows.
        least: the number of events for which a batch that is not full waits, as in Kafka's source.
        until: how long it waits for them, in seconds of the monotonic clock.
    """

    finite: bool = False
    first: bool = False
    factor: int = 1
    least: int = 0
    until: float = 0.0

    def left(self, events: int) -> float:
        """Return for how many seconds a batch of so many events may still wait; 0 for none."""
        return 0.0 if events >= self.least else max(0.0, self.until - time.monotonic())


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch that is ready for the tasks.

    Args:
        positions: by partition, where it ends, and the sum of what it has.
        tasks: none if no partition has events.
        epochs: what the answers with the events told as the feed's newest epoch; None for none.
        direct: the fingerprint of the options if tasks fetch; None if the driver fetched.
        staged: where the batch is staged, if it is.
        more: whether events are known that are in no batch yet.
        is_undecided: whether the run ends here without a proof that this is the feed's end.
    """

    positions: Mapping[int, Position]
    tasks: Sequence[FeedTask]
    epochs: frozenset[Epoch | None] = frozenset({None})
    direct: str | None = None
    staged: StagedBatch | None = None
    more: bool = False
    is_undecided: bool = False


class Report(NamedTuple):
    """What a source knows for the query's progress.

    Attributes:
        head: the cursor of the feed's newest event; None if it is unknown.
        lag: how far the last batch's end is behind it; None if that is unknown.
        numbers: what reading took so far.
    """

    head: str | None
    lag: Lag | None
    numbers: Mapping[str, Any]


class BatchSource(Protocol):
    """Makes the batches of a stream, one after the other, and each of them again.

    Guarantee: a batch has every event between its start and its end once, in feed order.
    """

    def next(self, after: Offset, limits: Limits) -> Batch | None:
        """Return the next batch after an offset; None if there is nothing to read, or too little.

        `after` need not be where the last batch ended. Raises what reading raises.
        """

    def again(self, start: Mapping[int, Position], end: Offset) -> Batch:
        """Return the batch (start, end] once more, proven equal by what its end says.

        Raises ReplayError if the feed gives other events now, unless `replay` is `accept`.
        """

    def report(self) -> Report:
        """Return the head, the lag, and what reading took so far."""

    def close(self) -> None:
        """End the threads soon. Does not wait for them."""


def in_thread(name: str, work: Callable[[], Result]) -> Future[Result]:
    """Return what a new thread will return, or raise; Spark's thread gets it."""
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as exc:  # noqa: BLE001 - raised again in Spark's thread
            future.set_exception(exc)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


def reads_directly(options: SourceOptions, offered: Callable[[], bool]) -> bool:
    """Return whether executors fetch, by the option `fetch`.

    `offered` asks whether the publisher offers it. Raises OptionError if `fetch` is `executors`,
    and the publisher does not offer it; or if the schema names a column for which executors have to
    fetch.
    """
    tls_files = (options.ca_file, options.client_cert_file, options.client_key_file)
    # executors may not have the files, and chunks have all events
    on_driver = any((options.only, options.staging_location, *tls_files))
    at_hand = options.fetch == "executors" or not on_driver
    found = options.fetch != "driver" and at_hand and offered()
    if options.fetch == "executors" and not found:
        raise OptionError(
            f"option 'fetch' is executors, but the publisher of {options.url} does not offer "
            f"direct reads: it is another publisher, or serves a table. Set fetch=auto or "
            f"fetch=driver",
            option="fetch",
            anchor="direct-reads",
        )
    if not found:
        check_position(options)
    return found


def check_position(options: SourceOptions) -> None:
    """Raise OptionError if the schema names a column that only executors can fill.

    Call it where the driver fetches.
    """
    if POSITION in options.columns:
        raise OptionError(
            f"the schema names the column {POSITION!r}, which only executors can fill, and the "
            f"driver fetches these events of {options.url}: fetch=driver, 'stagingLocation' or a "
            f"TLS file is set or was set when the batch was planned, or the publisher does not "
            f"offer direct reads. Leave the column out",
            option="schema",
            anchor="direct-reads",
        )


def mismatch(
    partition: int,
    cursor: str,
    end: Position,
    found: str,
    *,
    got: int | str | None = None,
    prevention: str = "",
) -> ReplayError:
    """Return the error for a batch that cannot be repeated as it was.

    It began at `cursor`, and ended at `end`. `found` says what the publisher gives instead, `got`
    the number of these events, or their digest; `prevention` what prevents this, beside a stage.
    """
    return ReplayError(
        f"partition {partition}: Spark has to repeat a batch of {counted(end.events, 'event')} "
        f"from cursor {cursor!r} to {end.cursor!r}, but {found}. Check whether the sink has "
        f"committed that batch. If it has not, restart once with replay=accept, which takes what "
        f"the feed gives now; if it has, start with a new checkpointLocation from the end "
        f"cursors. To prevent this, {prevention}set 'stagingLocation', which keeps batches until "
        f"they are done",
        partition=partition,
        cursor=cursor,
        expected=end.digest if isinstance(got, str) else end.events,
        got=got,
    )
