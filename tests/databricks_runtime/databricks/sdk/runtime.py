"""What notebooks use of Databricks' `dbutils`, with its public interface.

The widgets' values, as a job's `base_parameters` give them, and the secrets come from the
environment variable `EMULATED_DATABRICKS`, as JSON.
"""

from __future__ import annotations

import json
import os
from types import SimpleNamespace

_GIVEN = json.loads(os.environ["EMULATED_DATABRICKS"])


class Widgets:
    """A widget exists once it was made; a parameter of the run takes the place of its default."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}

    # The names of these arguments are Databricks'.
    def text(self, name: str, defaultValue: str, label: str | None = None) -> None:
        self._values[name] = _GIVEN["widgets"].get(name, defaultValue)

    def get(self, name: str) -> str:
        if name not in self._values:
            raise ValueError(f"InputWidgetNotDefined: No input widget named {name} is defined")
        return self._values[name]


class Secrets:
    def get(self, scope: str, key: str) -> str:
        if key not in _GIVEN["secrets"].get(scope, {}):
            raise ValueError(f"Secret does not exist with scope: {scope} and key: {key}")
        return str(_GIVEN["secrets"][scope][key])


class Library:
    def restartPython(self) -> None:
        """Do nothing: `%pip`, after which it is called, is no Python, and not run here."""


dbutils = SimpleNamespace(widgets=Widgets(), secrets=Secrets(), library=Library())
