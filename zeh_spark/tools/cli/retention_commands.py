"""The commands about what a store keeps: `retention`, `prune` and `cursor-sets`.

They work on the store itself, also while it is served. The rules are in `retention.rules`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from zeh_spark.errors import StoreError
from zeh_spark.tools.cli.output import (
    moment,
    print_answer,
    print_result,
    print_table,
    progress,
)
from zeh_spark.tools.cli.parameters import AGE, SIZE, STORE, Parsed, opened, operator
from zeh_spark.wire.option_values import parse_age_ms
from zeh_spark.wire.phrases import counted, size_of

if TYPE_CHECKING:
    from zeh_spark.service.store.cursor_sets import CursorSet
    from zeh_spark.service.store.interface import Retention


def _cursor_sets(_ctx: object, _param: object, names: tuple[str, ...]) -> tuple[str, ...]:
    from zeh_spark.service.store.cursor_sets import NAME

    for name in names:
        if not NAME.fullmatch(name):
            raise click.BadParameter(
                f"{name!r} is no name of a cursor set. It has 1 to 50 printable ASCII characters."
            )
    return names


_AGE = click.option(
    "--age", type=AGE, metavar="DURATION",
    help="Keep events that are younger than this: a number with d, h, m or s, like 30d.",
)  # fmt: skip
_SIZE = click.option(
    "--size", type=SIZE, metavar="SIZE",
    help="Keep the newest events up to this size in bytes, like 500m or 100g.",
)  # fmt: skip
_KEEP_FOR = click.option(
    "--keep-for", "readers", multiple=True, metavar="NAME", callback=_cursor_sets,
    help="Keep events that this reader has not read yet: the name of its cursor set "
    "(option cursorSet). Can be repeated.",
)  # fmt: skip


_FOREVER = -1

_NAMES = Parsed("age", lambda text: _FOREVER if text == "forever" else parse_age_ms(text))


@click.command()
@click.argument("feed")
@STORE
@_AGE
@_SIZE
@_KEEP_FOR
@click.option(
    "--names", type=_NAMES, metavar="DURATION",
    help="For how long to compare named batches that are published again, like 90d, the default; or"
    " forever. After that, they are refused.",
)  # fmt: skip
@click.option(
    "--producers", type=_NAMES, metavar="DURATION",
    help="Delete producers that have published nothing for this long, like 180d; or forever, the "
    "default: keep them. A deleted one is refused if it comes again.",
)  # fmt: skip
@click.option("--off", is_flag=True, help="Keep all events again.")
def retention(
    feed: str,
    url: str,
    age: int | None,
    size: int | None,
    readers: tuple[str, ...],
    names: int | None,
    producers: int | None,
    off: bool,
) -> None:
    """Show or set how long a feed keeps its events.

    `serve` removes the other events once a minute, chunk by chunk, the oldest first. An event is
    removed when it is older than --age, or when the newer events have --size. A reader that has
    not read the removed events gets an error.

    A limit that is not given stays as it is. --keep-for replaces all readers. --off removes all
    limits and readers. Without options the command shows the limits and changes nothing.

    \b
    Examples:
      zeh-spark retention orders --age 30d --keep-for warehouse
      zeh-spark retention orders --size 100g
      zeh-spark retention orders
    """
    from zeh_spark.service.retention import rules as retaining

    if off and (age or size or readers):
        raise click.UsageError(
            "--off excludes --age, --size and --keep-for. Give --off alone, or leave it out."
        )
    with opened(url) as store:
        store.feed(feed)
        rule = before = store.retention(feed)
        if off:
            rule = replace(rule, age_ms=None, bytes=None, readers=())
        rule = replace(
            rule, age_ms=age or rule.age_ms, bytes=size or rule.bytes,
            readers=readers or rule.readers,
        )  # fmt: skip
        if names is not None:
            rule = replace(rule, names_ms=None if names == _FOREVER else names)
        if producers is not None:
            rule = replace(rule, producers_ms=None if producers == _FOREVER else producers)
        if rule != before:
            store.set_retention(feed, rule, before=before, by=operator())
        print_answer(
            f"Feed {feed!r} keeps {retaining.words(rule)}.",
            feed=feed,
            **_rule(rule),
            changed=rule != before,
        )


@click.command()
@click.argument("feed")
@STORE
@_AGE
@_SIZE
@_KEEP_FOR
@click.option("--now", is_flag=True, help="Remove the events, instead of only showing them.")
@click.option(
    "--yes", is_flag=True,
    help="Remove them also if the clock is far ahead of the last time that the store knows. "
    "(zeh-spark clock --accept is for all feeds.)",
)  # fmt: skip
def prune(
    feed: str,
    url: str,
    age: int | None,
    size: int | None,
    readers: tuple[str, ...],
    now: bool,
    yes: bool,
) -> None:
    """Show which events of a feed would be removed now; with --now, remove them.

    The limits are those of the feed's retention, or --age and --size if one of them is given.
    The readers that the feed keeps events for stay the same, unless --keep-for names others.

    Nothing is removed by age while the clock is more than a day ahead of the last time that the
    store knows (zeh-spark clock), unless --yes says that it is right, for this command alone.

    \b
    Examples:
      zeh-spark prune orders
      zeh-spark prune orders --age 7d --keep-for warehouse --now
    """
    from zeh_spark.service.retention import rules as retaining
    from zeh_spark.service.store import clock
    from zeh_spark.service.store.interface import Retention

    def narrowed(kept: Retention) -> Retention:
        if age is not None or size is not None:
            kept = Retention(age, size, kept.readers)  # the feed's readers are waited for here, too
        if now and kept.age_ms is not None and not yes:
            clock.check_removal(store)
        return replace(kept, readers=readers) if readers else kept

    with opened(url) as store:
        store.feed(feed)
        rule = narrowed(store.retention(feed))
        if now:
            with progress("Removing", lambda: retaining.plan(store, feed, rule).events) as bar:
                removal = retaining.prune(
                    store, feed, narrowed=narrowed, by=operator(), progress=bar
                )
        else:
            removal = retaining.plan(store, feed, rule)
        kept = removal.held_by and store.saved_cursors(feed, removal.held_by)
    said = [f"Feed {feed!r} is to keep {retaining.words(rule)}."]
    if removal.chunks:
        said.append(
            f"{'Removed' if now else 'Would be removed'}: {counted(removal.events, 'event')}, "
            f"{size_of(removal.bytes)}, up to position {removal.upto}, of {moment(removal.newest)}."
        )
    else:
        said.append("Nothing was removed." if now else "Nothing would be removed.")
    if removal.held_by:
        unknown = "" if kept else ", which has stored no position here yet"
        said.append(f"The rest waits for reader {removal.held_by!r}{unknown}.")
    print_answer(
        "\n".join(said),
        feed=feed,
        **_rule(rule),
        removed=now,
        events=removal.events,
        bytes=removal.bytes,
        upTo=removal.upto,
        newest=removal.newest or None,
        heldBy=removal.held_by,
    )


def _rule(rule: Retention) -> dict[str, Any]:
    return {
        "ageMs": rule.age_ms, "sizeBytes": rule.bytes, "keepFor": list(rule.readers),
        "namesMs": rule.names_ms, "producersMs": rule.producers_ms,
    }  # fmt: skip


@click.command("cursor-sets")
@click.argument("feed")
@STORE
@click.option(
    "--delete", "name", metavar="NAME",
    help="Forget the positions under this name, and to which consumer it is bound.",
)  # fmt: skip
def list_cursor_sets(feed: str, url: str, name: str | None) -> None:
    """Show the positions that a feed keeps for its readers; with --delete, forget one name.

    A name is bound to the first consumer that identifies itself. Other consumers are refused
    under it (cursorset-taken) until the name is deleted. Retention that waits for a deleted name
    keeps events until a reader stores a position under it again.

    \b
    Examples:
      zeh-spark cursor-sets orders
      zeh-spark cursor-sets orders --delete warehouse
    """
    with opened(url) as store:
        store.feed(feed)
        if name is None:
            _show(feed, store.cursor_sets(feed))
        elif not store.delete_cursor_set(feed, name, by=operator()):
            raise StoreError(
                f"feed {feed!r} keeps nothing under the cursor set {name!r}. Look at its cursor "
                f"sets with zeh-spark cursor-sets {feed}"
            )
        else:
            print_result(
                f"Cursor set {name!r} of feed {feed!r} is deleted.", feed=feed, deleted=name
            )


def _show(feed: str, sets: list[CursorSet]) -> None:
    rows = [
        (each.name, each.consumer or "-", str(n), f"{len(cursors)} of {n}")
        for each in sets
        for n, cursors in sorted(each.cursors.items())
    ]
    items = [
        {"name": each.name, "consumer": each.consumer, "n": n, "cursors": cursors}
        for each in sets
        for n, cursors in sorted(each.cursors.items())
    ]
    heads = ("NAME", "CONSUMER", "N", "PARTITIONS KEPT")
    print_table("cursorSets", heads, rows, items, f"Feed {feed!r} keeps no positions of readers.")
