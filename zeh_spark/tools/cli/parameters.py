"""What the commands share: parameter types and options.

Rule for editors: an option that several commands have is declared here once, so that it means the
same everywhere. Client commands import this module, so it must not import the extra `publisher` at
its top.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zeh_spark.wire.option_values import SECRET_HEADER_PREFIX, parse_age_ms, parse_size

if TYPE_CHECKING:
    from zeh_spark.client.options.client_options import ClientOptions
    from zeh_spark.service.store.acts import Actor
    from zeh_spark.service.store.interface import Store


class Parsed(click.ParamType):  # type: ignore[type-arg]  # generic in some versions only
    """A parameter type whose value a function makes of the text, or raises ValueError."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        try:
            return self._parse(str(value))
        except ValueError as exc:
            self.fail(f"{exc}.", param, ctx)


SIZE = Parsed("size", parse_size)
"""A size like 500m; its value is a number of bytes."""

AGE = Parsed("age", parse_age_ms)
"""A duration like 30d or 12h; its value is a number of milliseconds."""


def name_of(_ctx: object, _param: object, value: str | None) -> str | None:
    """Return the name of a producer or batch, as a callback of an option."""
    from zeh_spark.wire import wire

    if value is not None and not wire.NAME.fullmatch(value):
        raise click.BadParameter(
            f"{value!r} is not a name that is allowed. Use 1 to 100 letters, digits and . _ : @ = -"
        )
    return value


def remedies_of(_ctx: object, _param: object, values: tuple[str, ...]) -> dict[str, str]:
    """Return the overrides that are given as OPTION=VALUE, by option: a callback of an option."""
    from zeh_spark.wire import wire

    given = dict(value.partition("=")[::2] for value in values)
    if bare := [name for name, value in given.items() if not value]:
        raise click.BadParameter(f"{bare[0]!r} has no value. Give it as the refusal printed it.")
    if unknown := sorted(set(given) - set(wire.REMEDIES)):
        raise click.BadParameter(
            f"there is no override {unknown[0]!r}. Give one of {', '.join(wire.REMEDIES)}."
        )
    return given


def store_option(name: str) -> Callable[[Any], Any]:
    """Return the option --store, whose value the command gets under this name."""
    return click.option(
        "--store",
        name,
        default="sqlite:///feeds.db",
        show_default=True,
        envvar="ZEH_STORE",
        show_envvar=True,
        metavar="URL",
        help="The store with the feeds: sqlite:///FILE, or "
        "postgresql+psycopg://USER@HOST/DATABASE.",
    )


STORE = store_option("url")
config_option = functools.partial(
    click.option,
    "--config",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The publisher's settings, a TOML file like conf/publisher.toml.",
)
CONFIG = config_option()
KEY = click.option(
    "--key", metavar="COLUMN",
    help="The column or field that is the key: events with the same key go to one partition.",
)  # fmt: skip
KEEP_KEY = click.option(
    "--keep-key", is_flag=True,
    help="Keep the key of each event in the header zeh-key, which Spark reads as the column key.",
)  # fmt: skip
ENVELOPE = click.option(
    "--envelope", is_flag=True,
    help="Read each line as an event with its own key, partition and headers: "
    '{"key"?, "partition"?, "headers"?, "data"}.',
)  # fmt: skip


def refuse_contradicting_keys(key: str | None, envelope: bool, keep_key: bool) -> None:
    """Raise UsageError for options about keys that contradict each other."""
    if envelope and key:
        raise click.UsageError(
            "--key and --envelope exclude each other: an envelope has its key. Give one of them."
        )
    if keep_key and not (envelope or key):
        raise click.UsageError(
            "--keep-key needs keys: give --key COLUMN, or --envelope for events that have theirs."
        )


ALLOW = click.option(
    "--allow", "allowed", multiple=True, metavar="OPTION=VALUE", callback=remedies_of,
    help="Allow this batch once: an override that a refusal has printed, like keepFirst=…. Can be "
    "repeated.",
)  # fmt: skip
BATCH = click.option(
    "--batch", metavar="NAME", callback=name_of,
    help="The batch's name. The same events published again under this name add nothing; other "
    "events are refused.",
)  # fmt: skip

PATIENCE = {"retryTimeout": "10s"}
"""How long an unreachable publisher is retried while somebody waits at the terminal."""

_SOURCES = {
    "oauth.tokenUrl": "ZEH_OAUTH_TOKEN_URL",
    "oauth.clientId": "ZEH_OAUTH_CLIENT_ID",
    "oauth.clientSecret": "ZEH_OAUTH_CLIENT_SECRET",
    "oauth.scope": "ZEH_OAUTH_SCOPE",
    "auth": "ZEH_AUTH",
    "auth.scope": "ZEH_AUTH_SCOPE",
}
"""The environment variables that name a source of tokens, by their options."""

_TOKEN_FILE = click.option(
    "--token-file", "tokenFile", envvar="ZEH_TOKEN_FILE", show_envvar=True, metavar="FILE",
    help="The file with the token to send. Without one, the token in ZEH_TOKEN is sent, if it is "
    "set, or one that ZEH_OAUTH_TOKEN_URL gives for ZEH_OAUTH_CLIENT_ID and "
    "ZEH_OAUTH_CLIENT_SECRET, or one of the source that ZEH_AUTH names.",
)  # fmt: skip
_CA_FILE = click.option(
    "--ca-file", "caFile", metavar="FILE",
    help="A PEM file of the authorities to trust instead of the system's.",
)  # fmt: skip
_CLIENT_CERT = click.option(
    "--client-cert", "clientCertFile", metavar="FILE",
    help="A PEM file with the certificate to show to the publisher, perhaps with its key.",
)  # fmt: skip
_CLIENT_KEY = click.option(
    "--client-key", "clientKeyFile", metavar="FILE",
    help="The PEM file with the key of --client-cert, if it is not in that file.",
)  # fmt: skip
_FILES = ("tokenFile", "caFile", "clientCertFile", "clientKeyFile")
_HEADER = click.option(
    "--header", "sent_headers", multiple=True, metavar="NAME=VALUE",
    help="Send this header with each request. With NAME=@FILE its value is what the file holds, "
    "so that no list of processes shows it. Can be repeated.",
)  # fmt: skip


def connects(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that say how to talk to a publisher.

    The command gets them as `connect`: options of the format, by name.
    """

    @functools.wraps(command)
    def with_options(*given: Any, sent_headers: tuple[str, ...], **more: Any) -> Any:
        connect = {name: file for name in _FILES if (file := more.pop(name))}
        token = os.environ.get("ZEH_TOKEN")
        if "tokenFile" not in connect and token:
            connect["token"] = token
        elif "tokenFile" not in connect:
            connect.update({k: v for k, name in _SOURCES.items() if (v := os.environ.get(name))})
        for each in sent_headers:
            name, found, value = each.partition("=")
            if not found:
                raise click.BadParameter("--header has no value. Write NAME=VALUE.")
            connect[f"{SECRET_HEADER_PREFIX}{name}"] = _content_of(value)
        return command(*given, connect=connect, **more)

    return _TOKEN_FILE(_CA_FILE(_CLIENT_CERT(_CLIENT_KEY(_HEADER(with_options)))))


def client_options(
    url: str, connect: Mapping[str, str], *, patience: str = PATIENCE["retryTimeout"]
) -> ClientOptions:
    """Return how to talk to a publisher. `patience` is how long it may not answer."""
    from zeh_spark.client.options.client_options import ClientOptions
    from zeh_spark.client.options.given import parse

    return parse(ClientOptions, {"url": url, **connect, "retryTimeout": patience})


def _content_of(value: str) -> str:
    """Return a header's value, or what the file holds that it names as @FILE."""
    if not value.startswith("@"):
        return value
    try:
        return Path(value[1:]).read_text(encoding="ascii").strip()
    except (OSError, ValueError) as exc:
        raise click.BadParameter(
            f"--header cannot read a value from {value[1:]!r} ({exc}). Give a file that holds the "
            f"value of the header, in ASCII."
        ) from None


def opened(url: str, *, must_exist: bool = True) -> closing[Store]:
    # It needs the extra `publisher`, which client commands do not.
    from zeh_spark.service.databases import open_store

    return closing(open_store(url, must_exist=must_exist))


def operator() -> Actor:
    """Return who runs the command, for the log of administrative acts."""
    from zeh_spark.service.store.acts import Via, process_actor

    return process_actor(Via.CLI)
