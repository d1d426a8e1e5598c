"""The commands that change a store or copy it, from `create` to `restore`.

They work on the store itself, on the publisher's machine or where its database is reached.
"""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from zeh_spark.errors import StoreError
from zeh_spark.tools.cli.output import (
    DIFFERENT,
    moment,
    print_answer,
    print_remark,
    print_result,
    progress,
)
from zeh_spark.tools.cli.parameters import STORE, opened, operator
from zeh_spark.wire.phrases import counted, no_power_of_two, size_of

if TYPE_CHECKING:
    from zeh_spark.service.sql.store import SqlStore
    from zeh_spark.service.sqlite.copies import Replaced
    from zeh_spark.service.store.acts import Actor
    from zeh_spark.service.store.interface import Store
    from zeh_spark.wire.feed_identity import FeedIdentity


@click.command()
@click.argument("feed")
@click.option(
    "--partitions", default=4, show_default=True, type=int,
    help="Number of partitions, 1 to 1024. It cannot be changed later.",
)  # fmt: skip
@click.option(
    "--if-not-exists", is_flag=True,
    help="Do nothing if the feed exists with this number of partitions; another number is an "
    "error.",
)  # fmt: skip
@click.option(
    "--schema", "file", type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with the JSON Schema that the data of each event has to keep. If the feed exists, "
    "as zeh-spark schema.",
)  # fmt: skip
@STORE
def create(feed: str, partitions: int, if_not_exists: bool, file: Path | None, url: str) -> None:
    """Create an empty feed, and the store if it does not exist.

    \b
    Examples:
      zeh-spark create flights --partitions 4 --store sqlite:///feeds.db
      zeh-spark create orders --schema order.schema.json
    """
    from zeh_spark.service.databases import shown_url
    from zeh_spark.service.store.contracts import validator

    created, where, document = True, shown_url(url), file.read_bytes() if file else None
    with opened(url, must_exist=False) as store:
        try:
            if document is not None:
                validator(document)  # before there is a feed
            store.create(feed, partitions, by=operator())
        except StoreError:
            found = next((each.partitions for each in store.feeds() if each.name == feed), None)
            if not if_not_exists or found is None:
                raise
            if found != partitions:
                raise StoreError(
                    f"feed {feed!r} exists with {counted(found, 'partition')}, not {partitions}. "
                    f"Give --partitions {found}, or choose another name"
                ) from None
            created = False
        said = f"Feed {feed!r} with {counted(partitions, 'partition')} is in {where}."
        if document is not None:
            version = store.set_schema(feed, document, by=operator()).version
            said += f" It takes events that keep version {version} of its schema."
    print_result(said, feed=feed, partitions=partitions, store=where, created=created)
    if created and (advice := no_power_of_two(partitions)):
        print_remark(f"{advice}. This number cannot be changed later.")


@click.command()
@click.argument("feed")
@click.argument(
    "file", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option(
    "--compatibility", type=click.Choice(["backward", "none"]), default="backward",
    show_default=True, help="backward: the new version has to take each event that the one before "
    "takes. none: it need not.",
)  # fmt: skip
@STORE
def schema(feed: str, file: Path | None, compatibility: str, url: str) -> None:
    """Print the schema of a feed's events; with FILE, change it.

    FILE is a document of JSON Schema 2020-12. Events that are published from then on are checked
    against it, those that are on the feed stay as they are. Programs that publish need no restart.

    \b
    Examples:
      zeh-spark schema orders
      zeh-spark schema orders order.schema.json
      zeh-spark schema orders order.schema.json --compatibility none
    """
    with opened(url) as store:
        found = store.schema(feed)
        if file:
            compatible = compatibility == "backward"
            found = store.set_schema(feed, file.read_bytes(), compatible=compatible, by=operator())
    if not found:
        raise StoreError(f"feed {feed!r} has no schema. Set one with zeh-spark schema {feed} FILE")
    said = found.document.decode().rstrip()
    if file:
        said = f"Feed {feed!r} has version {found.version} of its schema."
    print_answer(
        said, feed=feed, version=found.version, since=found.since, time=found.time,
        schema=json.loads(found.document),
    )  # fmt: skip


@click.command("delete-producer")
@click.argument("feed")
@click.argument("producer")
@STORE
@click.confirmation_option(
    prompt="It will never publish again under this name. Continue?",
    help="Delete without asking for confirmation.",
)
def delete_producer(feed: str, producer: str, url: str) -> None:
    """Permanently delete a producer: it can never publish to the feed again.

    That holds for its named batches, PRODUCER#NAME, too. The events that it has published stay.

    \b
    Example:
      zeh-spark delete-producer orders till-7 --store sqlite:///feeds.db
    """
    from zeh_spark.service.store.batches import base

    if "#" in producer:
        raise click.UsageError(
            f"{producer} is a named batch, which is deleted with its producer. Give the producer: "
            f"{base(producer)}."
        )
    with opened(url) as store:
        if not any(base(each.name) == producer for each in store.producers(feed)):
            raise StoreError(
                f"producer {producer!r} has never published to feed {feed!r}. Look at the feed's "
                f"producers with zeh-spark producers."
            )
        store.delete_producer(feed, producer, by=operator())
    print_result(
        f"Producer {producer!r} of feed {feed!r} is deleted.", feed=feed, producer=producer
    )


@click.command()
@STORE
@click.option("--dry-run", is_flag=True, help="Show what would be done, and change nothing.")
def migrate(url: str, dry_run: bool) -> None:
    """Upgrade a store that an older zeh-spark has made, in one transaction.

    Back the store up first: only a restore undoes an upgrade. Stop the publisher of a SQLite store.
    Publishers of a PostgreSQL store may run: those of the older version continue to serve readers,
    and refuse writers until you replace them.

    \b
    Examples:
      zeh-spark migrate --dry-run
      zeh-spark migrate --store postgresql+psycopg://owner@db.example/feeds
    """
    from zeh_spark.service.app.server import only_publisher
    from zeh_spark.service.databases import migrate_store, shown_url

    done = migrate_store(url, dry_run=True)
    if not dry_run and done.before != done.after:
        with only_publisher(url):
            print_remark(f"Upgrading from version {done.before} to {done.after}: all or nothing.")
            done = migrate_store(url, by=operator())
    facts: dict[str, Any] = {"store": shown_url(url), "before": done.before, "after": done.after}
    if done.before == done.after:
        said = f"{shown_url(url)} is of version {done.after} already: nothing to do."
        print_answer(said, **facts, statements=[], changed=False)
        return
    says = "would be upgraded" if dry_run else "was upgraded"
    lines = [f"{shown_url(url)} {says} from version {done.before} to {done.after}."]
    if dry_run:
        lines.append("Missing tables would be made. The other statements:")
        lines += [f"  {statement};" for statement in done.statements]
    statements = [str(each) for each in done.statements]
    print_answer("\n".join(lines), **facts, statements=statements, changed=not dry_run)


@click.command()
@STORE
@click.option("--accept", is_flag=True, help="Confirm that the clock is right.")
def clock(url: str, accept: bool) -> None:
    """Compare the clock with the last time that the store knows.

    A store in PostgreSQL uses the database's clock, any other store the clock of this machine. If
    the clock is more than a day ahead of the last time, the publisher removes nothing by age for a
    day; if it is more than a year ahead, it commits nothing. --accept ends both. Use it if the
    clock is right, because no publisher ran for that long.

    \b
    Examples:
      zeh-spark clock
      zeh-spark clock --accept --store sqlite:///feeds.db
    """
    from zeh_spark.service.databases import shown_url
    from zeh_spark.service.store import clock as clocks

    with opened(url) as store:
        now, sign, skew = store.now(), clocks.sign(store), store.skew()
        if accept:
            store.see_clock(now, by=operator())
    said = [f"The clock of {shown_url(url)} says {moment(now)}."]
    if skew:
        side = "ahead of" if skew > 0 else "behind"
        said.append(f"This machine's clock is {abs(skew) / 1000:.1f} s {side} it.")
    said.append(f"The last time that the store knows is {moment(sign)}.")
    trusted = accept or clocks.is_believed(now, sign)
    if accept:
        said.append("The clock is accepted.")
    elif not trusted:
        said.append(
            "The clock is not trusted, so nothing is removed by age. Set it right; or, if it is "
            "right, run zeh-spark clock --accept."
        )
    print_answer(
        "\n".join(said), store=shown_url(url), now=now, last=sign, skewMs=skew, trusted=trusted,
        accepted=accept,
    )  # fmt: skip


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@STORE
def backup(file: Path, url: str) -> None:
    """Back up a SQLite store to FILE: a complete, consistent copy.

    The store may be served at the same time. Do not copy the database file yourself: the newest
    commits may still be in the log file beside it. Back up a store in PostgreSQL with pg_dump or
    pg_basebackup.

    \b
    Example:
      zeh-spark backup feeds-2026-11-21.db --store sqlite:///feeds.db
    """
    if not url.startswith("sqlite:"):
        raise click.UsageError(
            "backup copies SQLite stores only. Back up a store in PostgreSQL with pg_dump or "
            "pg_basebackup."
        )
    if file.exists():
        raise StoreError(
            f"{file} exists already, and a backup overwrites nothing. Name a new file."
        )
    from zeh_spark.service.sqlite import copies as sqlite_copies

    path = Path(url.removeprefix("sqlite:///"))
    with progress("Copying", path.stat().st_size if path.exists() else None) as bar:
        sqlite_copies.backup(str(path), file, bar)
    size = file.stat().st_size
    print_result(
        f"{file} is a copy of {url}, {size_of(size)}.", file=str(file), store=url, bytes=size
    )


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@STORE
@click.confirmation_option(
    "--yes", prompt="What was committed since the copy is undone. Continue?",
    help="Do it without asking for confirmation.",
)  # fmt: skip
def restore(file: Path, url: str) -> None:
    """Replace a SQLite store with the copy FILE, and begin new epochs of its feeds.

    Stop the publisher first. The old store stays in the same folder, under its name with .before-
    and the time. The tokens are those of FILE and of the old store, if it can be read; what was
    revoked there stays so.
    Each feed begins a new epoch, as with new-history, so that readers do not confuse events that
    are published from now on with those that were undone. FILE is not changed.

    \b
    Example:
      zeh-spark restore feeds-2026-11-21.db --store sqlite:///feeds.db
    """
    from zeh_spark.service.app.server import only_publisher
    from zeh_spark.service.store.acts import lacking

    if not url.startswith("sqlite:"):
        raise click.UsageError(
            "restore is for SQLite stores only. Restore a store in PostgreSQL with pg_restore, and "
            "run zeh-spark new-history for each feed."
        )
    from zeh_spark.service.sqlite import copies as sqlite_copies

    with only_publisher(url):
        by, path = operator(), url.removeprefix("sqlite:///")
        renew = partial(_renew, copy=file, by=by)
        with progress("Copying", file.stat().st_size) as bar:
            old, (begun, kept) = sqlite_copies.restore(path, file, renew, by=by, progress=bar)
    said = [f"{url} is as {file} was.{f' The old store is {old}.' if old else ''}"]
    said += [
        f"Feed {name!r}: events that are published from now on have zeh-feed "
        f"{identity.epochs[-1].id}. Programs that compare zeh-feed tell them from events that "
        f"the restore undid."
        for name, identity in begun
    ]
    print_result(
        "\n".join(said),
        store=url,
        file=str(file),
        old=str(old) if old else None,
        feeds=[{"feed": name, "epoch": each.epochs[-1].id} for name, each in begun],
    )
    lost = _check_segments(url)
    if old and kept and (after := sqlite_copies.kept_of(old)):
        for each in lacking(after.acts, kept.acts):
            click.echo(
                f"While the copy took its place, {each.via}:{each.actor} did {each.action} "
                f"{each.feed} {each.subject} on the old store. The new one lacks it: do it again.",
                err=True,
            )
    if not kept:
        click.echo(
            "The tokens of the old store could not be read. Tokens that were revoked since the "
            "copy was made are valid again: look at zeh-spark token list.",
            err=True,
        )
    if lost:
        click.get_current_context().exit(DIFFERENT)


def _check_segments(url: str) -> bool:
    """Say which objects of a restored store are lost, and that it may not write where they are.

    Returns whether some are, or may be.
    """
    from zeh_spark.service.retention.segments import take_inventory

    with opened(url) as store:
        try:
            found = take_inventory(cast("SqlStore", store))
            lost = bool(found.lost)
            said = [f"Lost: {each}." for each in found.lost.values()]
            said = said or [f"{counted(found.segments, 'segment')}: all are there."]
        except StoreError as exc:
            lost, said = True, [f"The segments could not be checked: {exc.what}."]
        else:
            if not found.segments:
                return False
    said.append(
        "This store moves and deletes no segments until zeh-spark segments adopt. What is lost, "
        "zeh-spark segments check --trim takes out of the feed."
    )
    click.echo("\n".join(said), err=True)
    return lost


def _renew(
    store: Store, old: Replaced | None, *, copy: Path, by: Actor
) -> tuple[list[tuple[str, FeedIdentity]], Replaced | None]:
    """Begin epochs, and keep what was done with tokens, and all acts.

    The old store knows that the clock is right if the copy is too old for that. None stands for an
    old store that could not be read.
    """
    from zeh_spark.service.sql.feed_epochs import over_at
    from zeh_spark.service.store import clock as clocks
    from zeh_spark.service.store.acts import Action, lacking, new_act

    if old:
        store.record(lacking(old.acts, store.acts(limit=1 << 31)))
    store.record([new_act(by, Action.RESTORE, store.now(), copy=str(copy.resolve()))])
    cast("SqlStore", store).forget_nonces()
    if old and old.time and not clocks.may_commit(store.now(), clocks.sign(store)):
        store.see_clock(old.time)
    begun = [(each.name, store.begin_epoch(each.name, by=by)) for each in store.feeds()]
    there = {each.id: each for each in store.tokens()}
    for token in old.tokens if old else ():
        if token.id not in there:
            store.add_token(token, by=by)
        elif token.revoked is not None and there[token.id].revoked is None:
            store.revoke_token(token.id, by=by)
    until = max((over_at(each.epochs[-1]) for _, each in begun), default=0)
    if 0 < (left := until - store.now()) <= 1000:
        time.sleep(left / 1000)  # so that the next epoch begins later, as in `new-history`
    return begun, old
