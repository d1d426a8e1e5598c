"""The group `zeh-spark`: what it loads, and what it says of its commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import click

from tests.cases import each_case
from zeh_spark.tools.cli import main

LOADED = """
import json, os, sys
there = set(sys.modules)
try:
    {statement}
except SystemExit:
    pass
loaded = set(sys.modules) - there
ours = sorted(name for name in loaded if name.startswith("zeh_spark."))
others = sorted({{name.partition(".")[0] for name in loaded}} - sys.stdlib_module_names)
print(json.dumps([ours, others]), file=sys.__stderr__)
"""


def loaded(statement: str, **environment: str) -> tuple[set[str], set[str]]:
    """What a fresh process loads: modules of ours, and packages that Python does not bring."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED.format(statement=statement)],
        env={**os.environ, **environment}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    ours, others = json.loads(done.stderr.splitlines()[-1])
    return set(ours), set(others)


HELP = (
    "from zeh_spark.tools.cli.main import zeh_spark; zeh_spark(['--help'], prog_name='zeh-spark')"
)
TAB = "from zeh_spark.tools.cli.main import zeh_spark; zeh_spark(prog_name='zeh-spark')"
TAB_ENVIRONMENT = {
    "COMP_WORDS": "zeh-spark ",
    "COMP_CWORD": "1",
    "_ZEH_SPARK_COMPLETE": "bash_complete",
}


LISTED = {f"zeh_spark.tools.cli{each}" for each in ("", ".main", ".output")}


@each_case(
    ("statement", "environment", "ours", "others"),
    [
        ("import zeh_spark", {}, set(), {"zeh_spark"}),
        (HELP, {}, LISTED, {"zeh_spark", "click"}),
        (TAB, TAB_ENVIRONMENT, LISTED, {"zeh_spark", "click"}),
    ],
)
def test_what_is_not_used_is_not_loaded(
    statement: str, environment: dict[str, str], ours: set[str], others: set[str]
) -> None:
    """`import zeh_spark` takes milliseconds: PySpark, PyArrow and the rest wait for their use; and
    `zeh-spark --help` and each Tab, which load no command, answer at once.
    """
    found, packages = loaded(statement, **environment)

    assert others == packages
    assert ours == {name for name in found if name.startswith("zeh_spark.tools.cli")}
    assert ours or {"zeh_spark._lazy"} == found


EACH_HELP = (
    "from zeh_spark.tools.cli.main import COMMANDS, zeh_spark; "
    "[zeh_spark([each, '--help'], standalone_mode=False) for each in COMMANDS]"
)


def test_the_help_of_a_command_loads_nothing_that_the_command_works_with() -> None:
    """I read a command's help as soon as I ask, and without the extra `publisher`."""
    found, packages = loaded(EACH_HELP)
    modules = {f"zeh_spark.tools.cli.{module}" for module, _ in main.COMMANDS.values()}

    assert modules <= found
    assert packages <= {"zeh_spark", "click", "msgspec", "typing_extensions"}
    assert set() == {each for each in found if each.endswith((".client_options", ".interface"))}


def test_each_command_is_in_the_list_of_what_it_talks_to() -> None:
    """`zeh-spark --help` is right about which commands need a publisher alone."""
    context = click.Context(main.zeh_spark)
    commands = {name: main.zeh_spark.get_command(context, name) for name in main.COMMANDS}

    sending = {
        name
        for name, command in commands.items()
        if command
        for each in getattr(command, "commands", {"": command}).values()
        if any("--token-file" in option.opts for option in each.params)
    }

    assert set(main._WITHOUT_STORE) == sending | {"cursors", "explain"}
    assert main._WITHOUT_STORE.keys() & main._ON_STORES.keys() == set()


def test_what_is_said_of_a_command_fits_a_terminal() -> None:
    """The list has one line for each command, 80 columns wide, in the order of the alphabet."""
    for group in (main._WITHOUT_STORE, main._ON_STORES):
        room = 80 - len("    ") - max(map(len, group))
        assert [] == [name for name, (_, about) in group.items() if len(about) > room]
        assert sorted(group) == list(group)
        assert all(about.endswith(".") for _, about in group.values())
