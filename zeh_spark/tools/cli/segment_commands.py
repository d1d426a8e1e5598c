"""The commands that pack old events, and move them: `seal`, `offload` and `segments`.

They work on the store itself, also while it is served. What they do is in `retention.segments`.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, cast

import click

from zeh_spark.errors import StoreError
from zeh_spark.tools.cli.output import print_answer, print_findings, print_result
from zeh_spark.tools.cli.parameters import AGE, STORE, opened, operator
from zeh_spark.wire.phrases import counted, size_of

if TYPE_CHECKING:
    from zeh_spark.service.retention.segments import Inventory
    from zeh_spark.service.sql.store import SqlStore


@click.command()
@click.argument("feed")
@STORE
def seal(feed: str, url: str) -> None:
    """Pack the chunks of a feed that are older than ten minutes. Publishers do it each minute.

    A pack has up to 1,024 chunks in one row, and their events in few frames. So small batches take
    less room, and are read faster. Readers and producers notice nothing. What does not fill a pack
    is packed later.

    \b
    Example:
      zeh-spark seal orders
    """
    from zeh_spark.service.retention import rules as retaining

    with opened(url) as store:
        packs, chunks = retaining.seal(store, feed)
    said = f"Feed {feed!r}: packed {counted(chunks, 'chunk')} into {counted(packs, 'pack')}."
    if not packs:
        said = (
            f"Feed {feed!r}: nothing to pack. A pack needs 1,024 chunks or 4 MiB of events, all of "
            f"them older than ten minutes. While SQLite's write-ahead log is longer than 64 MiB, "
            f"nothing is packed."
        )
    print_answer(said, feed=feed, packs=packs, chunks=chunks)


_SEGMENTS = click.option(
    "--segments", "location", envvar="ZEH_SEGMENTS", show_envvar=True, metavar="URL",
    help="Where the objects go: an absolute path of a folder, or a URI with s3, gs or abfss. It "
    "holds no credentials.",
)  # fmt: skip


@click.command()
@click.argument("feed")
@click.option(
    "--older-than", "age", type=AGE, default="7d", show_default=True, metavar="DURATION",
    help="Move what is older than this: a number with d, h, m or s.",
)  # fmt: skip
@_SEGMENTS
@STORE
def offload(feed: str, age: int, location: str | None, url: str) -> None:
    """Move packed events of a feed to a folder or an object store.

    Readers and producers notice nothing. What is in no pack yet stays (zeh-spark seal). A publisher
    with --segments does the same from time to time, and also deletes objects that nobody needs.

    \b
    Example:
      zeh-spark offload orders --older-than 7d --segments s3://bucket/orders?region=eu-north-1
    """
    if location is None:
        raise click.UsageError("offload needs --segments, or the variable ZEH_SEGMENTS.")
    from zeh_spark.service.retention import segments as moving
    from zeh_spark.service.segments.objects import Objects

    with _opened(url) as store:
        segments, size = moving.offload(store, feed, Objects(location), store.now() - age)
    said = f"Feed {feed!r}: {size_of(size)} moved, in {counted(segments, 'segment')}."
    if not segments:
        said = (
            f"Feed {feed!r}: nothing to move. No pack that is in the database is as old in all its "
            f"events. What is in no pack, zeh-spark seal packs."
        )
    print_answer(said, feed=feed, segments=segments, bytes=size)


@click.group("segments")
def segments_group() -> None:
    """Check the objects that have old events, or take over their location."""


@segments_group.command()
@click.option("--read", is_flag=True, help="Read and verify every block, which takes long.")
@click.option(
    "--trim", is_flag=True,
    help="Remove the events up to the last object that is lost, for ever. Readers that have not "
    "read them get an error (410).",
)  # fmt: skip
@_SEGMENTS
@STORE
def check(read: bool, trim: bool, location: str | None, url: str) -> None:
    """Compare the objects that the store names with those that are there.

    It names objects that are missing or changed, and objects that the store does not know, which
    may be another store's. It deletes nothing in the storage. The exit code is 3 if some are lost.

    \b
    Example:
      zeh-spark segments check --read
    """
    from zeh_spark.service.retention.segments import take_inventory
    from zeh_spark.service.retention.segments import trim as trim_events

    with _opened(url) as store:
        found = take_inventory(store, location, read=read)
        last = {feed: g for feed, g in sorted(found.lost)}
        if trim and last:
            _refuse_others(found)
            click.confirm(f"Remove all events of {_places(last)}?", abort=True)
            again = take_inventory(store, read=read, only=found.lost.keys())
            _refuse_others(again)
            found.lost = again.lost
            last = {feed: g for feed, g in sorted(found.lost)}  # they may be back, or elsewhere
            for feed, g in last.items():
                trim_events(store, feed, g, operator())
    said = [f"{counted(found.segments, 'segment')}, {size_of(found.size)}."]
    said += [
        f"{location} belongs to another store ({owner}): this one moves and deletes nothing there."
        for location, owner in found.foreign.items()
    ]
    said += [f"Lost: {each}." for each in found.lost.values()]
    said += [f"Not known: {name}, {size_of(size)}." for name, size in found.unknown.items()]
    if trim and not last:
        said.append("Nothing was removed.")
    elif trim:
        said.append(f"Removed: all events of {_places(last)}.")
    elif last:
        said.append(
            "Put the lost objects back. If there is no copy of them, --trim removes the events of "
            f"{_places(last)}."
        )
    print_findings(
        "\n".join(said), failed=bool(last) and not trim, segments=found.segments, bytes=found.size,
        lost=[*found.lost.values()], unknown=sorted(found.unknown), trimmed=last if trim else {},
    )  # fmt: skip


def _refuse_others(found: Inventory) -> None:
    if found.foreign:
        raise StoreError(
            f"{', '.join(found.foreign)} belongs to another store: the folder that has the objects "
            f"may not be mounted. If this store is restored, run zeh-spark segments adopt first. "
            f"Nothing was removed"
        )


@segments_group.command()
@_SEGMENTS
@STORE
@click.option("--empty", is_flag=True, help="Also if none of the store's objects is there.")
@click.confirmation_option(
    prompt="The store that had the location moves and deletes nothing there any more. Continue?",
    help="Do it without asking for confirmation.",
)
def adopt(location: str | None, empty: bool, url: str) -> None:
    """Make the location of segments this store's own, as after a restore or a failover.

    Do it only if the store that had it is gone for ever. Two stores that both delete would delete
    what the other one needs. Without --segments, it takes over every location that it has objects
    in.
    """
    from zeh_spark.service.segments import ownership
    from zeh_spark.service.segments.objects import Objects
    from zeh_spark.service.store.acts import Action, new_act

    with _opened(url) as store:
        mine = [each for feed in store.feeds() for each in store.segments(feed.name)]
        places = [Objects(each) for each in ([location] if location else store.locations())]
        for each in places:
            names = {segment.name for segment in mine if segment.location == each.location}
            if names and not empty and names.isdisjoint(each.names()):
                raise StoreError(
                    f"none of this store's {counted(len(names), 'object')} is in {each.location}: "
                    f"a folder may not be mounted. If they are lost for ever, give --empty"
                )
        for each in places:
            ownership.adopt(each, store)
            act = new_act(operator(), Action.ADOPT_SEGMENTS, store.now(), location=each.location)
            store.record([act])
        owner = store.owner()
    belong = [each.location for each in places]
    said = "\n".join(f"{each} belongs to {owner} now." for each in belong)
    print_result(said or "There are no segments yet: give --segments.", locations=belong)


def _places(last: dict[str, int]) -> str:
    return ", ".join(f"feed {feed!r} up to position {g}" for feed, g in last.items())


def _opened(url: str) -> closing[SqlStore]:
    return cast("closing[SqlStore]", opened(url))
