"""Each command that the product prints is one that the command line has, with these options."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click

from tests.cases import each_case
from zeh_spark.tools.cli.main import zeh_spark

ROOT = Path(__file__).parents[3]
PLACES = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "zeh_spark").rglob("*")]
FILES = sorted(
    each
    for each in PLACES
    if each.suffix in {".py", ".html", ".yaml", ".md"} and "zeh-spark " in each.read_text("utf-8")
)
PROSE = {
    "cannot", "did", "does", "has", "here", "is", "knows", "list", "of", "on", "reads", "runs",
    "that", "version", "without", "works",
}  # fmt: skip
"""Words that follow the name of the product in sentences that name no command."""

_CALL = re.compile(r"zeh-spark ((?:(?!zeh-spark)[^.;:`<)\"\\|\n]|[.;:](?!\s|$))+)")
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")


def texts(file: Path) -> Iterator[str]:
    """The texts of a file: of Python those that are not code, with `X` for what is filled in."""
    content = file.read_text("utf-8")
    if file.suffix == ".md":
        yield from re.findall(r"(?:^|`)(zeh-spark [^`\n]*)", content, re.MULTILINE)
        return
    if file.suffix != ".py":
        yield " ".join(content.split())
        return
    tree = ast.parse(content)
    parts = {
        id(each)
        for joined in ast.walk(tree)
        if isinstance(joined, ast.JoinedStr)
        for each in joined.values
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield "".join(
                str(each.value) if isinstance(each, ast.Constant) else "X" for each in node.values
            )


def mistakes(call: str) -> list[str]:
    """What of a call of `zeh-spark` the command line does not know."""
    words = re.findall(r"[\w-]+", call)
    command: click.Command = zeh_spark
    context = click.Context(zeh_spark)
    while isinstance(command, click.Group):
        if not words or words[0].startswith("-") or words[0].isupper():  # a placeholder
            break
        found = command.get_command(context, words[0])
        if found is None:
            known = command is zeh_spark and words[0] in PROSE
            return [] if known else [f"no command {words[0]!r}"]
        command, words = found, words[1:]
    known = {
        name for each in command.get_params(context) for name in (*each.opts, *each.secondary_opts)
    }
    return [f"{command.name} has no {each}" for each in _OPTION.findall(call) if each not in known]


@each_case("file", [str(each.relative_to(ROOT)) for each in FILES])
def test_every_printed_command_exists(file: str) -> None:
    """I can paste it: in errors, in the console, in the texts of other commands."""
    found = [
        (call, mistake)
        for text in texts(ROOT / file)
        for call in _CALL.findall(text)
        for mistake in mistakes(call)
    ]
    assert [] == found


def test_a_command_that_does_not_exist_is_found() -> None:
    """A page of the console once named one."""
    assert ["no command 'outbox'"] == mistakes("outbox check orders")
    assert ["lag has no --checkpiont"] == mistakes("lag URL --checkpiont DIR")
    assert ["no command 'creat'"] == mistakes("token creat NAME")
    assert [] == mistakes("token create NAME --read FEED")
