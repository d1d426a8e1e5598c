"""The publisher's file of settings, `conf/publisher.toml`.

It says where the publisher listens, which store it serves, and which tables are feeds. What opens
these tables imports the database's libraries itself, because `zeh-spark serve --help` has settings.
"""

from __future__ import annotations

import difflib
import ipaddress
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args, get_origin
from urllib.parse import quote

import msgspec

from zeh_spark.errors import OptionError, StoreError
from zeh_spark.service.access.limits import DEFAULTS
from zeh_spark.wire.option_values import parse_duration, parse_location, parse_size

if TYPE_CHECKING:
    from sqlalchemy.engine import Engine

    from zeh_spark.service.network.certificates import TlsFiles
    from zeh_spark.service.network.draining import StopTimes
    from zeh_spark.service.outbox.feed import SqlTableFeed

_PINNED = {
    "extra_float_digits": "1",
    "intervalstyle": "postgres",
    "standard_conforming_strings": "on",
    "timezone": "UTC",
}
"""Settings of PostgreSQL that change how values are written, whatever those of the role are."""


T = TypeVar("T")
Section = TypeVar("Section", bound=msgspec.Struct)

_ANCHOR = "a-setting-of-the-publisher-is-not-valid"


class FeedConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A table that is a feed: its database, and the settings of `table.OutboxTable`."""

    url: str
    table: str
    data: str | list[str] = "data"
    headers: list[str] = []
    partition_by: str | None = None
    partition: str | None = None
    partitions: int = 1
    id: str = "id"
    tx: str = "tx"
    on_bad_row: str = "stop"
    strict_cursors: bool | None = None
    time: str | None = None
    pool_size: Annotated[int, msgspec.Meta(ge=1)] = 8
    statement_timeout: str = "30s"


class Config(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The settings of a publisher, as read from a file or made from the command line.

    Sizes and durations are kept as they were given, like "64g" or "10s".
    """

    host: str = "127.0.0.1"
    port: int = 8080
    store: str | None = None
    allow_anyone: bool = False
    allowed_hosts: list[str] = []
    forwarded_allow_ips: list[str] = []
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_client_ca: str | None = None
    jwt_issuer: str | None = None
    jwt_audience: str | None = None
    jwt_keys: str | None = None
    segments: str | None = None
    staging_quota: int | str = "64g"
    most_chunks: Annotated[int, msgspec.Meta(ge=1)] = DEFAULTS.most_chunks
    most_producers: Annotated[int, msgspec.Meta(ge=1)] = DEFAULTS.most_producers
    most_cursor_sets: Annotated[int, msgspec.Meta(ge=1)] = DEFAULTS.most_cursor_sets
    least_free: int | str = "256m"
    answer_cache: int | str = "64m"
    send_buffer: int | str = "128m"
    connections_per_address: Annotated[int, msgspec.Meta(ge=1)] | None = None
    drain_delay: int | float | str = "0s"
    grace: int | float | str = "3s"
    log_format: Literal["console", "json"] = "console"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    access_log: bool = False
    console: bool | None = None
    feeds: dict[str, FeedConfig] = {}

    def __post_init__(self) -> None:
        for name in ("staging_quota", "least_free", "answer_cache", "send_buffer"):
            self._parsed(name, parse_size)
        for name in ("drain_delay", "grace"):
            self._parsed(name, parse_duration)
        try:
            parse_location(self.segments or "/")
        except ValueError as exc:  # the value is not shown: it may hold a secret
            raise ValueError(f"segments: it {exc}") from None
        if not self.tls_cert and (self.tls_key or self.tls_client_ca):
            name = "tls_key" if self.tls_key else "tls_client_ca"
            raise ValueError(f"{name} is set, and tls_cert is not. Set tls_cert, too")
        jwt = {each: getattr(self, each) for each in ("jwt_issuer", "jwt_audience", "jwt_keys")}
        if missing := [name for name, value in jwt.items() if not value]:
            if len(missing) < len(jwt):
                raise ValueError(f"not set: {', '.join(missing)}. Set all of {', '.join(jwt)}")
        elif self.allow_anyone:
            raise ValueError("allow_anyone and jwt_issuer contradict each other. Set one of them")
        for each in self.forwarded_allow_ips:
            try:
                ipaddress.ip_network(each)
            except ValueError as exc:
                raise ValueError(
                    f"forwarded_allow_ips = {each!r}: {exc}. Give addresses like 10.0.0.7, or "
                    f"networks like 10.0.0.0/24"
                ) from None

    @property
    def tls_files(self) -> TlsFiles | None:
        """The files of TLS; None to speak without it."""
        from zeh_spark.service.network.certificates import TlsFiles

        if not self.tls_cert:
            return None
        return TlsFiles(self.tls_cert, self.tls_key or None, self.tls_client_ca or None)

    def bytes_of(self, name: str) -> int:
        """Return the bytes of a setting that is a size, like `staging_quota`."""
        return self._parsed(name, parse_size)

    @property
    def stop_times(self) -> StopTimes:
        from zeh_spark.service.network.draining import StopTimes

        delay, grace = (self._parsed(each, parse_duration) for each in ("drain_delay", "grace"))
        return StopTimes(delay, grace)

    def _parsed(self, name: str, parse: Callable[[str], T]) -> T:
        """Return the value of a setting. Raises ValueError, with its name."""
        value = getattr(self, name)
        try:
            return parse(str(value))
        except ValueError as exc:
            raise ValueError(f"{name} = {value!r}: it {exc}") from None

    def feed(self, name: str) -> FeedConfig:
        """Return the settings of a table that is a feed. Raises OptionError for an unknown name."""
        if name not in self.feeds:
            known = ", ".join(self.feeds) or "none"
            raise OptionError(
                f"there is no [feeds.{name}] in the file; there are {known}. Give one of these",
                anchor=_ANCHOR,
            )
        return self.feeds[name]


def load_config(file: Path) -> Config:
    """Return the settings in a file.

    The error names the file, the feed's section, the key, its value, and what is allowed.
    """
    try:
        given = msgspec.toml.decode(file.read_bytes())
    except OSError as exc:
        raise StoreError(
            f"{file} cannot be read: {exc.strerror}. Check the path and its permissions",
            anchor=_ANCHOR,
        ) from exc
    except (msgspec.DecodeError, ValueError, RecursionError) as exc:  # the last two are tomllib's
        raise StoreError(f"{file} is not TOML: {exc}. Correct it there", anchor=_ANCHOR) from exc
    try:
        return _config(given)
    except ValueError as exc:
        raise StoreError(f"{file}: {exc}", anchor=_ANCHOR) from exc


def _config(given: dict[str, Any]) -> Config:
    """Return the settings of a TOML document. Raises ValueError with the place of a mistake."""
    sections = given.get("feeds", {})
    if not isinstance(sections, dict):
        raise ValueError("feeds has to be sections, one for each table: [feeds.NAME]")
    feeds = {}
    for name, each in sections.items():
        if not isinstance(each, dict):
            raise ValueError(f"feeds.{name} has to be a section: [feeds.{name}]")
        try:
            feeds[name] = _converted(each, FeedConfig)
        except ValueError as exc:
            raise ValueError(f"[feeds.{name}] {exc}") from None
    return _converted({**given, "feeds": feeds}, Config)


def _converted(given: dict[str, Any], kind: type[Section]) -> Section:
    """Return a section as a value. Raises ValueError with the key that is wrong."""
    known = {each.name: each for each in msgspec.structs.fields(kind)}
    for key, value in given.items():
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            meant = f"; did you mean {close[0]!r}?" if close else "."
            raise ValueError(f"there is no key {key!r}{meant} Known: {', '.join(known)}")
        try:
            msgspec.convert(value, known[key].type)
        except msgspec.ValidationError as exc:
            choices = " or ".join(map(str, get_args(known[key].type)))
            said = f"{exc}"[:1].lower() + f"{exc}"[1:]
            why = f"it must be {choices}" if get_origin(known[key].type) is Literal else said
            raise ValueError(f"{key} = {value!r} is not allowed: {why}. Correct it") from None
    for key, each in known.items():
        if each.required and key not in given:
            raise ValueError(
                f"{key} is missing. Set it; known keys are {', '.join(known)}, of which "
                f"{' and '.join(name for name, one in known.items() if one.required)} are needed"
            )
    return msgspec.convert(given, kind)


@contextmanager
def opened_tables(config: Config) -> Iterator[Mapping[str, SqlTableFeed]]:
    """Yield the tables of `config` as feeds by name; close them, and connections, at the end."""
    from zeh_spark.service.store.interface import check_feed_name

    for name in config.feeds:
        try:
            check_feed_name(name)
        except StoreError as exc:
            raise OptionError(f"[feeds.{name}] {exc}. Rename the section") from exc
    feeds: dict[str, SqlTableFeed] = {}
    with ExitStack() as stack:
        for name, each in config.feeds.items():
            try:
                engine = engine_of(each)
            except (OptionError, StoreError) as exc:
                raise StoreError(f"[feeds.{name}] {exc}", anchor=_ANCHOR) from exc
            stack.callback(engine.dispose)
            feeds[name] = table_feed(each, engine, name)
            stack.callback(feeds[name].close)
        yield feeds


def table_feed(config: FeedConfig, engine: Engine, name: str) -> SqlTableFeed:
    """Return the feed of a table. Raises OptionError, with the name of the feed's section."""
    from zeh_spark.service.outbox.feed import SqlTableFeed

    given = msgspec.structs.asdict(config)
    for each in ("url", "pool_size", "statement_timeout"):
        del given[each]
    try:
        return SqlTableFeed(engine, **given)
    except OptionError as exc:
        raise OptionError(f"[feeds.{name}] {exc}", option=exc.option) from exc


def engine_of(config: FeedConfig, *, writes: bool = False) -> Engine:
    """Return an engine for a table's database, whose connections only read unless `writes` is set.

    Raises StoreError if there is no such database, and OptionError if `statement_timeout` is not a
    duration.
    """
    if config.url.startswith("sqlite:///"):
        return _sqlite(Path(config.url.removeprefix("sqlite:///")), config.pool_size, writes)
    from zeh_spark.service.postgresql import store as postgresql

    try:
        timeout = round(parse_duration(config.statement_timeout) * 1000)
    except ValueError as exc:
        raise OptionError(
            f"statement_timeout = {config.statement_timeout!r}: it {exc}",
            option="statement_timeout",
            anchor=_ANCHOR,
        ) from None
    reading = {"default_transaction_read_only": "on", "lock_timeout": "3s", "row_security": "off"}
    settings = {**_PINNED, **({} if writes else reading), "statement_timeout": timeout}
    return postgresql.engine(config.url, config.pool_size, settings)


def _sqlite(file: Path, pool_size: int, writes: bool) -> Engine:
    from sqlalchemy import create_engine, event
    from sqlalchemy.exc import DisconnectionError

    from zeh_spark.service.sqlite.store import check_names

    if not file.is_file():
        raise StoreError(f"there is no database {file}. Correct the path in url", anchor=_ANCHOR)
    check_names(file)
    engine = create_engine(
        f"sqlite:///file:{quote(str(file))}?mode=rw&uri=true", pool_size=pool_size, max_overflow=0
    )

    @event.listens_for(engine, "connect")
    def connected(connection: Any, record: Any) -> None:
        record.info["file"] = _identity(file)
        connection.execute("PRAGMA busy_timeout = 30000")
        if not writes:
            connection.execute("PRAGMA query_only = ON")

    @event.listens_for(engine, "checkout")
    def taken(_connection: object, record: Any, _proxy: object) -> None:
        if record.info["file"] != _identity(file):
            raise DisconnectionError(f"{file} is another file now")

    return engine


def _identity(file: Path) -> tuple[int, int] | None:
    """Return what tells a file from a copy that was put in its place; None if there is no file.

    A connection that has the replaced file open would read it for ever.
    """
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
