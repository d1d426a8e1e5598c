"""The contract for reading while old events are removed: a reader misses nothing unnoticed."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tests.scratch_store import MEMORY
from tests.store_contract.direct_reads import fetched
from tests.store_contract.site import Site, histories
from tests.store_contract.writers import (
    FEED,
    call,
    chunk,
    data,
    everything,
    large,
    publish,
    publish_as,
)
from zeh_spark.publisher import Problem
from zeh_spark.service.reads import direct_plans
from zeh_spark.service.reads.feed import ChunkFeed
from zeh_spark.service.retention.rules import prune
from zeh_spark.service.store.interface import Retention
from zeh_spark.wire.direct_reads import HEADERS, PlanRequest


@dataclass
class Reader:
    """A reader of the feed that works with `n` partitions, and its cursor in each of them."""

    n: int
    behind: dict[int, str]
    got: dict[int, list[int]] = field(default_factory=dict)  # or told gone, by stored partition


class Readings(RuleBasedStateMachine):
    """Random readers of any n and page size, while events are published and removed.

    Each gets all events of a partition in order, except those that it was told are gone.
    """

    new_site: ClassVar[type[Site]]

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory(dir=MEMORY)
        self.site = self.new_site(Path(self.directory.name))
        self.store = self.site.open()
        self.store.create(FEED, 3)
        self.log: list[tuple[int, int]] = []
        self.readers = [Reader(n, dict.fromkeys(range(n), "_first")) for n in (1, 2, 3, 4)]

    @rule(partitions=st.lists(st.integers(0, 2), max_size=4))
    def publish(self, partitions: list[int]) -> None:
        for each in partitions:
            publish(self.store, chunk(each, b"%d" % len(self.log)))
            self.log.append((each, len(self.log)))

    @rule(kept=st.integers(0, 5))
    def prune(self, kept: int) -> None:
        sizes = [each.size for each in everything(self.store)]
        prune(self.store, FEED, Retention(bytes=max(1, sum(sizes[len(sizes) - kept :]))))

    @rule(who=st.integers(0, 3), hint=st.sampled_from([0, 1, 2, 100]), together=st.booleans())
    def read(self, who: int, hint: int, together: bool) -> None:
        """Read a page of all partitions together, or a page of each."""
        reader = self.readers[who]
        asks = [reader.behind] if together else [{v: c} for v, c in reader.behind.items()]
        for asked in asks:
            try:
                self._read(reader, asked, hint)
            except Problem as problem:
                self._gone(reader, problem, problem.members["partition"])

    def _read(self, reader: Reader, asked: Mapping[int, str], hint: int) -> None:
        for each in asked:
            if reader.behind[each] == "_first":
                self._excuse(reader, each)
        for block in ChunkFeed(self.store, FEED).page(asked, reader.n, hint):
            lines = block.lines.splitlines()
            seen = [int(line.split(b'"data":')[1][:-1]) for line in lines]
            reader.got.setdefault(block.partition, []).extend(seen)
            reader.behind[block.partition % reader.n] = block.cursor

    @rule(who=st.integers(0, 3), chunks=st.integers(1, 5), size=st.sampled_from([1, 100, 1 << 20]))
    def read_directly(self, who: int, chunks: int, size: int) -> None:
        reader = self.readers[who]
        cursors = {str(each): cursor for each, cursor in reader.behind.items()}
        request = PlanRequest(reader.n, cursors, max_events=chunks, range_bytes=size)
        try:
            for each, cursor in reader.behind.items():
                if cursor == "_first":
                    self._excuse(reader, each)
            plan = direct_plans.plan(self.store, FEED, request)[1]
            chunks_read = fetched(self.store, request, plan)
        except Problem as problem:
            for each in sorted(problem.members["lost"]):
                self._gone(reader, problem, int(each))
            return
        for _, header, lines in chunks_read:
            seen = [int(line.split(b'"data":')[1][:-1]) for line in lines.splitlines()]
            reader.got.setdefault(header[HEADERS.names.index("partition")], []).extend(seen)
        reader.behind = {int(each): cursor for each, cursor in plan.ends.items()}

    def _gone(self, reader: Reader, problem: Problem, partition: int) -> None:
        """Check that unread events are gone, and continue from the cursor in the refusal."""
        assert "cursor-gone" == problem.name
        assert self._excuse(reader, partition), f"nothing unread is gone: {problem}"
        reader.behind[partition] = problem.members["lost"][str(partition)]

    def _excuse(self, reader: Reader, partition: int) -> bool:
        """Note which unread events are gone; return whether there are any."""
        left = {int(each) for each in data(self.store)}
        lost = [
            (each, number)
            for each, number in self.log
            if each % reader.n == partition and number not in left | {*reader.got.get(each, [])}
        ]
        for each, number in lost:
            reader.got.setdefault(each, []).append(number)
        return bool(lost)

    def teardown(self) -> None:
        self.site.close()
        self.directory.cleanup()

    @invariant()
    def each_reader_has_a_beginning_of_each_partition(self) -> None:
        for reader in self.readers:
            for partition, got in reader.got.items():
                all_of_it = [number for each, number in self.log if each == partition]
                assert got == all_of_it[: len(got)]


def test_readers_get_all_that_they_are_not_told_is_gone(new_site):
    """Whatever my pages are and whatever is removed, I never miss an event without an error."""
    machine = type("Readings", (Readings,), {"new_site": new_site})
    tried = settings(max_examples=histories(new_site), stateful_step_count=30)
    run_state_machine_as_test(machine, settings=tried)


def test_retention_under_load_loses_nothing_that_is_kept(opened, store):
    """Two publishers prune while two write and one reads."""
    ended = threading.Event()
    rule = Retention(bytes=20_000, readers=("reader",))

    def write(name: str) -> None:
        mine = opened()
        for batch in range(40):
            publish_as(mine, call(batch, producer=name), large(batch % 2, b"1"))

    def remove() -> None:
        mine = opened()
        while not ended.is_set():
            prune(mine, FEED, rule)

    def follow() -> Iterator[int]:
        mine = ChunkFeed(opened(), FEED)
        behind = {0: "_first", 1: "_first"}
        while True:
            events = 0
            for block in mine.page(behind, 2, 500):
                behind[block.partition] = block.cursor
                events += len(block.lines.splitlines())
            mine.save_cursors("reader", 2, behind)
            yield events

    total, reading = 0, follow()
    with ThreadPoolExecutor(4) as threads:
        writers = [threads.submit(write, name) for name in ("p", "q")]
        pruners = [threads.submit(remove) for _ in range(2)]
        try:
            while total < 80 * 201 and not any(each.done() for each in pruners):
                written = all(each.done() for each in writers)
                total += (more := next(reading))
                if written and not more:
                    break  # no event will come any more
        finally:  # also if the store refuses the reader
            ended.set()
    for each in (*writers, *pruners):
        each.result()
    assert 80 * 201 == total
    assert len(everything(store)) < 80
    with store.snapshot(FEED) as log:
        assert log.state.size + max(each.size for each in log.scan(0, 1 << 62, 1)) > 20_000
