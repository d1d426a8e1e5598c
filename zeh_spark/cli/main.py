"""The group `zeh-spark`: it loads commands, and turns errors into messages and exit codes.

A command is loaded only when it is used, so that client commands need nothing but the core, and
start fast.

Rule for editors: a new command is a line of `COMMANDS`. An exit code keeps its meaning for ever,
because scripts decide by it. A traceback is always a bug of ours.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

import zeh_spark as package
from zeh_spark.cli import output, spelling
from zeh_spark.errors import (
    AccessError,
    OptionError,
    OutcomeUnknownError,
    UnavailableError,
    ZeroEventHubError,
)

COMMANDS = {
    "admin-log": "admin_log_command:admin_log",
    "audit": "feed_commands:audit",
    "backup": "store_commands:backup",
    "check": "diagnosis_commands:check",
    "clock": "store_commands:clock",
    "create": "commands:create",
    "cursor-sets": "retention_commands:list_cursor_sets",
    "ddl": "outbox_commands:ddl",
    "dead-letters": "dead_letter_commands:list_letters",
    "delete-producer": "commands:delete_producer",
    "doctor": "diagnosis_commands:doctor",
    "feeds": "reader_commands:feeds",
    "lag": "diagnosis_commands:lag",
    "load": "commands:load",
    "migrate": "store_commands:migrate",
    "new-history": "outbox_commands:new_history",
    "producers": "feed_commands:producers",
    "prune": "retention_commands:prune",
    "publish": "feed_commands:publish",
    "quickstart": "serve_command:quickstart",
    "replay-dead": "dead_letter_commands:replay_dead",
    "restore": "store_commands:restore",
    "retention": "retention_commands:retention",
    "serve": "serve_command:serve",
    "tail": "reader_commands:tail",
    "token": "token_commands:token",
}
"""The commands by name: module and attribute."""

INSTALL = 'pip install "zeh-spark[publisher]"'
_EXTRA = {
    "anyio", "httptools", "jinja2", "jwt", "prometheus_client", "psycopg", "sqlalchemy",
    "starlette", "uvicorn", "yaml",
}  # fmt: skip
"""What only the extra `publisher` installs, by the names of the modules."""


class _Commands(click.Group):
    """Loads commands by name, and turns our errors into messages with exit codes.

    Any other error is a bug, and shows its traceback.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands (see `click.Group`)."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, with the options of all commands (see `click.Group`)."""
        if cmd_name not in COMMANDS:
            return None
        if cmd_name not in self.commands:
            module, _, attribute = COMMANDS[cmd_name].partition(":")
            try:
                command = getattr(import_module(f"zeh_spark.cli.{module}"), attribute)
            except ModuleNotFoundError as exc:
                return _not_installed(cmd_name, _missing(exc))
            self.add_command(output.equipped(command), cmd_name)
        return self.commands[cmd_name]

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that was asked for (see `click.Group`)."""
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as exc:
            raise _needs(_missing(exc)) from exc
        except OptionError as exc:
            raise click.UsageError(_with_help(spelling.option_error(exc), exc)) from exc
        except ZeroEventHubError as exc:
            said = f"[{exc.code}] {spelling.message(exc)}"
            raise output.Failure(_with_help(said, exc), exit_code(exc), exc) from exc


def exit_code(exc: ZeroEventHubError) -> int:
    """Return the exit code for an error, which `docs/reference/command-line.md` lists."""
    if isinstance(exc, AccessError) or getattr(exc, "status", None) in (401, 403):
        return output.REFUSED
    if isinstance(exc, OutcomeUnknownError):
        return output.UNKNOWN
    return output.DOWN if isinstance(exc, UnavailableError) else output.FAILED


def _with_help(message: str, exc: ZeroEventHubError) -> str:
    """Return a message, and below it the address of its docs and the id of the request."""
    request = getattr(exc, "request_id", None)
    logged = f" (request id in the publisher's log: {request})" if request else ""
    return f"{message}\nSee {exc.help}{logged}"


def _missing(exc: ModuleNotFoundError) -> str:
    """Return the module that is not installed. Raises the error again if it is not an extra's."""
    name = (exc.name or "").partition(".")[0]
    if name not in _EXTRA:
        raise exc
    return name


def _needs(module: str) -> click.ClickException:
    return click.ClickException(f"this command needs {module}. Install it: {INSTALL}")


def _not_installed(name: str, module: str) -> click.Command:
    """Return a command that says what to install, whatever it is given."""

    def refuse() -> None:
        raise _needs(module)

    return click.Command(
        name,
        callback=refuse,
        params=[click.Argument(["words"], nargs=-1, expose_value=False)],
        help=f"(needs the extra publisher: {INSTALL})",
        context_settings={"ignore_unknown_options": True},
        add_help_option=False,
    )


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package.__version__, prog_name="zeh-spark")
def zeh_spark() -> None:
    """Publish, serve, read and inspect ZeroEventHub feeds.

    \b
    Examples:
      zeh-spark create flights --partitions 4
      zeh-spark load flights flights.csv --key carrier
      zeh-spark serve --port 8080
      zeh-spark tail http://127.0.0.1:8080/flights --from first
      zeh-spark check https://orders.example/feed/v1
    """


def main() -> None:
    """Run the command line."""
    zeh_spark()
