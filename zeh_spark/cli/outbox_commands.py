"""The commands that prepare and mend what is served: `ddl`, for a service's own tables, and
`new-history`, for tables and feeds of a store.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import click
import msgspec
from click.core import ParameterSource

from zeh_spark.cli.parameters import STORE, moment, opened
from zeh_spark.errors import StoreError
from zeh_spark.outbox.feed import SqlTableFeed
from zeh_spark.publisher import shown_url
from zeh_spark.publisher.config import Config, FeedConfig, engine_of, load_config, table_feed
from zeh_spark.store.epochs import over_at
from zeh_spark.store.interface import UnknownFeedError, now_ms

CONFIG = click.option(
    "--config",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The publisher's settings, like conf/publisher.toml.",
)


@click.command()
@click.argument("table")
@CONFIG
@click.option(
    "--url", metavar="URL", help="The database, if not that of --config; the owner's, say."
)
@click.option("--data", default="data", show_default=True, metavar="COLUMN", help="The data.")
@click.option("--partition-by", metavar="COLUMN", help="Its value chooses the partition.")
@click.option("--partitions", default=1, show_default=True, type=int)
@click.option("--id", "key", default="id", show_default=True, metavar="COLUMN")
@click.option(
    "--notify", is_flag=True,
    help="Wake readers at once, not within 0.1 s; commits then wait for each other.",
)  # fmt: skip
@click.option("--updates", is_flag=True, help="Rows are updated, which makes them new events.")
@click.option("--retention", is_flag=True, help="Note what is deleted, to tell late readers.")
@click.option("--grant-to", metavar="ROLE", help="Who serves the table: what it has to read.")
def ddl(
    table: str,
    file: Path | None,
    url: str | None,
    data: str,
    partition_by: str | None,
    partitions: int,
    key: str,
    notify: bool,
    updates: bool,
    retention: bool,
    grant_to: str | None,
) -> None:
    """Print what TABLE needs to be a feed, as SQL; nothing is changed.

    It looks at the table as it is, prints what is missing, and can be repeated. Rows that are there
    come before all others. With --config, TABLE may be the feed's name.

    \b
    Examples:
      zeh-spark ddl orders --config conf/publisher.toml --grant-to feeds | psql shop
      zeh-spark ddl outbox --url sqlite:///shop.db --data body --retention
    """
    if file:
        if partitions != 1 or partition_by:
            raise click.UsageError("--config has the feed's partitions; change them there.")
        config, name = _configured(load_config(file), table, url)
    elif url:
        name = table
        config = FeedConfig(
            url, table, data, partition_by=partition_by, partitions=partitions, id=key
        )
    else:
        raise click.UsageError("Give --config FILE, or --url URL.")
    with _feed(config, name) as feed:
        statements = feed.ddl(
            notify=notify, updates=updates, retention=retention, grant_to=grant_to
        )
    click.echo("\n".join(statements) or f"-- {config.table} has all that it needs")


@click.command()
@click.argument("feed")
@STORE
@CONFIG
@click.option(
    "--url", "owner", metavar="URL",
    help="A table's database as its owner, if not that of --config.",
)  # fmt: skip
@click.option(
    "--since", type=click.IntRange(1), metavar="MS",
    help="For a feed of a store: begin at this zeh-time (ms since 1970), which a reader's error has"
    " named, not now.",
)  # fmt: skip
@click.option("--copy", is_flag=True, help="This is a copy, which goes on beside the original.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_context
def new_history(
    ctx: click.Context,
    feed: str,
    url: str,
    file: Path | None,
    owner: str | None,
    since: int | None,
    copy: bool,
    yes: bool,
) -> None:
    """Tell readers that a feed was restored from a backup, or copied.

    Run it right after each restore of a store or a table to an earlier state, for each feed, before
    the publisher is started again and before anything is published.

    A feed of a store: a restore lets producers use sequence numbers again for other events. Events
    that are published from now on get another id in the header zeh-feed, so that no reader takes
    them for those that it had before the restore. No reader begins anew because of this. It works
    while `serve` runs, too. If something was published between the restore and this command, give
    --since with the time that readers name when they refuse it: a time after the last event that
    the backup had, and not after the first event that was published since the restore.

    A feed that is a table, by --config: rows that are there come before all that will be written,
    in order of their ids, and cursors that were given until now are refused (409): readers begin
    anew. The role has to own the table.

    --copy: a copy is another feed, and gets an id of its own. Run it on the copy, not on the
    original.

    \b
    Examples:
      zeh-spark new-history orders --store sqlite:///feeds.db
      zeh-spark new-history orders --store sqlite:///copy.db --copy
      zeh-spark new-history orders --config conf/publisher.toml
    """
    config = settings_of(ctx, file, url)
    if config.store and feed not in config.feeds:
        if owner:
            raise click.UsageError(f"--url is for tables; feed {feed!r} is in a store.")
        _new_epoch(config.store, feed, copy=copy, since=since, yes=yes)
    else:
        if since is not None:
            raise click.UsageError(f"--since is for feeds of a store; feed {feed!r} is a table.")
        _new_history(*_configured(config, feed, owner), copy=copy, yes=yes)


def settings_of(ctx: click.Context, file: Path | None, url: str) -> Config:
    """The settings of --config; --store, if it is given, or if there is no file, names the store.
    Raises StoreError.
    """
    config = load_config(file) if file else Config(store=url)
    if file and ctx.get_parameter_source("url") is not ParameterSource.DEFAULT:
        config = msgspec.structs.replace(config, store=url)
    return config


def _new_epoch(url: str, feed: str, *, copy: bool, since: int | None, yes: bool) -> None:
    """A feed of a store."""
    with opened(url) as store:
        try:
            before = store.identity(feed)
        except UnknownFeedError as exc:
            raise StoreError(f"{exc}; for a table, give its feed's name and --config FILE") from exc
        begin = "now" if since is None else f"{since} ms since 1970 ({moment(since)})"
        _confirm(
            f"Feed {feed!r} in {shown_url(url)} becomes another feed than {before.id}, for events "
            f"that are published from {begin} on."
            if copy
            else f"Readers take what is published to feed {feed!r} in {shown_url(url)} from {begin}"
            f" on for new events, never for those before.",
            yes=yes,
        )
        begun = store.begin_epoch(feed, copy=copy, since=since)
    epoch = begun.epochs[-1]
    if 0 < (left := over_at(epoch) - now_ms()) <= 1000:
        time.sleep(left / 1000)  # even in a loop of restores, the next one gets a higher number
    click.echo(
        f"Feed {feed!r} in {shown_url(url)} has the id {begun.id}. Events that are published from "
        f"{begin} on have zeh-feed {epoch.id} (zeh-time from {epoch.time}, {moment(epoch.time)})."
    )


def _new_history(config: FeedConfig, name: str, *, copy: bool, yes: bool) -> None:
    """A feed that is a table."""
    _confirm("Its readers will have to begin anew.", yes=yes)
    with _feed(config, name, writes=True) as opened:
        history = opened.new_history(copy=copy)
        told = opened.identity()
    which = f" and the id {told.id}" if told else ", and no id yet: see zeh-spark ddl"
    where = f"Table {config.table!r} in {shown_url(config.url)}"
    click.echo(f"{where} has the new history {history}{which}.")


def _confirm(what: str, *, yes: bool) -> None:
    if not yes:
        click.confirm(f"{what} Go on?", abort=True)


def _configured(config: Config, name: str, url: str | None) -> tuple[FeedConfig, str]:
    """By the feed's name, or the table's."""
    by_table = (feed for feed, each in config.feeds.items() if each.table == name)
    feed = name if name in config.feeds else next(by_table, name)
    found = config.feed(feed)
    return (msgspec.structs.replace(found, url=url) if url else found), feed


@contextmanager
def _feed(config: FeedConfig, name: str, *, writes: bool = False) -> Iterator[SqlTableFeed]:
    engine = engine_of(config, writes=writes)
    try:
        with closing(table_feed(config, engine, name)) as feed:
            yield feed
    finally:
        engine.dispose()


COMMANDS: tuple[Any, ...] = (ddl, new_history)
