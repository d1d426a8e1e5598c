"""What commands have in common: parameters, and how tables and sizes are printed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import datetime, timezone
from typing import Any

import click

from zeh_spark.options import parse_age, parse_size
from zeh_spark.protocol import wire
from zeh_spark.publisher import Store, open_store

_NUMBER = re.compile(r"-?[0-9.,]+( [KMG]?i?B)?")


class Size(click.ParamType):  # type: ignore[type-arg]  # generic in some versions only
    name = "size"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        try:
            return parse_size(str(value))
        except ValueError as exc:
            self.fail(str(exc), param, ctx)


class Age(click.ParamType):  # type: ignore[type-arg]
    """In ms."""

    name = "age"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        text = str(value)
        if text.strip().replace(".", "", 1).isdigit():
            self.fail(f"{text} has no unit: {text}d are days, also h, m and s", param, ctx)
        try:
            age = round(parse_age(text) * 1000)
        except ValueError as exc:
            self.fail(str(exc), param, ctx)
        if not age:
            self.fail("must be longer than 0", param, ctx)
        return age


def name_of(_ctx: object, _param: object, value: str | None) -> str | None:
    if value is not None and not wire.NAME.fullmatch(value):
        raise click.BadParameter(f"{value!r} is not 1 to 100 letters, digits and . _ : @ = -")
    return value


def remedies_of(_ctx: object, _param: object, values: tuple[str, ...]) -> dict[str, str]:
    given = dict(value.partition("=")[::2] for value in values)
    if bare := [name for name, value in given.items() if not value]:
        raise click.BadParameter(f"{bare[0]!r} has no value; give it as the refusal printed it")
    if unknown := sorted(set(given) - set(wire.REMEDIES)):
        raise click.BadParameter(f"{unknown[0]!r} is none of {', '.join(wire.REMEDIES)}")
    return given


STORE = click.option(
    "--store",
    "url",
    default="sqlite:///feeds.db",
    show_default=True,
    envvar="ZEH_STORE",
    show_envvar=True,
    metavar="URL",
    help="Where the feeds are: sqlite:///FILE, or postgresql+psycopg://USER@HOST/DATABASE.",
)
KEY = click.option(
    "--key", metavar="COLUMN", help="Column or field whose value chooses the partition."
)
ENVELOPE = click.option(
    "--envelope", is_flag=True, help='Lines are {"key"?, "partition"?, "headers"?, "data"}.'
)
ALLOW = click.option(
    "--allow", "allowed", multiple=True, metavar="OPTION=VALUE", callback=remedies_of,
    help="What a refusal named, like keepFirst=…: lets this batch pass once.",
)  # fmt: skip
BATCH = click.option(
    "--batch", metavar="NAME", callback=name_of,
    help="Publish under this name: doing it again adds nothing, with other events it is refused.",
)  # fmt: skip


@contextmanager
def opened(url: str, *, must_exist: bool = True) -> Iterator[Store]:
    if url == "memory:":
        raise click.UsageError("--store memory: ends with the command; use sqlite:///FILE.")
    with closing(open_store(url, must_exist=must_exist)) as store:
        yield store


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as they need to be; numbers to the right."""
    widths = [max(len(cell) for cell in column) for column in zip(heads, *rows, strict=True)]
    align = [
        ">" if rows and all(_NUMBER.fullmatch(cell) for cell in column) else "<"
        for column in zip(*rows, strict=True)
    ] or ["<"] * len(heads)
    lines = []
    for row in [heads, *rows]:
        cells = (f"{cell:{a}{w}}" for cell, a, w in zip(row, align, widths, strict=True))
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def kept_first(kept: str, when: str, dropped: int) -> str:
    """What `keepFirst` did: the batch stays as it was published, and what was given is dropped."""
    return (
        f"Published before, at {when}, with other events. keepFirst kept {kept} of then; the "
        f"{counted(dropped, 'event')} given now were dropped: nothing was added."
    )


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def size_of(size: float) -> str:
    if size < 1024:
        return f"{size:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 1024 or unit == "GiB":
            break
    return f"{size:,.1f} {unit}"


def moment(time_ms: int) -> str:
    if not time_ms:
        return "never"
    moment = datetime.fromtimestamp(time_ms / 1000, timezone.utc)
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"
