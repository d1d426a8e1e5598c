"""What `zeh-spark serve` puts together and runs: store, tables, gate, listener and publisher.

It is apart from the command, whose help must not load all of these. It runs on the publisher's
machine.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

import click

from zeh_spark.errors import StoreError
from zeh_spark.service.access.gate import Gate, own_hosts
from zeh_spark.service.access.limits import Limits
from zeh_spark.service.app import server
from zeh_spark.service.app.app import Publisher, create_app
from zeh_spark.service.app.config import Config, opened_tables
from zeh_spark.service.app.reload import Hangups, Reload, Use
from zeh_spark.service.databases import shown_url
from zeh_spark.service.network.certificates import Certificates
from zeh_spark.service.network.connections import Listener
from zeh_spark.service.network.draining import stop_on_signals
from zeh_spark.service.outbox.feed import SqlTableFeed
from zeh_spark.service.retention.segments import Mover
from zeh_spark.service.sql.store import SqlStore
from zeh_spark.service.store import clock as clocks
from zeh_spark.service.store.interface import Store, StoreBusyError
from zeh_spark.service.telemetry import logs
from zeh_spark.service.telemetry.health import Check, Telemetry
from zeh_spark.tools.cli.parameters import opened
from zeh_spark.wire.option_values import is_loopback
from zeh_spark.wire.phrases import counted

_SKEW_MS = 1000
"""The difference of two clocks, in ms, from which it is worth a word."""

log = logging.getLogger("zeh_spark.publisher")


def serve_until_stopped(load: Callable[[], Config]) -> None:
    """Serve until a signal ends it. `load` returns the settings, and is called at each SIGHUP."""
    hangups = Hangups()
    config = load()
    with ExitStack() as stack:
        tables = stack.enter_context(opened_tables(config))
        store = stack.enter_context(opened(config.store)) if config.store else None
        stack.enter_context(server.only_publisher(config.store or ""))
        if store and abs(skew := store.skew()) > _SKEW_MS:
            click.echo(
                f"This machine's clock is {skew / 1000:+.1f} s off the database's, which the "
                f"publisher uses. Keep both right with NTP.",
                err=True,
            )
        listener = stack.enter_context(
            server.listen(
                config.host,
                config.port,
                config.connections_per_address,
                config.forwarded_allow_ips,
            )
        )
        gate = _gate(store, config)
        running = _running(config, gate, load, hangups)
        stop_on_signals(running.draining)  # before anybody is told that it runs
        _announce(_base(config, listener), config, store, tables)
        logs.configure(config.log_format, config.log_level)
        telemetry = _telemetry(store, config, listener)
        if config.segments and store:
            mover = stack.enter_context(Mover(cast("SqlStore", store), config.segments))
            telemetry = replace(telemetry, moved=lambda: mover.succeeded)
        publisher = Publisher(
            store, tables, gate, running.draining, telemetry, _limits(config, listener),
            _has_console(config),
        )  # fmt: skip
        server.serve(create_app(publisher), store, listener, running)


def _has_console(config: Config) -> bool:
    """Return whether the publisher has a console: unless told otherwise, on this machine alone."""
    return is_loopback(config.host.lower()) if config.console is None else config.console


def _limits(config: Config, listener: Listener) -> Limits:
    return Limits(
        staging_quota=config.bytes_of("staging_quota"),
        most_chunks=config.most_chunks,
        most_producers=config.most_producers,
        most_cursor_sets=config.most_cursor_sets,
        cache_bytes=config.bytes_of("answer_cache"),
        send_buffer=config.bytes_of("send_buffer"),
        connections=listener.most,
    )


def _telemetry(store: Store | None, config: Config, listener: Listener) -> Telemetry:
    return Telemetry(
        store_file=_sqlite_file(config.store),
        least_free=config.bytes_of("least_free"),
        clock=partial(_clock, store) if store else None,
        connections=lambda: listener.open,
        access_log=config.access_log,
    )


def _clock(store: Store) -> Check:
    """Return whether batches can be committed by the store's clock; and what it is, in words."""
    now, sign = store.now(), clocks.sign(store)
    seconds = round(store.skew() / 1000, 1) + 0.0  # never "-0.0"
    if clocks.is_believed(now, sign):
        return Check("clock", True, f"this machine's clock is {seconds:+.1f} s off the store's")
    return Check("clock", clocks.may_commit(now, sign), clocks.ahead(now, sign))


def _sqlite_file(url: str | None) -> Path | None:
    """Return the file of a SQLite store; None for any other store."""
    if url is None or not url.startswith("sqlite:///"):
        return None
    return Path(url.removeprefix("sqlite:///")).resolve()


def _base(config: Config, listener: Listener) -> str:
    scheme = "https" if config.tls_cert else "http"
    host = f"[{config.host}]" if ":" in config.host else config.host
    return f"{scheme}://{host}:{listener.getsockname()[1]}"


def _running(
    config: Config, gate: Gate, load: Callable[[], Config], hangups: Hangups
) -> server.Running:
    """Return how the publisher runs. A SIGHUP has it read the settings again."""
    certificates = Certificates(config.tls_files) if config.tls_files else None
    look = partial(certificates.look, now=True) if certificates else lambda: None
    reload = Reload(config, load, _live(gate, certificates), look, hangups.take)
    return server.Running(
        times=config.stop_times,
        certificates=certificates,
        forwarded_allow_ips=config.forwarded_allow_ips,
        look=reload.look,
    )


def _live(gate: Gate, certificates: Certificates | None) -> dict[str, Use]:
    """Return what takes settings over while the publisher runs, by their names."""

    def use_hosts(config: Config) -> None:
        gate.use_hosts(own_hosts(config.host, config.allowed_hosts))

    def use_level(config: Config) -> None:
        logs.use_level(config.log_level)

    live: dict[str, Use] = {"allowed_hosts": use_hosts, "log_level": use_level}
    if certificates is not None:

        def use_files(config: Config) -> bool:
            if config.tls_files is None:
                log.error("TLS is not switched off without a restart of the publisher")
                return False
            return certificates.read(config.tls_files)

        live |= dict.fromkeys(("tls_cert", "tls_key", "tls_client_ca"), use_files)
    return live


def _gate(store: Store | None, config: Config) -> Gate:
    """Return who may do what. Raises StoreError if that would be anybody, and nobody said so."""
    host, hosts = config.host, config.allowed_hosts
    if config.jwt_issuer and config.jwt_audience and config.jwt_keys:
        # It is slow to import, and rarely needed.
        from zeh_spark.service.access.jwt_tokens import JwtTokens

        issued = JwtTokens(config.jwt_issuer, config.jwt_audience, config.jwt_keys)
        return Gate(store, issued=issued)
    if is_loopback(host.lower()):
        if store is None:
            return Gate(hosts=own_hosts(host, hosts))
        return Gate(store, is_open=True, hosts=own_hosts(host, hosts))
    if config.allow_anyone:
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
        raise StoreError(f"Both the store and a table have a feed {both[0]!r}. Rename one of them.")
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
    if _has_console(config):
        click.echo(f"Console, for a browser: {base}/console")
    sys.stdout.flush()
