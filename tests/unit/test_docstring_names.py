"""Names of modules and functions in docstrings and comments are those of the code."""

import importlib
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

PACKAGE = Path(__file__).parents[2] / "zeh_spark"
_DOTTED = re.compile(r"`([a-z_]+(?:\.\w+)+)`")
_CAMEL = re.compile(r"\.[a-z]+[A-Z]")
"""Options and properties of tables have such names."""


def modules() -> dict[str, list[str]]:
    """Return the full names of all modules and packages by the last part of their names."""
    found: dict[str, list[str]] = {}
    for file in PACKAGE.rglob("*.py"):
        parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        found.setdefault(parts[-1], []).append(".".join(parts))
    return found


def dotted_names(file: Path) -> Iterator[str]:
    """Yield the dotted names in backticks in a file's strings and comments."""
    for token in tokenize.generate_tokens(io.StringIO(file.read_text(encoding="utf-8")).readline):
        if token.type in {tokenize.STRING, tokenize.COMMENT}:
            found = _DOTTED.findall(token.string)
            yield from (name for name in found if not _CAMEL.search(name))


def resolves(module: str, rest: list[str]) -> bool:
    """Return whether the rest of a dotted name leads from a module to something that exists."""
    here: object = importlib.import_module(module)
    for name in rest:
        if isinstance(here, ModuleType) and not hasattr(here, name):
            try:
                here = importlib.import_module(f"{here.__name__}.{name}")
            except ModuleNotFoundError:
                return False
        elif name in getattr(here, "__annotations__", {}):
            return True  # a field, whose own members are not looked at
        elif not hasattr(here, name):
            return False
        else:
            here = getattr(here, name)
    return True


def test_names_that_begin_with_a_module_exist():
    """A reader who follows a name finds it."""
    known = modules()
    del known["spark"], known["http"]  # a session of Spark and a package of Python are called so
    missing = {
        f"{file.relative_to(PACKAGE)}: {name}"
        for file in PACKAGE.rglob("*.py")
        for name in dotted_names(file)
        for first, *rest in [name.split(".")]
        if first in known and not any(resolves(module, rest) for module in known[first])
    }

    assert missing == set()
