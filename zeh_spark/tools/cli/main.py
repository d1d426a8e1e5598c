"""The group `zeh-spark`: it loads commands, and turns errors into messages and exit codes.

A command is loaded only when it is used, so that client commands need nothing but the core, and
start fast. The list of commands loads none: shells ask for it at each Tab.

Rule for editors: a new command is a line of `_WITHOUT_STORE` or, if it needs the extra `publisher`,
of `_ON_STORES`. An exit code keeps its meaning for ever, because scripts decide by it. A traceback
is always a bug of ours.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click
from click.shell_completion import CompletionItem

import zeh_spark as package
from zeh_spark.errors import (
    AccessError,
    NotCommittedError,
    OptionError,
    OutcomeUnknownError,
    PublisherError,
    UnavailableError,
    ZeroEventHubError,
)
from zeh_spark.tools.cli import output

_WITHOUT_STORE = {
    "audit": ("feed_commands", "Check that what was published is on a feed, unaltered."),
    "await": ("reader_commands", "Wait until a reader has committed a batch."),
    "check": ("diagnosis_commands", "Test any publisher against the ZeroEventHub specification."),
    "cursors": ("reader_commands", "Split or merge queries: print their startingCursors."),
    "dead-letters": ("repair_commands", "Print the dead letters of a feed."),
    "doctor": ("diagnosis_commands", "Find what keeps Spark from reading and publishing."),
    "explain": ("explain_command", "Print what an error means, and what to do about it."),
    "feeds": ("reader_commands", "List the feeds of a publisher, or of a store (extra)."),
    "lag": ("diagnosis_commands", "Show how many events a reader has not read yet."),
    "producers": ("feed_commands", "List the producers of a feed, or the batches of one."),
    "publish": ("feed_commands", "Publish events from standard input as one batch."),
    "replay-dead": ("repair_commands", "Publish dead letters that were repaired."),
    "sessions": ("repair_commands", "End, release, retry or skip a session by hand."),
    "tail": ("reader_commands", "Print the events of a feed, and wait for more."),
}
_ON_STORES = {
    "admin-log": ("access_commands", "Show who changed what in a store, and when."),
    "backup": ("store_commands", "Copy a SQLite store to a file, also while it is served."),
    "clock": ("store_commands", "Compare the clock with the last time that a store knows."),
    "create": ("store_commands", "Create an empty feed, and the store if it is missing."),
    "cursor-sets": ("retention_commands", "Show or delete the positions kept for readers."),
    "ddl": ("outbox_commands", "Print the SQL that prepares a table to be a feed."),
    "delete-producer": ("store_commands", "Delete a producer permanently."),
    "load": ("load_command", "Load files into a feed: NDJSON, CSV or Parquet."),
    "migrate": ("store_commands", "Upgrade a store that an older version has made."),
    "new-history": ("outbox_commands", "Tell readers that a feed was restored from a backup."),
    "offload": ("segment_commands", "Move old events to a folder or an object store."),
    "prune": ("retention_commands", "Show or remove the events that are past the retention."),
    "quickstart": ("quickstart", "Serve a feed with sample data, and print a script."),
    "restore": ("store_commands", "Replace a SQLite store with a backup."),
    "retention": ("retention_commands", "Show or set how long a feed keeps its events."),
    "schema": ("store_commands", "Show or change the schema of a feed's events."),
    "seal": ("segment_commands", "Pack old chunks, so that they take less room."),
    "segments": ("segment_commands", "Check the objects that have old events."),
    "serve": ("serve_command", "Serve the feeds of a store, and tables, over HTTP."),
    "token": ("access_commands", "Make, list and revoke tokens."),
}
COMMANDS = _WITHOUT_STORE | _ON_STORES
"""The commands by name: the module, and what `zeh-spark --help` and shell completion say of it."""

_FUNCTIONS = {
    "await": "await_batch",
    "cursor-sets": "list_cursor_sets",
    "dead-letters": "list_letters",
    "segments": "segments_group",
    "sessions": "sessions_group",
}
"""The functions that are not called as their commands."""

INSTALL = 'pip install "zeh-spark[publisher]"'
_EXTRA = {
    "anyio", "httptools", "jinja2", "jsonschema_rs", "jwt", "prometheus_client", "psycopg",
    "sqlalchemy", "starlette", "uvicorn", "yaml",
}  # fmt: skip
"""What only the extra `publisher` installs, by the names of the modules."""

_OPTIONS = {
    "url": "URL",
    "token": "ZEH_TOKEN",
    "tokenFile": "--token-file",
    "oauth.tokenUrl": "ZEH_OAUTH_TOKEN_URL",
    "oauth.clientId": "ZEH_OAUTH_CLIENT_ID",
    "oauth.clientSecret": "ZEH_OAUTH_CLIENT_SECRET",
    "oauth.scope": "ZEH_OAUTH_SCOPE",
    "auth": "ZEH_AUTH",
    "auth.scope": "ZEH_AUTH_SCOPE",
    "caFile": "--ca-file",
    "clientCertFile": "--client-cert",
    "clientKeyFile": "--client-key",
    "partitionCount": "--partitions",
}
"""What commands call options of the format."""


class _Commands(click.Group):
    """Loads commands by name, and turns our errors into messages with exit codes.

    Any other error is a bug, and shows its traceback.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        if cmd_name not in self.commands:
            module, _ = COMMANDS[cmd_name]
            function = _FUNCTIONS.get(cmd_name, cmd_name.replace("-", "_"))
            try:
                command = getattr(import_module(f"zeh_spark.tools.cli.{module}"), function)
            except ModuleNotFoundError as exc:
                return _not_installed(cmd_name, _missing(exc))
            self.add_command(output.equipped(command), cmd_name)
        return self.commands[cmd_name]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of the commands, without loading them (see `click.Group`)."""
        for head, group in (
            ("Commands that need no store", _WITHOUT_STORE),
            ("Commands that work on a store, or serve it (extra: publisher)", _ON_STORES),
        ):
            with formatter.section(head):
                formatter.write_dl([(name, about) for name, (_, about) in group.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return what may follow, without loading commands (see `click.Group`)."""
        fitting = (name for name in sorted(COMMANDS) if name.startswith(incomplete))
        named = [CompletionItem(name, help=COMMANDS[name][1]) for name in fitting]
        return named + click.Command.shell_complete(self, ctx, incomplete)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the options, and note whether errors are wanted as JSON (see `click.Command`)."""
        output.note_json(ctx, args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as exc:
            raise _needs(_missing(exc)) from exc
        except click.UsageError as exc:  # wrong words, which click has found
            raise output.wrong_usage(exc) from exc
        except OptionError as exc:
            said = f"{_option_error(exc)}\n{exc.see}"
            raise output.wrong_usage(click.UsageError(said), exc) from exc
        except ZeroEventHubError as exc:
            said = f"[{exc.code}] {_message(exc)}\n{exc.see}"
            raise output.Failure(said, exit_code(exc), exc) from exc


def exit_code(exc: ZeroEventHubError) -> int:
    """Return the exit code for an error, which `docs/reference/command-line.md` lists."""
    if isinstance(exc, AccessError) or getattr(exc, "status", None) in (401, 403):
        return output.REFUSED
    if isinstance(exc, OutcomeUnknownError):
        return output.UNKNOWN
    if isinstance(exc, NotCommittedError):
        return output.DIFFERENT
    return output.DOWN if isinstance(exc, UnavailableError) else output.FAILED


def _message(exc: ZeroEventHubError) -> str:
    """Return what an error says, without its code, in the words of the command line.

    The advice to set options is left out unless the publisher refused: a command sets
    `retryTimeout` itself, for instance.
    """
    said = exc.what
    advice = exc.advice if isinstance(exc, PublisherError) else None
    if advice:
        names = [_OPTIONS.get(each, each) for each in advice.options]
        said += f"; {advice.text.format(*names)}"
    for name, value in _overrides(exc).items():
        said = said.replace(f"{name}={value}", f"--allow {name}={value}")
    return said


def _option_error(exc: OptionError) -> str:
    """Return what an error about an option says, with the command's name for it."""
    said = str(exc)
    for name, own in _OPTIONS.items():
        said = said.replace(f"option {name!r}", own)
    return said


def _overrides(exc: ZeroEventHubError) -> dict[str, Any]:
    """Return the overrides that a refusal names, whether the publisher or the store refused."""
    facts: Any = getattr(exc, "facts", None) or getattr(exc, "members", None) or {}
    option = facts.get("option")
    return option if isinstance(option, dict) else {}


def _missing(exc: ModuleNotFoundError) -> str:
    """Return the module that is not installed. Raises the error again if it is not an extra's."""
    name = (exc.name or "").partition(".")[0]
    if name not in _EXTRA:
        raise exc
    return name


def _needs(module: str) -> output.Failure:
    return output.Failure(f"this command needs {module}. Install it: {INSTALL}", output.FAILED)


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
    zeh_spark()
