"""The commands that prepare and repair feeds: `ddl` and `new-history`.

`ddl` is for a service's own tables, `new-history` for tables and feeds of a store. They open the
database themselves, and may run while a publisher serves it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from zeh_spark.errors import StoreError
from zeh_spark.tools.cli.output import moment, print_result
from zeh_spark.tools.cli.parameters import CONFIG, STORE, opened, operator

if TYPE_CHECKING:
    from zeh_spark.service.app.config import Config, FeedConfig
    from zeh_spark.service.outbox.feed import SqlTableFeed

_COLUMNS = ("id", "data", "partition_by", "partitions", "time")
"""The options of `ddl` that are settings of a feed, by their names there."""


@click.command()
@click.argument("table")
@CONFIG
@click.option(
    "--url", metavar="URL",
    help="The database's address, if it is not the one in --config: for example with the role that "
    "owns the table.",
)  # fmt: skip
@click.option(
    "--data", default="data", show_default=True, metavar="COLUMN",
    help="The column with the event's data.",
)  # fmt: skip
@click.option(
    "--partition-by", metavar="COLUMN",
    help="The column that is the key: rows with the same value go to one partition.",
)  # fmt: skip
@click.option(
    "--partitions", default=1, show_default=True, type=int,
    help="Number of partitions, 1 to 64. More than one need --partition-by.",
)  # fmt: skip
@click.option(
    "--id", default="id", show_default=True, metavar="COLUMN",
    help="The column with the row's id: unique, and growing for each key.",
)  # fmt: skip
@click.option(
    "--time", metavar="COLUMN",
    help="The column with the time at which a row was written: events get it as zeh-time, and "
    "readers can start at a time.",
)  # fmt: skip
@click.option(
    "--notify", is_flag=True,
    help="Wake readers at once, not within 0.1 seconds. Commits then wait for each other.",
)  # fmt: skip
@click.option(
    "--updates", is_flag=True, help="Rows are updated, and each update makes a row a new event."
)
@click.option(
    "--retention", is_flag=True,
    help="Rows are deleted. Record this, so that a reader that missed some gets an error.",
)  # fmt: skip
@click.option(
    "--cursorsets", is_flag=True,
    help="Keep cursors for readers (the protocol's cursorset). The role that serves then writes.",
)  # fmt: skip
@click.option(
    "--no-checks", "checks", is_flag=True, flag_value=False, default=True,
    help="Leave out what makes the database refuse rows that cannot be events: no JSON, or longer "
    "than a line of the feed. Such a row stops its readers.",
)  # fmt: skip
@click.option(
    "--grant-to", metavar="ROLE",
    help="The role that serves the table: grant it the rights to read what it needs.",
)  # fmt: skip
def ddl(table: str, file: Path | None, url: str | None, **options: Any) -> None:
    """Print the SQL that prepares TABLE to be a feed; change nothing.

    The command looks at the table as it is and prints what is missing, so it can be repeated.
    Readers get the rows that the table has already before all later ones. With --config, TABLE may
    be the feed's name.

    \b
    Examples:
      zeh-spark ddl orders --config conf/publisher.toml --grant-to feeds | psql shop
      zeh-spark ddl outbox --url sqlite:///shop.db --data body --retention
    """
    from zeh_spark.service.app.config import FeedConfig, load_config

    columns = {name: options.pop(name) for name in _COLUMNS}
    if file:
        _refuse_what_config_has()
        config, name = _configured(load_config(file), table, url)
    elif url:
        config, name = FeedConfig(url, table, **columns), table
    else:
        raise click.UsageError("No database is given. Give --config FILE, or --url URL.")
    with _feed(config, name) as feed:
        statements = feed.ddl(**options)
    click.echo("\n".join(statements) or f"-- {config.table} has all that it needs")


def _refuse_what_config_has() -> None:
    """Raise UsageError if an option was given that would not be used beside --config."""
    context = click.get_current_context()
    options = {each.name: each.opts[0] for each in context.command.params}
    given = [
        options[name]
        for name in _COLUMNS
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT
    ]
    if given:
        raise click.UsageError(
            f"--config has the feed's columns and partitions. Change them there, and leave "
            f"{', '.join(given)} out."
        )


@click.command()
@click.argument("feed")
@STORE
@CONFIG
@click.option(
    "--url", "owner", metavar="URL",
    help="For a table: the database's address with the role that owns the table, if it is not the "
    "one in --config.",
)  # fmt: skip
@click.option(
    "--since", type=click.IntRange(1), metavar="MS",
    help="For a feed of a store: begin at this zeh-time (milliseconds since 1970), which a reader's"
    " error has named, instead of now.",
)  # fmt: skip
@click.option("--copy", is_flag=True, help="This is a copy, and the original continues beside it.")
@click.option("--yes", is_flag=True, help="Do it without asking for confirmation.")
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

    Run it after each restore of a store or a table to an earlier state, for each of its feeds.
    Run it before you start the publisher again and before anything is published.

    For a feed of a store: after a restore, producers use sequence numbers again, for other events.
    From now on events get another id in the header zeh-feed, so that readers do not confuse them
    with events that they got before the restore. No reader has to start again because of this.
    The command also works while `serve` runs. If something was published between the restore and
    this command, give --since with the time that readers name in their error. That time is after
    the last event of the backup, and not after the first event since the restore.

    For a feed that is a table (--config): the rows of the table come first, in order of their ids,
    and then all later ones. Cursors that were given until now are refused (409), so readers have to
    start again without them. The role has to own the table.

    With --copy: a copy is another feed, and gets its own id. Run the command on the copy, not on
    the original.

    \b
    Examples:
      zeh-spark new-history orders --store sqlite:///feeds.db
      zeh-spark new-history orders --store sqlite:///copy.db --copy
      zeh-spark new-history orders --config conf/publisher.toml
    """
    config = settings_of(ctx, file, url)
    if config.store and feed not in config.feeds:
        if owner:
            raise click.UsageError(
                f"--url is for tables, and feed {feed!r} is in a store. Leave --url out."
            )
        _new_epoch(config.store, feed, copy=copy, since=since, yes=yes)
    else:
        if since is not None:
            raise click.UsageError(
                f"--since is for feeds of a store, and feed {feed!r} is a table. Leave --since out."
            )
        _new_history(*_configured(config, feed, owner), copy=copy, yes=yes)


def settings_of(ctx: click.Context, file: Path | None, url: str) -> Config:
    """Return the publisher's settings, from --config and --store.

    Without a file, `url` alone is served. With one, `url` is used if --store was given.
    """
    import msgspec

    from zeh_spark.service.app.config import Config, load_config

    config = load_config(file) if file else Config(store=url)
    if file and ctx.get_parameter_source("url") is not ParameterSource.DEFAULT:
        config = msgspec.structs.replace(config, store=url)
    return config


def _new_epoch(url: str, feed: str, *, copy: bool, since: int | None, yes: bool) -> None:
    from zeh_spark.service.databases import shown_url
    from zeh_spark.service.sql.feed_epochs import over_at
    from zeh_spark.service.store.interface import UnknownFeedError, now_ms

    with opened(url) as store:
        try:
            before = store.identity(feed)
        except UnknownFeedError as exc:
            raise StoreError(
                f"{exc}; for a table, give the name of its feed and --config FILE"
            ) from exc
        begin = "now" if since is None else f"{since} ms since 1970 ({moment(since)})"
        _confirm(
            f"Feed {feed!r} in {shown_url(url)} becomes another feed than {before.id}, for events "
            f"that are published from {begin} on."
            if copy
            else f"Readers will take what is published to feed {feed!r} in {shown_url(url)} from "
            f"{begin} on for new events, never for those before.",
            yes=yes,
        )
        begun = store.begin_epoch(feed, copy=copy, since=since, by=operator())
    epoch = begun.epochs[-1]
    if 0 < (left := over_at(epoch) - now_ms()) <= 1000:
        time.sleep(left / 1000)  # so that the next epoch begins later, even in a loop of restores
    print_result(
        f"Feed {feed!r} in {shown_url(url)} has the id {begun.id}. Events that are published from "
        f"{begin} on have zeh-feed {epoch.id} (zeh-time from {epoch.time}, {moment(epoch.time)}).",
        feed=feed,
        id=begun.id,
        epoch=epoch.id,
        time=epoch.time,
    )


def _new_history(config: FeedConfig, name: str, *, copy: bool, yes: bool) -> None:
    from zeh_spark.service.databases import shown_url

    _confirm("Its readers will have to start again without their cursors.", yes=yes)
    with _feed(config, name, writes=True) as opened:
        history = opened.new_history(copy=copy)
        told = opened.identity()
    where = f"Table {config.table!r} in {shown_url(config.url)}"
    print_result(
        f"{where} has the new history {history} and the id {told.id}.",
        feed=name,
        id=told.id,
        history=history,
    )


def _confirm(what: str, *, yes: bool) -> None:
    if not yes:
        click.confirm(f"{what} Continue?", abort=True)


def _configured(config: Config, name: str, url: str | None) -> tuple[FeedConfig, str]:
    """Return the settings and the name of a feed, by its name or that of its table."""
    import msgspec

    by_table = (feed for feed, each in config.feeds.items() if each.table == name)
    feed = name if name in config.feeds else next(by_table, name)
    found = config.feed(feed)
    return (msgspec.structs.replace(found, url=url) if url else found), feed


@contextmanager
def _feed(config: FeedConfig, name: str, *, writes: bool = False) -> Iterator[SqlTableFeed]:
    """Open the feed of a table, and close it and its connections at the end."""
    from zeh_spark.service.app.config import engine_of, table_feed

    engine = engine_of(config, writes=writes)
    try:
        with closing(table_feed(config, engine, name)) as feed:
            yield feed
    finally:
        engine.dispose()
