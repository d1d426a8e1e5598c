"""One run: who takes part, and what has to be true in the end."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any
from unittest import mock

from tests.simulation.clients import (
    BufferedWriter,
    PlainReader,
    ProducerWriter,
    Reader,
    Relay,
    SinkWriter,
    StreamQuery,
    Writer,
)
from tests.simulation.consumers import Service, SessionQuery
from tests.simulation.publisher import DEAD, FEED, URL, Publisher, served
from tests.simulation.world import AnomalyError, World
from zeh_spark.service.retention import rules
from zeh_spark.service.store import packs
from zeh_spark.service.store.interface import Retention
from zeh_spark.spark.sessions import state
from zeh_spark.tools.audit.auditing import Audit
from zeh_spark.tools.audit.findings import Difference

SMALL = (
    (packs, {"PACK_CHUNKS": 4, "BLOCK_BYTES": 120, "OWN_BYTES": 2000}),
    (state, {"SPILL": 1, "SEGMENT": 3}),
)
"""Limits that are made small, so that runs go beyond them."""

DAY = 86_400.0


@dataclass
class Removed:
    """The events that were removed, by partition; `by_hand` if no reader was waited for."""

    events: dict[int, list[object]] = field(default_factory=dict)
    by_hand: bool = False


def run(world: World, folder: Path) -> None:
    """Run a world, whose store is in this folder. Raises AnomalyError if a promise was broken."""
    random = world.random
    fronts = random.choice((1, 2))
    with contextlib.ExitStack() as stack:
        for module, limits in SMALL:
            stack.enter_context(mock.patch.multiple(module, **limits))
        publisher = stack.enter_context(served(world, folder, 2, fronts))
        sizes = [[random.randrange(6) for _ in range(random.randint(1, 20))] for _ in range(2)]
        query = SinkWriter(world, "query", sizes[1])
        writers = [
            query,
            random.choice(
                (
                    ProducerWriter(world, "till", sizes[0]),
                    BufferedWriter(world, "phone", [1] * sum(sizes[0])),
                )
            ),
        ]
        readers: list[Reader] = random.sample(
            [
                PlainReader(world, "program", writers),
                StreamQuery(world, "stream", writers),
                StreamQuery(world, "driver", writers, fetch="driver"),
                Relay(world, "relay", writers, publisher=publisher),
                SessionQuery(world, "sessions", writers),
            ],
            2,
        )
        removed = Removed()
        for each in (*writers, *readers):
            world.begin(each.name, each.live)
        kept_for = tuple(each.name for each in readers if isinstance(each, StreamQuery))
        for reader in readers:
            if isinstance(reader, StreamQuery):
                world.begin(f"asks for {reader.name}", Service(world, writers, reader).live)
        world.begin("operator", lambda: operate(world, publisher, query, removed, kept_for))
        world.run()
        check(publisher, writers, readers, removed)


def operate(
    world: World,
    publisher: Publisher,
    query: SinkWriter,
    removed: Removed,
    kept_for: tuple[str, ...],
) -> None:
    """Do what operators do, in some runs: remove, restore, start a query twice, set the clock."""
    random, backups = world.random, []
    acts = ["seal", "seal"]
    for some in (
        ["remove"] * 3, ["prune"] * 3, ["copy", "copy", "restore"], ["twin"], ["clock"] * 2,
    ):  # fmt: skip
        acts += some if random.randrange(3) == 0 else []
    while not world.calm:
        world.pause(random.random() * 2)
        if world.calm:
            return
        act = random.choice(acts)
        world.counts[f"act: {act}"] += 1
        if act in {"remove", "prune"}:
            remove(publisher, removed, kept_for if act == "prune" else None)
        elif act == "copy":
            backups.append(
                (publisher.copy(), {each: [*some] for each, some in removed.events.items()})
            )
        elif act == "restore" and backups:
            world.step("restores")
            backup, gone = random.choice(backups)
            publisher.restore(backup)
            removed.events = {each: [*gone[each]] for each in gone}
        elif act == "twin" and not query.twin and not query.ended:
            query.twin = SinkWriter(world, query.name, query.sizes, query.committed, twin=query)
            world.begin("twin", query.twin.live)
        elif act == "clock":
            world.skew += random.choice((-3600.0, -1.0, 60.0, 3600.0, 2 * DAY))
            world.say("the clock jumps to", world.skew)
        else:
            publisher.act("seals", lambda store: store.seal(FEED, before=1 << 62))
        publisher.act("tidies", lambda store: store.tidy())


def remove(publisher: Publisher, removed: Removed, kept_for: tuple[str, ...] | None) -> None:
    """Remove events, by hand up to anywhere, or by a retention that waits for some readers."""
    random = publisher.world.random
    before = publisher.events()
    if kept_for is None:
        removed.by_hand = True
        upto = random.randint(0, publisher.store.feed(FEED).head)
        publisher.act(f"removes up to {upto}", lambda store: store.remove(FEED, upto))
    else:
        retention = Retention(bytes=random.choice((1, 300, 1000)), readers=kept_for)
        publisher.act("prunes", lambda store: rules.prune(store, FEED, retention))
    after = publisher.events()
    for partition, events in before.items():
        left = {*after[partition]}
        gone = [each for each in events if each not in left]
        removed.events.setdefault(partition, []).extend(gone)


def check(
    publisher: Publisher, writers: list[Writer], readers: list[Reader], removed: Removed
) -> None:
    """Raise AnomalyError unless each event is on the feed once, and in each reader's sink once."""
    there, gone = publisher.events(), removed.events
    every = {each: [*gone.get(each, []), *there[each]] for each in there}
    compare(
        "the feed",
        [event for events in every.values() for event in events],
        [event for each in writers for n in range(len(each.sizes)) for event in each.events(n)],
    )
    letters = [each["row"]["data"] for some in publisher.events(DEAD).values() for each in some]
    [query] = (each for each in writers if isinstance(each, SinkWriter))
    wrong = [each for batch in range(len(query.sizes)) for each in query.wrong(batch)]
    compare("the dead letters", letters, wrong)
    for writer in writers:
        for partition, events in every.items():
            batches = [int(each.split(".")[1]) for each in events if each.startswith(writer.name)]
            if batches != sorted(batches):
                raise AnomalyError(f"partition {partition}: batches of {writer.name}: {batches}")
    for reader in readers:
        check_reader(reader, there, every, removed)
        if isinstance(reader, SessionQuery):
            reader.check()
    for writer in writers:
        check_runs(publisher, writer.name)
    if isinstance(found := Audit(URL).run(), Difference):
        raise AnomalyError(f"the audit found: {found}")


def check_runs(publisher: Publisher, producer: str) -> None:
    """Raise AnomalyError if a run has published again after another one had taken over."""
    kept = publisher.store.receipts(FEED, producer, 1 << 53, 1000)
    runs = [run for run, _ in groupby(each.run for each in kept)]
    if len(runs) > len({*runs}):
        raise AnomalyError(f"runs of {producer} took turns: {runs}")


def compare(where: str, found: list[Any], wanted: list[Any]) -> None:
    has, should = Counter(map(json.dumps, found)), Counter(map(json.dumps, wanted))
    if has != should:
        lost, doubled = [*(should - has)], [*(has - should)]
        raise AnomalyError(f"lost on {where}: {lost}, doubled: {doubled}")


def check_reader(
    reader: Reader, there: dict[int, list[Any]], every: dict[int, list[Any]], removed: Removed
) -> None:
    """Raise AnomalyError unless it has all in order, or was told why it does not."""
    restores, told, rows = reader.world.restores, reader.error, reader.rows()
    waited_for = isinstance(reader, StreamQuery) and not removed.by_hand
    if told and not restores and (waited_for or not any(removed.events.values())):
        raise AnomalyError(f"{reader.name}: {told}")
    for partition, events in every.items():
        got = rows.get(partition, [])
        if told and restores and len({*got}) == len(got):
            continue  # it has what a restore undid, and was told
        # One that began late begins with the oldest events that were left then.
        begun = events.index(got[0]) if got and got[0] in events else 0
        wanted = events[begun:] if got else there[partition]
        is_late = begun > len(removed.events.get(partition, []))
        if is_late or got != (wanted[: len(got)] if told else wanted):
            raise AnomalyError(f"{reader.name}, partition {partition}: {got}, not {events}")
