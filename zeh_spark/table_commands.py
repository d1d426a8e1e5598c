"""The commands about a service's own tables: `ddl`, `new-history`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import click
import msgspec

from zeh_spark.publisher import shown_url
from zeh_spark.publisher.config import FeedConfig, engine_of, load_config, table_feed
from zeh_spark.publisher.table_feed import SqlTableFeed

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
        config, name = _configured(file, table, url)
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
@CONFIG
@click.option("--url", metavar="URL", help="The database as its owner, if not that of --config.")
@click.confirmation_option(prompt="Its readers will have to begin anew. Go on?")
def new_history(feed: str, file: Path | None, url: str | None) -> None:
    """Let a feed's table begin anew, after it was restored from a copy.

    Rows that are there come before all that will be written, in order of their ids, and cursors
    that were given until now are refused (409). The role has to own the table.

    \b
    Example:
      zeh-spark new-history orders --config conf/publisher.toml
    """
    if not file:
        raise click.UsageError("Give --config FILE.")
    config, name = _configured(file, feed, url)
    with _feed(config, name, writes=True) as opened:
        history = opened.new_history()
    click.echo(f"Table {config.table!r} in {shown_url(config.url)} has the new history {history}.")


def _configured(file: Path, name: str, url: str | None) -> tuple[FeedConfig, str]:
    """By the feed's name, or the table's."""
    config = load_config(file)
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
