"""The commands for a whole store: `migrate`, `clock`, `backup`, `restore`.

They run on the publisher's machine, or where its database is reached.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import click

from zeh_spark.cli.parameters import STORE, moment, opened, size_of
from zeh_spark.errors import StoreError
from zeh_spark.protocol.feed_identity import FeedIdentity
from zeh_spark.publisher import Store, migrate_store, shown_url
from zeh_spark.publisher.server import only_publisher
from zeh_spark.store import clock as clocks
from zeh_spark.store.access import Token
from zeh_spark.store.epochs import over_at


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
    done = migrate_store(url, dry_run=True)
    if not dry_run and done.before != done.after:
        with only_publisher(url):
            done = migrate_store(url)
    if done.before == done.after:
        click.echo(f"{shown_url(url)} is of version {done.after} already: nothing to do.")
        return
    says = "would be upgraded" if dry_run else "was upgraded"
    click.echo(f"{shown_url(url)} {says} from version {done.before} to {done.after}.")
    if dry_run:
        click.echo("Missing tables would be made. The other statements:")
        for statement in done.statements:
            click.echo(f"  {statement};")


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
    with opened(url) as store:
        now, sign, skew = store.now(), clocks.sign(store), store.skew()
        if accept:
            store.see_clock(now)
    click.echo(f"The clock of {shown_url(url)} says {moment(now)}.")
    if skew:
        click.echo(f"This machine's clock is {abs(skew) / 1000:.1f} s {_direction(skew)} it.")
    click.echo(f"The last time that the store knows is {moment(sign)}.")
    if accept:
        click.echo("The clock is accepted.")
    elif not clocks.is_believed(now, sign):
        click.echo(
            "The clock is not trusted, so nothing is removed by age. Set it right; or, if it is "
            "right, run zeh-spark clock --accept."
        )


def _direction(ms: int) -> str:
    return "ahead of" if ms > 0 else "behind"


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
    from zeh_spark.sql_store import sqlite_copies

    sqlite_copies.backup(url.removeprefix("sqlite:///"), file)
    click.echo(f"{file} is a copy of {url}, {size_of(file.stat().st_size)}.")


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@STORE
@click.confirmation_option(
    "--yes", prompt="What was committed since the copy is undone. Continue?",
    help="Do it without asking for confirmation.",
)  # fmt: skip
def restore(file: Path, url: str) -> None:
    """Put the copy FILE in the place of a SQLite store, and tell readers.

    Stop the publisher first. The old store stays beside the new one, under its name with .before-
    and the time. The tokens are those of the old store, if it can be read.
    Each feed begins a new epoch, as with new-history, so that no reader takes events that are
    published from now on for those that were undone. FILE stays as it is.

    \b
    Example:
      zeh-spark restore feeds-2026-11-21.db --store sqlite:///feeds.db
    """
    if not url.startswith("sqlite:"):
        raise click.UsageError(
            "restore is for SQLite stores only. Restore a store in PostgreSQL with pg_restore, and "
            "run zeh-spark new-history for each feed."
        )
    from zeh_spark.sql_store import sqlite_copies

    with only_publisher(url):
        old, (begun, kept) = sqlite_copies.restore(url.removeprefix("sqlite:///"), file, _renew)
    click.echo(f"{url} is as {file} was.{f' The old store is {old}.' if old else ''}")
    for name, identity in begun:
        click.echo(f"Feed {name!r}: what is published from now on has {identity.epochs[-1].id}.")
    if not kept:
        click.echo(
            "The tokens of the old store could not be read. Tokens that were revoked since the "
            "copy was made are valid again: look at zeh-spark token list.",
            err=True,
        )


def _renew(
    store: Store, tokens: Sequence[Token] | None
) -> tuple[list[tuple[str, FeedIdentity]], bool]:
    """Begin epochs, and keep what was done with tokens. Return the epochs, and whether it was."""
    begun = [(each.name, store.begin_epoch(each.name)) for each in store.feeds()]
    there = {each.id: each for each in store.tokens()}
    for token in tokens or ():
        if token.id not in there:
            store.add_token(token)
        elif token.revoked is not None and there[token.id].revoked is None:
            store.revoke_token(token.id)
    until = max((over_at(each.epochs[-1]) for _, each in begun), default=0)
    if 0 < (left := until - store.now()) <= 1000:
        time.sleep(left / 1000)  # so that the next epoch begins later, as in `new-history`
    return begun, tokens is not None


COMMANDS = (migrate, clock, backup, restore)
