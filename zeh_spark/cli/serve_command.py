"""The command `zeh-spark serve`: settings become a publisher that listens. Runs on its machine."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import click

from zeh_spark.cli.outbox_commands import CONFIG, settings_of
from zeh_spark.cli.parameters import STORE, Size, counted, opened
from zeh_spark.errors import StoreError
from zeh_spark.publisher import SqlTableFeed, Store, server, shown_url
from zeh_spark.publisher.access import Gate, is_loopback, own_hosts
from zeh_spark.publisher.config import Config, opened_tables
from zeh_spark.store.interface import RESERVED_NAMES, StoreBusyError
from zeh_spark.telemetry import logs
from zeh_spark.telemetry.settings import Telemetry


@click.command()
@STORE
@CONFIG
@click.option("--host", help="IP address or host name to listen on.  [default: 127.0.0.1]")
@click.option(
    "--port", type=click.IntRange(0, 65535),
    help="TCP port to listen on; 0 takes a free one.  [default: 8080]",
)  # fmt: skip
@click.option(
    "--staging-quota", default="64g", show_default=True, type=Size(), metavar="SIZE",
    help="Most bytes that a producer may have uploaded and not yet committed, like 500m or 64g.",
)  # fmt: skip
@click.option(
    "--answer-cache", default="64m", show_default=True, type=Size(), metavar="SIZE",
    help="Most bytes of answers kept in memory for the next readers, like 256m.",
)  # fmt: skip
@click.option(
    "--allow-anyone", is_flag=True,
    help="Serve an address that others reach without tokens: anybody may read and publish.",
)  # fmt: skip
@click.option(
    "--allowed-host", "hosts", multiple=True, metavar="HOST",
    help="Answer requests for this host name, too, while there are no tokens: that of a proxy on "
    "this machine. Can be repeated.",
)  # fmt: skip
@click.option(
    "--log-format", type=click.Choice(logs.FORMATS),
    help="How log lines on the standard error look.  [default: console]",
)  # fmt: skip
@click.option(
    "--log-level", type=click.Choice(logs.LEVELS), help="The least level of them.  [default: info]"
)
@click.option("--access-log", is_flag=True, help="Log a line for each request.")
@click.pass_context
def serve(
    ctx: click.Context,
    url: str,
    file: Path | None,
    host: str | None,
    port: int | None,
    staging_quota: int,
    answer_cache: int,
    allow_anyone: bool,
    hosts: tuple[str, ...],
    log_format: str | None,
    log_level: str | None,
    access_log: bool,
) -> None:
    """Serve feeds over HTTP, each at /FEED: those of a store, and tables of your own.

    Who may read and publish is a matter of tokens (zeh-spark token). As long as the store never had
    one, everybody on this machine may do everything, and only this machine is served.

    Other commands can work on the store at the same time; a new feed is served at once. With
    --config, the tables of that file are served, and a store only if the file or --store names one.

    \b
    Examples:
      zeh-spark serve --store sqlite:///feeds.db --port 8080
      zeh-spark serve --store postgresql+psycopg://zeh@db.example/feeds --port 8080
      zeh-spark serve --config conf/publisher.toml
    """
    config = settings_of(ctx, file, url)
    host, port = host or config.host, config.port if port is None else port
    with ExitStack() as stack:
        tables = stack.enter_context(opened_tables(config))
        store = stack.enter_context(opened(config.store)) if config.store else None
        stack.enter_context(server.only_publisher(config.store or ""))
        listener = stack.enter_context(server.listen(host, port))
        gate = _gate(
            store, host, allow_anyone or config.allow_anyone, [*hosts, *config.allowed_hosts]
        )
        shown = f"[{host}]" if ":" in host else host
        base = f"http://{shown}:{listener.getsockname()[1]}"
        _announce(base, config, store, tables)
        logs.configure(log_format or config.log_format, log_level or config.log_level)
        more = tables if store else None
        telemetry = Telemetry(
            store_file=_sqlite_file(config.store), access_log=access_log or config.access_log
        )
        server.serve(store or tables, listener, more, staging_quota, answer_cache, gate, telemetry)


def _sqlite_file(url: str | None) -> Path | None:
    """Return the file of a SQLite store; None for any other store."""
    if url is None or not url.startswith("sqlite:///"):
        return None
    return Path(url.removeprefix("sqlite:///")).resolve()


def _gate(store: Store | None, host: str, allow_anyone: bool, hosts: Sequence[str]) -> Gate:
    """Return who may do what. Raises StoreError if that would be anybody, and nobody said so."""
    if is_loopback(host):
        if store is None:
            return Gate(hosts=own_hosts(host, hosts))
        return Gate(store, is_open=True, hosts=own_hosts(host, hosts))
    if allow_anyone:
        return Gate(store, is_open=True)
    if store is None:
        raise StoreError(
            f"{host} is an address that others reach, and without a store there are no tokens: "
            f"anybody could read the tables. Name a store, which keeps the tokens "
            f"(--store sqlite:///tokens.db), or say --allow-anyone",
            anchor="tokens",
        )
    if not store.tokens():
        raise StoreError(
            f"{host} is an address that others reach, and there are no tokens: anybody could read "
            f"and publish. Make one first (zeh-spark token create NAME --read FEED), or say "
            f"--allow-anyone",
            anchor="tokens",
        )
    return Gate(store)


def _announce(
    base: str, config: Config, store: Store | None, tables: Mapping[str, SqlTableFeed]
) -> None:
    """Print what is served, and where. Raises StoreError for a table that cannot be served."""
    stored = store.feeds() if store else []
    if both := sorted({each.name for each in stored} & set(tables)):
        raise StoreError(f"{both[0]!r} is a feed of the store and a table's. Rename one of them.")
    if reserved := sorted(RESERVED_NAMES & set(tables)):
        raise StoreError(f"no table can be called {reserved[0]!r}: the publisher answers there")
    for name, feed in tables.items():
        try:
            feed.check()
        except StoreBusyError as exc:
            click.echo(f"Feed {name!r} is tried again at the next request: {exc}", err=True)
    what = [shown_url(config.store)] if config.store else []
    what += [counted(len(tables), "table")] if tables or not what else []
    click.echo(f"Serving {' and '.join(what)} at {base}; Ctrl-C stops.")
    partitions = {each.name: each.partitions for each in stored}
    partitions.update({name: feed.partitions for name, feed in tables.items()})
    for name, count in partitions.items():
        click.echo(f"  {base}/{name}  {counted(count, 'partition')}")
    sys.stdout.flush()


COMMANDS = (serve,)
