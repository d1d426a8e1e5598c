"""The key of a session, and the number of a step that has a name.

The list of steps is kept in the checkpoint (see `state.opened`), because another list would give
waiting events other numbers.

Rule for editors: a key of several parts has the length of each part before it, so that ("a", "bc")
and ("ab", "c") are two sessions. A key or a number is never changed for a checkpoint that exists.

Runs on the driver; builds expressions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from zeh_spark.errors import OptionError
from zeh_spark.spark.stateful import requirements

Key = str | Column | Sequence[str | Column]
"""The key of a session: a column or SQL expression, or several."""

Names = Sequence[str] | Mapping[str, Sequence[str]]
"""The names of a session's steps in order, or such lists by the kind of session."""


class Steps(NamedTuple):
    """The steps of sessions.

    Attributes:
        lists: The names of steps by the kind of session; a single list is of the kind "". Empty if
            steps are numbers.
    """

    lists: Mapping[str, Sequence[str]]
    kind: Column

    @property
    def key_part(self) -> Column | None:
        """The kind as a part of the session's key; None if there is a single list."""
        return self.kind if self.lists.keys() - {""} else None

    def number(self, step: str) -> Column:
        """Return the number of a column's step, BIGINT; NULL for an unknown step or kind."""
        if not self.lists:
            return requirements.number(step)
        places = {
            kind: F.nullif(F.array_position(F.array(*map(F.lit, names)), F.col(step)), F.lit(0)) - 1
            for kind, names in self.lists.items()
        }
        return self._by_kind(places)

    def last(self, declared: str) -> Column:
        """Return the number of the last step, BIGINT; NULL for an unknown kind.

        If steps are numbers, it is the one that a column declares; NULL if that is no number.
        """
        if not self.lists:
            return requirements.number(declared)
        ends = {kind: F.lit(len(names) - 1).cast("long") for kind, names in self.lists.items()}
        return self._by_kind(ends)

    def problem(self, step: Column) -> Column:
        """Return what is wrong with an event that has no number."""
        says = {
            kind: requirements.says("step", step, _one_of(names))
            for kind, names in self.lists.items()
        }
        unknown = requirements.says("kind", self.kind, _one_of([*self.lists]))
        return F.coalesce(self._by_kind(says), unknown)

    def _by_kind(self, values: Mapping[str, Column]) -> Column:
        found = F.lit(None)
        for kind, value in values.items():
            found = F.when(self.kind == kind, value).otherwise(found)
        return found


def key(df: DataFrame, session: Key, kind: Column | None = None) -> Column:
    """Return the key of an event's session, STRING; '' if a part of it is NULL.

    `session` is the key, or its parts; `kind` becomes the first part. Raises OptionError if a part
    is not an expression with an exact text (`requirements.text`).
    """
    given = [session] if isinstance(session, str | Column) else list(session)
    if not given:
        raise OptionError("session=[] must have at least one column", option="session")
    parts = [requirements.text(df, "session", each) for each in given]
    parts = parts if kind is None else [kind, *parts]
    if len(parts) == 1:
        return F.coalesce(parts[0], F.lit(""))
    sized = [F.concat(F.char_length(each).cast("string"), F.lit(":"), each) for each in parts]
    return F.coalesce(F.concat(*sized), F.lit(""))


def checked(df: DataFrame, steps: Names | None, kind: str | Column | None) -> Steps:
    """Return the steps. Raises OptionError if they are not valid."""
    if steps is None or kind is None:
        if kind is not None:
            raise OptionError("kind= needs steps=, lists of steps by kind", option="kind")
        if steps is None:
            return Steps({}, F.lit(""))
        if isinstance(steps, Mapping):
            raise OptionError(
                f"steps= has lists for the kinds {', '.join(map(repr, steps))}. Give kind=, a "
                f"column or expression with the kind of an event's session",
                option="kind",
            )
        return Steps({"": _names(steps)}, F.lit(""))
    if not isinstance(steps, Mapping) or not steps:
        raise OptionError(
            "kind= needs steps= as a mapping from each kind to its list of steps", option="steps"
        )
    if not all(isinstance(each, str) and each for each in steps):
        raise OptionError(
            f"steps= has the kinds {', '.join(map(repr, steps))}. They must be texts",
            option="steps",
        )
    lists = {name: _names(names) for name, names in steps.items()}
    return Steps(lists, requirements.text(df, "kind", kind))


def _names(steps: Sequence[str]) -> list[str]:
    names = [] if isinstance(steps, str) else list(steps)
    known = names and all(isinstance(each, str) and each for each in names)
    if not known or len(set(names)) < len(names):
        raise OptionError(
            f"steps={steps!r} must be a list of different names, in their order", option="steps"
        )
    return names


def _one_of(names: Sequence[str]) -> str:
    return " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
