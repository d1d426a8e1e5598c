"""What commands print: results as text or JSON, progress, messages, and exit codes.

Results go to standard output; progress, warnings and errors to standard error. With --json a
command prints one JSON object on one line, whose members keep their names and meanings; later
versions may add members. An error is then the object {"error": …} on standard error.

A terminal gets no character that it would obey, whatever a publisher or an event says: texts and
JSON have escapes instead, always; lines of a feed only if standard output is a terminal.

Rule for editors: a command tells its result with `print_result` or `print_table`, never with
`click.echo`.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any, NoReturn

import click

from zeh_spark.errors import ZeroEventHubError, printable
from zeh_spark.wire import phrases

FAILED, USAGE, DIFFERENT, DOWN, REFUSED, UNKNOWN = 1, 2, 3, 4, 5, 6
"""Exit codes: failed for another reason, wrong usage, differences or failures found, the publisher
does not answer, it refuses the credentials, it is not known whether it published.
"""

_NUMBER = re.compile(r"-?[0-9.,]+( [KMGT]?i?B)?")
_JSON, _QUIET = f"{__name__}.json", f"{__name__}.quiet"
_PLAIN = {"dead-letters", "ddl", "serve", "tail"}
"""Commands whose output has one form alone: lines of JSON, SQL, or a publisher's log."""

COMMON = {"as_json_object", "quiet", "verbose"}
"""The names of the parameters that `equipped` adds. The reference describes them once."""


class Failure(click.ClickException):
    """A message for the user with an exit code."""

    def __init__(self, message: str, code: int, error: ZeroEventHubError | None = None) -> None:
        super().__init__(printable(message))
        self.exit_code = code  # type: ignore[misc]  # of the class in click
        self.error = error
        self.as_json = _is(_JSON)  # asked here, because it is shown after its context has ended

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the message, as text or as JSON (see `click.ClickException`)."""
        if not self.as_json:
            return super().show(file)
        said: dict[str, Any] = {"message": self.message.partition("\nSee ")[0]}
        said["exitCode"] = self.exit_code
        if self.error:
            known = {"type": type(self.error).__name__, "code": self.error.code}
            said |= {**known, "help": self.error.help}
        click.echo(json_line({"error": said}), err=True, file=file)


def json_line(document: object) -> str:
    """Return a JSON text in which what a terminal would obey is escaped; its values stay."""
    return printable(json.dumps(document, ensure_ascii=False))


def write_lines(lines: Iterable[bytes]) -> None:
    """Write lines of a feed to standard output: byte for byte, but made printable on a terminal."""
    if sys.stdout.isatty():
        lines = (printable(each.decode(errors="backslashreplace")).encode() for each in lines)
    sys.stdout.buffer.writelines(each + b"\n" for each in lines)


def note_json(ctx: click.Context, args: Sequence[str]) -> None:
    """Note whether a command is called with `--json`, for errors before its options are read."""
    ctx.meta[_JSON] = "--json" in args


def wrong_usage(
    error: click.UsageError, cause: ZeroEventHubError | None = None
) -> click.ClickException:
    """Return the error for wrong usage: as click shows it, or as JSON if that was asked for."""
    return Failure(error.format_message(), USAGE, cause) if _is(_JSON) else error


def equipped(command: click.Command) -> click.Command:
    """Give a command, or the commands of a group, the options that all commands have."""
    if isinstance(command, click.Group):
        for each in command.commands.values():
            equipped(each)
        return command
    if command.name in ("serve", "quickstart"):
        return command
    if command.name not in _PLAIN and not any(each.name == "as_json" for each in command.params):
        command.params.append(
            click.Option(
                ["--json", "as_json_object"], is_flag=True, expose_value=False,
                callback=_keep(_JSON), help="Print the result as a JSON object.",
            )
        )  # fmt: skip
    command.params += [
        click.Option(
            ["-q", "--quiet"], is_flag=True, expose_value=False, callback=_keep(_QUIET),
            help="Print neither confirmations nor progress.",
        ),
        click.Option(
            ["-v", "--verbose"], count=True, expose_value=False, callback=_log,
            help="Log to standard error; -vv logs each request.",
        ),
    ]  # fmt: skip
    return command


def _keep(key: str) -> Callable[[click.Context, click.Parameter, bool], None]:
    def callback(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
        ctx.meta[key] = value

    return callback


def _log(_ctx: click.Context, _param: click.Parameter, count: int) -> None:
    if count:
        level = logging.INFO if count == 1 else logging.DEBUG
        logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
        logging.getLogger("zeh_spark").setLevel(level)


def _is(key: str) -> bool:
    context = click.get_current_context(silent=True)
    return bool(context and context.meta.get(key))


def print_result(text: str, **facts: Any) -> None:
    """Print the result of a command."""
    if _is(_JSON) or not _is(_QUIET):
        print_answer(text, **facts)


def print_answer(text: str, **facts: Any) -> None:
    """Print what was asked for: as `print_result`, also with --quiet."""
    click.echo(json_line(facts) if _is(_JSON) else printable(text))


def print_findings(text: str, *, failed: bool, **facts: Any) -> None:
    """Print what was found, with its colors, and end with exit code 3 if something failed."""
    click.echo(json_line(facts) if _is(_JSON) else text)
    if failed:
        click.get_current_context().exit(DIFFERENT)


def print_difference(text: str, **facts: Any) -> NoReturn:
    """Print differences that were found, and end with the exit code that says so.

    The text goes to standard error, the JSON object to standard output.
    """
    click.echo(json_line(facts) if _is(_JSON) else printable(text), err=not _is(_JSON))
    click.get_current_context().exit(DIFFERENT)


def print_remark(text: str) -> None:
    """Print a remark on standard error, without --json and --quiet."""
    if not _is(_JSON) and not _is(_QUIET):
        click.echo(printable(text), err=True)


def print_table(
    name: str,
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    items: Sequence[dict[str, Any]],
    none: str = "",
) -> None:
    """Print a list.

    `items` are the rows as JSON objects, the member `name` of the result. `none` is printed instead
    of a table without rows.
    """
    facts: dict[str, Any] = {name: list(items)}
    print_answer(table(heads, rows) if rows or not none else none, **facts)


@contextmanager
def without_warnings(logger: str) -> Iterator[None]:
    """Keep a logger from warning of what the command tells as its result."""
    log = logging.getLogger(logger)
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


@contextmanager
def progress(
    label: str, length: int | Callable[[], int] | None
) -> Iterator[Callable[[int], object]]:
    """Show a progress bar if standard error is a terminal, without --quiet and --json.

    `length` is the number of steps, or what counts them, which is called only for a bar. None shows
    no bar. The function that it yields is called with the number of steps done since its last call.
    """
    shown = sys.stderr.isatty() and not _is(_JSON) and not _is(_QUIET)
    length = length() if shown and callable(length) else length
    if not shown or callable(length) or not length:
        yield lambda more: None
        return
    steps = max(1, length // 50)
    with click.progressbar(
        length=length, label=label, file=sys.stderr, update_min_steps=steps
    ) as bar:
        yield bar.update
        bar.update(length - bar.pos)  # what was counted may differ a little from the length


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return rows as text, in columns as wide as their longest cell, numbers to the right."""
    rows = [[printable(cell) for cell in row] for row in rows]
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


def moment(time_ms: int) -> str:
    """Return a time in ms since 1970 as a date in UTC, or "never" for 0."""
    return phrases.moment(time_ms) if time_ms else "never"
