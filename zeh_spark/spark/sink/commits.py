"""What queries have published: the publisher's receipt of each of their batches.

Rule for editors: it is asked for in Spark's listener thread, on which the listeners of all queries
wait. So it is asked once, with short timeouts, and a publisher that does not answer is left alone
for a while. Rejected: a thread of its own; a program that ends would lose the last batches. Runs
on the driver.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from types import MappingProxyType
from typing import Any

from zeh_spark.client.http.publish_client import BatchCall, PublishClient, PublishedRange
from zeh_spark.client.options.given import parse
from zeh_spark.errors import ZeroEventHubError
from zeh_spark.spark.sink.options import SinkOptions
from zeh_spark.wire.phrases import counted

TIMEOUT = 2.0
"""Seconds for which a connection, and then an answer, is waited for at most."""

PAUSE = 60.0
"""Seconds for which a publisher is not asked after it did not answer."""

_RANGES = 4
"""Most ranges that a line shows."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SinkCommit:
    """A micro-batch of a query as the publisher has committed it.

    Args:
        run_id: Spark's id of the run.
        query: the query's name, None if it has none.
        feed: the address of the feed.
        producer: the producer's name.
        batch_id: the number of the micro-batch in its checkpoint.
        events: the number of its events.
        ranges: the sequence numbers in each partition that has some of its events.
        time: when it was committed.
        dead_letters: the rows of the micro-batch that are events of the dead-letter feed instead;
            None if it is not named (`deadLetterUrl`), or does not answer.
    """

    run_id: str
    query: str | None
    feed: str
    producer: str
    batch_id: int
    events: int
    ranges: tuple[PublishedRange, ...]
    time: datetime
    dead_letters: int | None = None

    def __str__(self) -> str:
        shown = [f"{each.partition}: {each.first}-{each.last}" for each in self.ranges[:_RANGES]]
        if len(self.ranges) > _RANGES:
            shown.append(f"{len(self.ranges) - _RANGES} more")
        line = (
            f"batch {self.batch_id} to {self.feed} as {self.producer!r}  "
            f"{counted(self.events, 'event')} committed at {self.time:%H:%M:%S} UTC"
        )
        if self.dead_letters:
            line += f"  {counted(self.dead_letters, 'dead letter')}"
        return f"{line}  ({', '.join(shown)})" if shown else line


class SinkCommits:
    """Asks for the receipts of what queries publish as one producer.

    Guarantee: `of` takes a few seconds at most, and raises nothing because of the publisher.

    Args:
        producer: the producer's name (`producerId`).
        options: options of the format that say how to reach the publisher, like `token`, and the
            dead-letter feed (`deadLetterUrl`).
    """

    def __init__(
        self,
        url: str,
        producer: str,
        options: Mapping[str, object] = MappingProxyType({}),
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        parsed = parse(SinkOptions, {**options, "url": url})
        self._feed = str(parsed.url)
        self._producer = producer
        letters = parsed.dead_letters
        self._client = PublishClient(parsed.impatient(TIMEOUT))
        self._letters = PublishClient(letters.impatient(TIMEOUT)) if letters else None
        self._clock = clock
        self._asks_from = self._letters_from = clock()
        self._failed = False
        self._others: set[str] = set()

    def of(self, progress: Mapping[str, Any]) -> SinkCommit | None:
        """Return what a micro-batch has published here; None if it published nothing here.

        None, too, if the publisher does not answer. The first failure is logged, and the next ones
        after it has answered again.
        """
        run = progress["runId"]
        if run in self._others or "addBatch" not in progress.get("durationMs", {}):
            return None
        if self._clock() < self._asks_from:
            return None
        call = BatchCall(self._producer, progress["id"], run, progress["batchId"])
        try:
            receipt = self._client.look_up(call).receipt
        except ZeroEventHubError as exc:
            self._asks_from = self._clock() + PAUSE
            if not self._failed:
                log.warning("what producer %r publishes is not shown: %s", self._producer, exc)
            self._failed = True
            return None
        self._failed = False
        if receipt is None:  # the sink commits each batch of its query, also one without events
            self._others.add(run)
            return None
        return SinkCommit(
            run_id=progress["runId"],
            query=progress.get("name"),
            feed=self._feed,
            producer=self._producer,
            batch_id=progress["batchId"],
            events=receipt.events,
            ranges=receipt.ranges,
            time=datetime.fromtimestamp(receipt.time / 1000, timezone.utc),
            dead_letters=self._dead_letters(call),
        )

    def _dead_letters(self, call: BatchCall) -> int | None:
        """Return how many rows of a batch are in the dead-letter feed; None if that is unknown."""
        if self._letters is None or self._clock() < self._letters_from:
            return None
        try:
            receipt = self._letters.look_up(call).receipt
        except ZeroEventHubError as exc:
            self._letters_from = self._clock() + PAUSE
            log.info("dead letters of producer %r are not shown: %s", self._producer, exc)
            return None
        return receipt.events if receipt else 0
