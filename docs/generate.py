"""Write the generated parts of pages: tables of options, the command line, the map of packages.

`python docs/generate.py` writes them; `make docs` runs it, and `tests/docs/test_tables.py` fails if
the committed pages are stale.

A generated part stands between `<!-- generated: NAME -->` and `<!-- end of NAME -->`. The text
around it is written by hand and stays as it is.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import click

from zeh_spark.client.options.client_options import ClientOptions
from zeh_spark.client.options.option_metadata import Declared, declared
from zeh_spark.spark.sink.options import SinkOptions
from zeh_spark.spark.source.options import SourceOptions
from zeh_spark.tools.check.rules import RULES
from zeh_spark.tools.check.ways import COMPARED
from zeh_spark.tools.cli.main import zeh_spark
from zeh_spark.tools.cli.output import COMMON

ROOT = Path(__file__).parents[1]
_COLUMNS = ("default", "query", "meaning")
_FACTS = re.compile(r"(?:^|  )\[([^\]]+)\]")
_LABELS = {"default": "Default", "env var": "Environment variable"}


def source_options() -> str:
    """Return the table of the source's options."""
    return _options("option", list(declared(SourceOptions)), SourceOptions)


def sink_options() -> str:
    """Return the table of the options that only the sink has."""
    shared = declared(ClientOptions)
    own = [name for name in declared(SinkOptions) if name not in shared]
    return _options("write option", own, SinkOptions)


def connection_options() -> str:
    """Return the names of the options that source and sink share."""
    return ", ".join(f"`{name}`" for name in declared(ClientOptions))


def _options(first: str, names: list[str], kind: type[ClientOptions]) -> str:
    options = declared(kind)
    rows = [(f"`{name}`", *_described(options[name])) for name in names]
    return _table((first, *_COLUMNS), rows)


def _described(about: Declared) -> tuple[str, ...]:
    shown = "" if about.default is None else f"`{about.default}`"
    return shown, about.query, about.meaning


def commands() -> str:
    """Return a section for each command, in the order of the alphabet."""
    context = click.Context(zeh_spark, info_name="zeh-spark")
    return "\n\n".join(_commands(zeh_spark, context))


def _commands(group: click.Group, context: click.Context) -> Iterator[str]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command
        yield _command(command, context)
        if isinstance(command, click.Group):
            yield from _commands(command, click.Context(command, context, command.name))


def rules() -> str:
    """Return the table of the rules that `zeh-spark check` judges."""
    rows = [(f"`{each.id}`", each.title, each.source) for each in RULES]
    return _table(("rule", "what holds if it passes", "source"), rows)


def ways() -> str:
    """Return the table of the ways of reading that `zeh-spark check` compares."""
    rows = [(each.what.replace("*/*", "`*/*`"), f"`{each.rule}`") for each in COMPARED]
    return _table(("the events must be the same", "rule"), rows)


def packages() -> str:
    """Return the table of the packages: the first sentences of their docstrings."""
    rows = []
    for path in sorted((ROOT / "zeh_spark").glob("*/**/__init__.py")):
        about = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        name = path.parent.relative_to(ROOT / "zeh_spark").as_posix()
        rows.append((f"`{name}`", about.partition("\n\n")[0].replace("\n", " ")))
    return _table(("package", "holds"), rows)


def _command(command: click.Command, parent: click.Context) -> str:
    context = click.Context(command, info_name=command.name, parent=parent)
    usage = " ".join(command.collect_usage_pieces(context))
    options = [
        (f"`{names}`".replace("|", "\\|"), _meaning(text))
        for option in command.params
        if isinstance(option, click.Option) and option.name not in COMMON
        for names, text in filter(None, [option.get_help_record(context)])
    ]
    path = context.command_path
    parts = [f"## {path.removeprefix('zeh-spark ')}", f"```text\n{path} {usage}\n```"]
    parts += _paragraphs(inspect.cleandoc(command.help or ""))
    if options:
        parts.append(_table(("option", "meaning"), options))
    return "\n\n".join(parts)


def _meaning(text: str) -> str:
    """Return what click says about an option: its help, and facts in brackets, as a cell."""
    facts = [fact for group in _FACTS.findall(text) for fact in group.split("; ")]
    told = [_markdown(_FACTS.sub("", text)), *map(_fact, facts)]
    return " ".join(told).strip().replace("|", "\\|")


def _fact(fact: str) -> str:
    """Return `default: 4`, `required` or `x>=1` as a sentence."""
    name, colon, value = fact.partition(": ")
    if colon:
        return f"{_LABELS.get(name, name)}: `{value}`."
    return "**Required.**" if fact == "required" else f"Range: `{fact}`."


def _paragraphs(text: str) -> list[str]:
    """Return click's paragraphs as Markdown; those that it leaves as they are become code."""
    found = []
    for paragraph in text.split("\n\n"):
        if not paragraph.startswith("\b\n"):
            found.append(_markdown(" ".join(paragraph.split())))
            continue
        first, *lines = paragraph.removeprefix("\b\n").splitlines()
        found += [first, "```text\n" + inspect.cleandoc("\n" + "\n".join(lines)) + "\n```"]
    return found


def _markdown(text: str) -> str:
    """Return plain text as Markdown: options and brackets as code."""
    text = re.sub(r"(?<![\w`-])(--[a-z][a-z-]*)", r"`\1`", text)
    text = re.sub(r"\{[^}]*\}", lambda match: f"`{match[0]}`", text)
    return text.replace("'*'", "`'*'`")


def _table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join(_row(cells) for cells in lines)


def _row(cells: tuple[str, ...]) -> str:
    if set(cells) == {"---"}:
        return "|" + "|".join(cells) + "|"
    return "| " + " | ".join(cells) + " |"


PARTS: dict[str, dict[str, Callable[[], str]]] = {
    "docs/reference/source-options.md": {"source options": source_options},
    "docs/reference/sink-options.md": {
        "sink options": sink_options,
        "connection options": connection_options,
    },
    "docs/reference/command-line.md": {"commands": commands},
    "docs/guides/check-a-publisher.md": {"ways": ways, "rules": rules},
    ".github/CONTRIBUTING.md": {"packages": packages},
}


def generated(page: str, text: str) -> str:
    """Return the text of a page with its generated parts as the code has them now.

    Args:
        page: path of the page in the repository.
        text: the page as it is.

    Raises:
        ValueError: the page lacks the marks of a part.
    """
    for name, part in PARTS[page].items():
        begin, end = f"<!-- generated: {name} -->", f"<!-- end of {name} -->"
        before, found, rest = text.partition(begin)
        _, ended, after = rest.partition(end)
        if not found or not ended:
            raise ValueError(f"{page} lacks {begin} or {end}")
        text = f"{before}{begin}\n\n{part()}\n\n{end}{after}"
    return text


def main() -> None:
    """Write the pages."""
    for page in PARTS:
        path = ROOT / page
        path.write_text(generated(page, path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
