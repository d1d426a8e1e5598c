"""One run: who takes part, and what has to be true in the end."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from unittest import mock

from tests.simulation.clients import PlainReader, ProducerWriter, Reader, SinkWriter, StreamQuery
from tests.simulation.publisher import FEED, Publisher, served
from tests.simulation.world import AnomalyError, World
from zeh_spark.service.store import packs

SMALL_PACKS = {"PACK_CHUNKS": 4, "BLOCK_BYTES": 120, "OWN_BYTES": 2000}


def run(world: World, folder: Path) -> None:
    """Run a world, whose store is in this folder. Raises AnomalyError if a promise was broken."""
    random = world.random
    with mock.patch.multiple(packs, **SMALL_PACKS), served(world, folder, 2) as publisher:
        sizes = [[random.randrange(6) for _ in range(random.randint(1, 20))] for _ in range(2)]
        writers = [
            ProducerWriter(world, "till", sizes[0]),
            SinkWriter(world, "query", sizes[1]),
        ]
        readers: list[Reader] = [
            PlainReader(world, "program", writers),
            StreamQuery(world, "stream", writers),
        ]
        removed: dict[int, list[object]] = {}
        for each in (*writers, *readers):
            world.begin(each.name, each.live)
        world.begin("operator", lambda: operate(world, publisher, writers[1], removed))
        world.run()
        check(publisher, writers, readers, removed)


def operate(world: World, publisher: Publisher, query: SinkWriter, removed: dict) -> None:
    """Do what operators do, in some runs: remove, restore, start a query twice."""
    random, backups = world.random, []
    acts = ["seal", "seal"]
    for some in (["remove"] * 3, ["copy", "copy", "restore"], ["twin"]):
        acts += some if random.randrange(3) == 0 else []
    while not world.calm:
        world.pause(random.random() * 2)
        if world.calm:
            return
        act = random.choice(acts)
        if act == "remove":
            upto = random.randint(0, publisher.store.feed(FEED).head)
            before = publisher.events()
            publisher.act(
                f"removes up to {upto}", lambda store, upto=upto: store.remove(FEED, upto)
            )
            note_removed(publisher, before, removed)
        elif act == "copy":
            backups.append((publisher.copy(), {each: [*removed[each]] for each in removed}))
        elif act == "restore" and backups:
            world.step("restores")
            backup, gone = random.choice(backups)
            publisher.restore(backup)
            removed.clear()
            removed.update({each: [*gone[each]] for each in gone})
        elif act == "twin" and not query.twin and not query.ended:
            query.twin = SinkWriter(world, query.name, query.sizes, query.committed, twin=query)
            world.begin("twin", query.twin.live)
        else:
            publisher.act("seals", lambda store: store.seal(FEED, before=1 << 62))
        publisher.act("tidies", lambda store: store.tidy())


def note_removed(publisher: Publisher, before: dict, removed: dict) -> None:
    after = publisher.events()
    for partition, events in before.items():
        left = {*after[partition]}
        gone = [each for each in events if each not in left]
        removed.setdefault(partition, []).extend(gone)


def check(publisher: Publisher, writers: list, readers: list[Reader], removed: dict) -> None:
    """Raise AnomalyError unless each event is on the feed once, and in each reader's sink once."""
    world = publisher.world
    there = publisher.events()
    every = {each: [*removed.get(each, []), *there[each]] for each in there}
    published = Counter(each for events in every.values() for each in events)
    wanted = Counter(
        event
        for each in writers
        for batch in range(len(each.sizes))
        for event in each.events(batch)
    )
    if published != wanted:
        raise AnomalyError(
            f"lost on the feed: {[*(wanted - published)]}, doubled: {[*(published - wanted)]}"
        )
    for writer in writers:
        for partition, events in every.items():
            batches = [int(each.split(".")[1]) for each in events if each.startswith(writer.name)]
            if batches != sorted(batches):
                raise AnomalyError(f"partition {partition}: batches of {writer.name}: {batches}")
    for reader in readers:
        rows, told = reader.rows(), reader.error
        if told and not world.restores and not any(removed.values()):
            raise AnomalyError(f"{reader.name}: {told}")
        for partition, events in every.items():
            got = rows.get(partition, [])
            if told and world.restores and len({*got}) == len(got):
                continue  # it has what a restore undid, and was told
            # One that began late begins with the oldest events that were left then.
            begun = events.index(got[0]) if got and got[0] in events else 0
            wanted = events[begun:] if got else there[partition]
            is_late = begun > len(removed.get(partition, []))
            if is_late or got != (wanted[: len(got)] if told else wanted):
                raise AnomalyError(f"{reader.name}, partition {partition}: {got}, not {events}")
