"""A store that packs at random moments, and a copy of it that never does: nobody can tell them
apart, whatever happens to both.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    rule,
    run_state_machine_as_test,
)

from tests.contract.sites import PostgresqlSite, SqliteSite
from tests.scratch_store import MEMORY
from tests.store_contract.packs import EVER, answers
from tests.store_contract.site import StoppedClock, histories
from tests.store_contract.writers import FEED, call, chunk, everything, publish_as
from zeh_spark.publisher import Problem, Store
from zeh_spark.service.reads.feed import ChunkFeed
from zeh_spark.service.retention.rules import prune
from zeh_spark.service.store.interface import Retention
from zeh_spark.service.telemetry.lag import Backlogs
from zeh_spark.wire.direct_reads import PlanRequest

TwinSite = SqliteSite | PostgresqlSite
PARTITIONS = 3
NS = st.sampled_from([1, 2, 3, 4])
READER = "mailer"


class Twins(RuleBasedStateMachine):
    """Random histories of two stores, of which the second one packs.

    What a reader is given becomes a cursor that readers come back with, also after a restore has
    undone it.
    """

    new_site: ClassVar[type[TwinSite]]
    backups = Bundle("backups")

    @initialize()
    def begin(self) -> None:
        self.directory = tempfile.TemporaryDirectory(dir=MEMORY)
        self.clock = StoppedClock()
        folders = [Path(self.directory.name, name) for name in ("plain", "packing")]
        for each in folders:
            each.mkdir()
        self.sites = [self.new_site(each, self.clock) for each in folders]
        self.sites[0].open().create(FEED, PARTITIONS)
        self._restore([self.sites[0].copy()] * 2)
        self.cursors: dict[int, set[tuple[int, str]]] = {n: set() for n in (1, 2, 3, 4)}
        self.readers = {n: dict.fromkeys(range(n), "_first") for n in self.cursors}
        self.batches = 0
        self.publish([0, 1, 2, 0, 0, 1, 0, 2], packs=1)

    def same(self, ask: Callable[[Store], Any]) -> Any:
        """Ask both stores; return the answer, None if it was a refusal."""
        plain, packing = (outcome(ask, store) for store in self.stores)
        assert plain == packing
        return plain[1] if plain[0] == "answer" else None

    # What happens to both

    @rule(
        partitions=st.lists(st.integers(0, PARTITIONS - 1), min_size=1, max_size=8),
        packs=st.integers(0, 4),
    )
    def publish(self, partitions: list[int], packs: int) -> None:
        """And pack so much of what there is, in one of the two."""
        for each in partitions:
            self.clock.now += 1
            producer, self.batches = "pq"[self.batches % 2], self.batches + 1
            by = call(None, producer=producer, partitions=PARTITIONS)
            some = chunk(each, *[b"%d" % self.batches] * (1 + self.batches % 3))
            self.same(lambda store, by=by, some=some: publish_as(store, by, some))
        for _ in range(packs):
            self.stores[1].seal(FEED, before=EVER)

    @rule(chunks=st.integers(1, 5))
    def trim(self, chunks: int) -> None:
        """Remove the oldest chunks."""
        found = everything(self.stores[0])[:chunks]
        self.same(lambda store: store.remove(FEED, found[-1].g if found else 0))

    @rule(size=st.integers(0, 900), waits=st.booleans())
    def prune(self, size: int, waits: bool) -> None:
        """Keep so many bytes, and perhaps what a reader with kept cursors has not read."""
        kept = Retention(bytes=size, readers=(READER,) * waits)
        self.same(lambda store: prune(store, FEED, kept))

    @rule()
    def begin_epoch(self) -> None:
        self.clock.now += 2000
        self.same(lambda store: store.begin_epoch(FEED))

    @rule(target=backups)
    def back_up(self) -> Any:
        return [each.copy() for each in self.sites]

    @rule(backup=backups)
    def restore(self, backup: Any) -> None:
        self._restore(backup)

    @rule()
    def crash(self) -> None:
        for each in self.sites:
            each.crash()
        self._open()

    # What readers see

    @rule(n=NS, hint=st.sampled_from([0, 1, 3, 100]))
    def read(self, n: int, hint: int) -> None:
        blocks = self.same(lambda store: [*ChunkFeed(store, FEED).page(self.readers[n], n, hint)])
        for each in blocks or ():
            self._given(n, {each.partition % n: each.cursor})

    @rule(n=NS, events=st.integers(1, 9), size=st.sampled_from([1, 100, 1 << 20]))
    def plan(self, n: int, events: int, size: int) -> None:
        """With ranges, digests and ends."""
        cursors = {str(each): cursor for each, cursor in self.readers[n].items()}
        request = PlanRequest(n, cursors, max_events=events, range_bytes=size)
        if found := self.same(lambda store: ChunkFeed(store, FEED).plan(request)):
            self._given(n, {int(each): cursor for each, cursor in found[1].ends.items()})

    @rule(n=NS, data=st.data(), start=st.sampled_from([None, "_first", "_last"]))
    def go_elsewhere(self, n: int, data: st.DataObject, start: str | None) -> None:
        """Begin again, or continue from a cursor that there was once."""
        if start:
            self.readers[n] = dict.fromkeys(range(n), start)
        elif self.cursors[n]:
            partition, cursor = data.draw(st.sampled_from(sorted(self.cursors[n])))
            self.readers[n][partition] = cursor

    @rule(n=NS)
    def keep_cursors(self, n: int) -> None:
        self.same(lambda store: store.save_cursors(FEED, READER, n, self.readers[n]))
        self.same(lambda store: store.cursor_sets(FEED))

    @rule(n=NS, before=st.integers(0, 20))
    def ask_for_a_time(self, n: int, before: int) -> None:
        time = self.clock.now - before
        found = self.same(lambda store: ChunkFeed(store, FEED).cursors_at(n, time))
        self._given(n, found or {})

    @rule(n=NS)
    def ask_for_the_lag(self, n: int) -> None:
        """Of readers that hand their cursors in, and of those whose cursors are kept."""
        cursors = {str(each): cursor for each, cursor in self.readers[n].items()}
        both = []
        for store, backlogs in zip(self.stores, self.backlogs, strict=True):
            state = store.feed(FEED)
            with store.snapshot(FEED) as log, backlogs.up_to_date(state, 30) as backlog:
                assert backlog
                kept = [[*backlog.lags(each, log.anchors)] for each in store.cursor_sets(FEED)]
            both.append((backlogs.after(state, n, cursors), kept))
        assert both[0] == both[1]

    # How

    def _given(self, n: int, cursors: Mapping[int, str]) -> None:
        self.readers[n] |= cursors
        self.cursors[n] |= set(cursors.items())

    def _restore(self, backups: list[Any]) -> None:
        for site, backup in zip(self.sites, backups, strict=True):
            site.restore(backup)
        self._open()

    def _open(self) -> None:
        self.stores = [each.open() for each in self.sites]
        self.backlogs = [Backlogs(each) for each in self.stores]

    def teardown(self) -> None:
        try:
            if hasattr(self, "stores"):
                self.same(lambda store: [*ChunkFeed(store, FEED).page({0: "_first"}, 1, 1000)])
                self.trim(max(0, len(everything(self.stores[0])) - 8))  # or it would take long
                self.same(lambda store: answers(store, PARTITIONS))
        finally:
            for each in self.sites:
                each.close()
            self.directory.cleanup()


def outcome(ask: Callable[[Store], Any], store: Store) -> tuple[str, Any]:
    try:
        return "answer", ask(store)
    except Problem as problem:
        return "refusal", (problem.name, problem.detail, problem.members)


@pytest.mark.timeout(1800)  # a campaign's
def test_a_store_that_packs_answers_as_one_that_never_does(new_site, monkeypatch):
    """Events, cursors, tags, 410s, digests, times, epochs and lag are the same, whatever n I read
    with, also after a restore, in both databases.
    """
    for name, size in (("PACK_CHUNKS", 3), ("BLOCK_BYTES", 120), ("OWN_BYTES", 130)):
        monkeypatch.setattr(f"zeh_spark.service.store.packs.{name}", size)
    machine = type("Twins", (Twins,), {"new_site": new_site})
    tried = settings(max_examples=histories(new_site), stateful_step_count=30)
    run_state_machine_as_test(machine, settings=tried)
