"""A check of the doctor: what was looked at, what was found, and what to do. Pure values."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum
from functools import partial


class State(str, Enum):
    """The result of a check."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    FAILURE = "failure"


@dataclass(frozen=True, slots=True)
class Check:
    """A check."""

    name: str
    found: str
    remedy: str = ""
    state: State = field(kw_only=True)

    def document(self) -> dict[str, str]:
        said = {"name": self.name, "state": self.state.value, "found": self.found}
        return {**said, "remedy": self.remedy} if self.remedy else said


ok = partial(Check, state=State.OK)
note = partial(Check, state=State.NOTE)
warning = partial(Check, state=State.WARNING)
failure = partial(Check, state=State.FAILURE)


def version_of(text: str) -> tuple[int, ...]:
    """Return the numbers at the beginning of a version: `4.2.0.dev1` → (4, 2, 0)."""
    found = re.match(r"\d+(\.\d+)*", text)
    return tuple(map(int, found[0].split("."))) if found else ()


def fits(version: str, requirement: str) -> bool:
    """Return whether a version fits a requirement like `pyspark<=4.2.0,>=4.0.1`.

    Conditions of another form than a comparison with numbers count as met.
    """
    have = version_of(version)
    for sign, text in re.findall(r"(<=|>=|<|>|==)\s*([0-9][0-9.]*)", requirement):
        wanted = version_of(text)
        width = max(len(have), len(wanted))
        left, right = (each + (0,) * (width - len(each)) for each in (have, wanted))
        met = {
            "<=": left <= right, ">=": left >= right, "<": left < right, ">": left > right,
            "==": left == right,
        }  # fmt: skip
        if not met[sign]:
            return False
    return True
