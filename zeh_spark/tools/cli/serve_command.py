"""The command `serve`, whose settings are options, environment variables, and in the file.

An option takes precedence over its variable, and a variable over the file.

Rule for editors: a setting has the same name everywhere: `--drain-delay`, `ZEH_DRAIN_DELAY`, and
`drain_delay` in `config.Config`, which also has the default. So an option here has none.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
import msgspec

from zeh_spark.errors import OptionError
from zeh_spark.service.app.config import Config
from zeh_spark.service.telemetry import logs
from zeh_spark.tools.cli.parameters import SIZE, STORE, Parsed, config_option
from zeh_spark.wire.option_values import parse_duration


def _checked_duration(text: str) -> str:
    """Return the text of a duration like 10s or 500ms. Raises ValueError for another text."""
    try:
        parse_duration(text)
    except ValueError as exc:
        raise ValueError(f"{text!r} {exc}") from None
    return text


class _Option(click.Option):
    """An option whose variable is read as it is: for click 8.2, any text switches a flag on."""

    resolve_envvar_value = click.Parameter.resolve_envvar_value


def _setting(meaning: str, *, option: str = "", **more: Any) -> Callable[[str], Any]:
    """Return what makes the option of a setting; its default, for people, is that of `Config`."""

    def make(name: str) -> Any:
        default = getattr(Config(), name)
        shown = "" if default in (None, [], False) else f"  [default: {default}]"
        return click.option(
            option or f"--{name.replace('_', '-')}",
            name,
            cls=_Option,
            envvar=f"ZEH_{name.upper()}",
            show_envvar=True,
            help=f"{meaning}{shown}",
            **more,
        )

    return make


_count = functools.partial(_setting, type=click.IntRange(min=1), metavar="COUNT")
_duration = functools.partial(
    _setting, type=Parsed("duration", _checked_duration), metavar="DURATION"
)
_size = functools.partial(_setting, type=SIZE, metavar="SIZE")

_MAKERS = {
    "host": _setting("IP address or host name to listen on."),
    "port": _setting("TCP port to listen on; 0 takes a free one.", type=click.IntRange(0, 65535)),
    "segments": _setting(
        "Move packed events that are older than 7 days there: an absolute path of a folder, or a "
        "URI with s3, gs or abfss, without credentials.",
        metavar="URL",
    ),
    "staging_quota": _size(
        "Most bytes that a producer may have uploaded and not yet committed, like 500m or 64g.",
    ),
    "most_chunks": _count(
        "Most chunks in a batch. A chunk has up to 1,000 events of one partition."
    ),
    "most_producers": _count(
        "Most producers that each client may create. A client is a token, or without "
        "tokens an address.",
    ),
    "most_cursor_sets": _count(
        "Most cursor sets that each client may create; of a table, that all may create together.",
    ),
    "least_free": _size(
        "Free space on the disk of a SQLite store, like 1g, below which uploads are "
        "refused and the publisher is not ready. Commits and new cursor sets need half of it.",
    ),
    "answer_cache": _size("Most bytes of answers kept in memory for the next readers, like 256m."),
    "send_buffer": _size(
        "Most bytes of answers in memory that clients have not taken yet, like 256m. Above "
        "it, readers get 503 and try again.",
    ),
    "connections_per_address": _count(
        "Most open connections from one IP address. Those of --forwarded-allow-ips have "
        "no such limit.  [default: three quarters of all connections]",
    ),
    "allow_anyone": _setting(
        "Serve an address that others reach, although there are no tokens: anybody may "
        "read and publish.",
        is_flag=True,
    ),
    "allowed_hosts": _setting(
        "Answer requests for this host name, too, while there are no tokens: that of a "
        "proxy on this machine. Can be repeated.",
        option="--allowed-host",
        multiple=True,
        metavar="HOST",
    ),
    "forwarded_allow_ips": _setting(
        "Trust the proxies at this IP address, or in this network (10.0.0.0/24), to "
        "set X-Forwarded-For and X-Forwarded-Proto. Can be repeated.",
        multiple=True,
        metavar="ADDRESS",
    ),
    "tls_cert": _setting(
        "Serve with TLS, with the certificates in this PEM file. It is read again when it changes.",
        metavar="FILE",
    ),
    "tls_key": _setting(
        "The PEM file with the key of the certificate, if it is not in --tls-cert.", metavar="FILE"
    ),
    "tls_client_ca": _setting(
        "Serve only clients with a certificate that an authority in this PEM file has "
        "issued, and that is in none of its lists of revoked certificates (CRLs).",
        metavar="FILE",
    ),
    "jwt_issuer": _setting(
        "Accept JWTs of this issuer as tokens, too. It is the value of their claim iss.",
        metavar="URL",
    ),
    "jwt_audience": _setting("The audience that JWTs name in their claim aud.", metavar="NAME"),
    "jwt_keys": _setting(
        "The public keys of the issuer: a file with a JWK set, or its https URL.",
        metavar="FILE|URL",
    ),
    "log_format": _setting(
        "The format of the log, which is written to the standard error.",
        type=click.Choice(logs.FORMATS),
    ),
    "log_level": _setting("The lowest level that is logged.", type=click.Choice(logs.LEVELS)),
    "access_log": _setting("Log a line for each request.", is_flag=True),
    "console": _setting(
        "Serve the console, web pages about the feeds, at /console.  [default: on an "
        "address that only this machine reaches]",
        option="--console/--no-console",
        default=None,
    ),
    "drain_delay": _duration(
        "How long to answer all requests after SIGTERM, while /readyz tells load balancers "
        "to use another publisher, like 10s.",
    ),
    "grace": _duration("How long answers that have begun may continue after --drain-delay."),
}

_SETTINGS = {name: make(name) for name, make in _MAKERS.items()}
"""The options of the settings, by their names in `Config`."""


def takes_settings(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of the settings. It gets those that were given, as `given`."""

    @functools.wraps(command)
    def with_options(*words: Any, **named: Any) -> Any:
        values = {name: named.pop(name) for name in _SETTINGS}
        given = {name: value for name, value in values.items() if _is_given(name, value)}
        return command(*words, given=given, **named)

    for option in reversed(_SETTINGS.values()):
        with_options = option(with_options)
    return with_options


def _is_given(name: str, value: object) -> bool:
    """Return whether a setting was given. A flag without an opposite is not given if it is off."""
    return value is not None and value != () and (value is not False or name == "console")


def with_given(config: Config, given: Mapping[str, object]) -> Config:
    """Return the settings of a file with those that were given; a list gets both."""
    lists = {
        name: [*value, *getattr(config, name)]
        for name, value in given.items()
        if isinstance(value, tuple)
    }
    try:
        return msgspec.structs.replace(config, **{**given, **lists})
    except ValueError as exc:
        raise OptionError(f"the settings are not valid: {exc}") from exc


@click.command()
@STORE
@config_option(envvar="ZEH_CONFIG", show_envvar=True)
@takes_settings
@click.pass_context
def serve(ctx: click.Context, url: str, file: Path | None, given: dict[str, object]) -> None:
    """Serve feeds over HTTP, each at /FEED: those of a store, and tables of your own.

    Tokens say who may read and publish (zeh-spark token). As long as the store never had one,
    everybody on this machine may do everything, and only this machine is served. --allow-anyone,
    or a proxy on this machine, opens the publisher to others.

    Other commands can work on the store at the same time; a new feed is served at once. With
    --config, the tables of that file are served, and a store only if the file or --store names one.

    \b
    Examples:
      zeh-spark serve --store sqlite:///feeds.db --port 8080
      zeh-spark serve --store postgresql+psycopg://zeh@db.example/feeds --port 8080
      zeh-spark serve --config conf/publisher.toml
    """
    import httptools  # noqa: F401  # without it uvicorn would run, but slowly

    from zeh_spark.tools.cli.outbox_commands import settings_of
    from zeh_spark.tools.cli.serving import serve_until_stopped  # it loads the publisher

    serve_until_stopped(lambda: with_given(settings_of(ctx, file, url), given))
