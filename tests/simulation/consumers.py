"""Simulated programs that stand on readers: sessions, and a service that waits for a reader."""

from __future__ import annotations

import pickle
from collections import Counter
from dataclasses import dataclass, field
from zlib import crc32

import pyarrow as pa

from tests.simulation.clients import Reader, StreamQuery, Writer
from tests.simulation.publisher import URL
from tests.simulation.world import AnomalyError, World
from tests.unit.sessions.buckets import DAY, Told, row
from zeh_spark.client.visibility import wait_for
from zeh_spark.errors import (
    NotCommittedError,
    OutcomeUnknownError,
    PublishError,
    UnavailableError,
)
from zeh_spark.spark.sessions.bucket import Given
from zeh_spark.spark.sessions.model import Policy, SessionEvent
from zeh_spark.spark.sessions.state import Settings

BUCKETS = 2


@dataclass(eq=False)
class SessionQuery(StreamQuery):
    """A query that puts the events of each writer in order, with the state of each batch.

    The events of a feed come by partition, so in an order of their own. Each has a time, which is
    wrong by some seconds.
    """

    states: list[list[Told]] = field(default_factory=list)
    given: dict[int, list[Given]] = field(default_factory=dict)
    marks: list[int] = field(default_factory=lambda: [0])

    def __post_init__(self) -> None:
        choice = self.world.random.choice
        self.policy = Policy(
            gap_timeout=choice((None, 1_000, 5_000)),
            on_gap=choice(("hold", "skip", "dead-letter")),
            max_events=choice((3, 1_000)),
        )
        settings = Settings(self.policy, BUCKETS, DAY)
        self.states.append([Told(settings) for _ in range(BUCKETS)])
        self.firsts = {
            each.name: [sum(each.sizes[:batch]) for batch in range(len(each.sizes))]
            for each in self.writers
        }

    def write(self, batches: list[pa.RecordBatch]) -> None:
        super().write(batches)
        events = [self.numbered(event) for _, event in self.output[self.commits]]
        mark, buckets = self.marks[self.commits], []
        given: list[Given] = []
        for number, before in enumerate(self.states[self.commits]):
            bucket = pickle.loads(pickle.dumps(before))
            bucket.given = []
            bucket.take(*(each for each in events if _bucket(each) == number), now=mark)
            if bucket.timer is not None and bucket.timer <= mark:
                bucket.judge(mark)
            given += bucket.given
            buckets.append(bucket)
        self.world.step(f"keeps the state of batch {self.commits}")
        if self.given.setdefault(self.commits, given) != given:
            raise AnomalyError(f"{self.name}: batch {self.commits} gave other rows when repeated")
        self.states[self.commits + 1 :] = [buckets]
        self.marks[self.commits + 1 :] = [max([mark, *(each.clock for each in events)])]

    def numbered(self, event: str) -> SessionEvent:
        name, batch, place = event.split(".")
        number = self.firsts[name][int(batch)] + int(place)
        return row(name, number, 1_000 * number + crc32(event.encode()) % 4_000, event=event)

    def check(self) -> None:
        """Raise AnomalyError unless each event it read came out once, in order, or waits."""
        out = [each for batch in range(self.commits) for each in self.given[batch]]
        buckets = self.states[self.commits]
        taken = [event for batch in range(self.commits) for _, event in self.output[batch]]
        left = Counter(each.event for each in out if each.event is not None)
        for bucket in buckets:
            waiting = [*bucket.segments.events()]
            for stored in bucket.stored.values():
                waiting += stored.events.values()
            left.update(waiting)
            if bucket.counts and len(waiting) != bucket.counts[-1]["held"]:
                raise AnomalyError(f"{self.name}: it holds {waiting}, and says {bucket.counts[-1]}")
        if left != Counter(taken):
            lost, doubled = [*(Counter(taken) - left)], [*(left - Counter(taken))]
            raise AnomalyError(f"{self.name}: its sessions lost {lost}, and doubled {doubled}")
        for name in self.firsts:
            numbers = [
                self.numbered(each.event).number
                for each in out
                if each.dead is None and each.event and each.event.startswith(f"{name}.")
            ]
            in_order = [*range(len(numbers))] if self.policy.on_gap == "hold" else sorted(numbers)
            if numbers != in_order:
                raise AnomalyError(f"{self.name}: session {name} came as {numbers}")


@dataclass(eq=False)
class Service:
    """Asks whether a reader has a batch, as a service does before it answers a user."""

    world: World
    writers: list[Writer]
    reader: Reader

    def live(self) -> None:
        """Raise AnomalyError if it is told of a batch of which the reader has nothing.

        Retention may have removed a part of it before the reader began.
        """
        while not self.world.calm:
            self.world.pause(self.world.random.random())
            receipts = [each for writer in self.writers for each in writer.receipts.items()]
            if not receipts:
                continue
            batch, cursor = self.world.random.choice(receipts)
            restores = self.world.restores
            try:
                wait_for(cursor, URL, cursor_set=self.reader.name, timeout=0)
            except (NotCommittedError, UnavailableError, OutcomeUnknownError, PublishError) as exc:
                self.world.say(f"{exc}"[:200])
                continue
            self.world.counts["told of a reader's commit"] += 1
            events = [event for events in self.reader.rows().values() for event in events]
            has_any = any(each.startswith(batch) for each in events)
            if restores == self.world.restores and not has_any:
                raise AnomalyError(f"{self.reader.name} is said to have {batch}, and has {events}")


def _bucket(event: SessionEvent) -> int:
    return crc32(event.session.encode()) % BUCKETS
