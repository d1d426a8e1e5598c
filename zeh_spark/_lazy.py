"""Names that a door imports on first use, so that importing it does not import PySpark.

Runs in every process that imports such a door.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazily(
    door: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a module that imports names on first use.

    `homes` has the names that modules of `zeh_spark` define, with spaces between them.
    """
    modules = {name: module for module, names in homes.items() for name in names.split()}
    names = sorted(modules)

    def given(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {door!r} has no attribute {name!r}")
        return getattr(import_module(f"zeh_spark.{modules[name]}"), name)

    return given, names.copy, names
