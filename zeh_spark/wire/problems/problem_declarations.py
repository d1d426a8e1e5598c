"""The type of a problem, and how problems are declared. Pure; runs in clients and the publisher."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from zeh_spark.errors import CODES

CONTENT_TYPE = "application/problem+json"

URN = "urn:zeroeventhub:problem:"
"""What the `type` of each problem document of our publisher begins with."""

SERVER = "zeh-spark"
"""What our publisher calls itself at its root (`GET /`)."""

REMEDY = "remedy"
"""The member that says in words what makes the publisher accept the batch."""

Schema = dict[str, Any]
"""A JSON schema."""


@dataclass(frozen=True, slots=True, eq=False)
class ProblemType:
    """A kind of problem. There is one object for each kind.

    Args:
        name: the end of the document's `type`, after URN.
        says: what happened, and what a client does then.
        members: a JSON schema for each member, besides those that every document has.
    """

    name: str
    status: int
    says: str
    members: Mapping[str, Schema] = field(default_factory=dict)
    optional: Set[str] = frozenset()

    @property
    def type(self) -> str:
        return URN + self.name

    @property
    def title(self) -> str:
        return self.name.replace("-", " ").capitalize()

    @property
    def is_transient(self) -> bool:
        """Whether the same call may have another answer a little later."""
        return is_transient(self.status, self.name)

    @property
    def has_retry_after(self) -> bool:
        """Whether the publisher's answer has the header Retry-After."""
        return self.status in {429, 503}

    def check(self, members: Set[str]) -> None:
        """Raise TypeError for a member that is not declared, or that is missing."""
        if unknown := members - self.members.keys():
            raise TypeError(f"problem {self.name!r} has no member {sorted(unknown)[0]!r}")
        if missing := self.members.keys() - self.optional - members:
            raise TypeError(f"problem {self.name!r} needs the member {sorted(missing)[0]!r}")


_LASTING = {"bad-row", "segment-lost", "too-many-cursor-sets", "too-many-producers"}
"""The problems with a status of a fault of the server that do not pass by themselves."""


def is_transient(status: int, name: str | None = None) -> bool:
    """Return whether the same call may have another answer a little later."""
    return name not in _LASTING and (status in {408, 425, 429} or status >= 500)


def name_in(document: Mapping[str, object]) -> str | None:
    """Return the name of the problem in a document of our publisher; None for any other document.

    The name may be one of a newer version, which is not declared here.
    """
    kind = document.get("type")
    if isinstance(kind, str) and kind.startswith(URN):
        return kind.removeprefix(URN)
    return None


PROBLEMS: dict[str, ProblemType] = {}
"""All types by name."""


def anchor(name: str | None) -> str | None:
    """Return a problem's place in the page of errors; None if this version does not know it."""
    return name if name in PROBLEMS else None


def declare(
    name: str, status: int, says: str, *, optional: Set[str] = frozenset(), **members: Schema
) -> ProblemType:
    declared = ProblemType(name, status, says, members, optional)
    if PROBLEMS.setdefault(name, declared) is not declared:
        raise ValueError(f"problem {name!r} is declared twice")
    CODES[name] = f"ZEH_{name.upper().replace('-', '_')}"
    return declared


def declare_bad(
    name: str, says: str, *, optional: Set[str] = frozenset(), **members: Schema
) -> ProblemType:
    return declare(name, 400, f"{says} {FIX}", optional=optional, **members)


def declare_refusal(name: str, status: int, says: str, **members: Schema) -> ProblemType:
    """Declare a refusal of a batch, which has the batch and the remedy as members."""
    return declare(name, status, says, optional=frozenset(), **BATCH, **members)


def record(**members: Schema) -> Schema:
    return {"type": "object", "properties": members, "required": list(members)}


AGAIN = "Send the same call again."
FIX = "A mistake of the client; repeating does not help."

TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
BATCH = {"producer": TEXT, "incarnation": TEXT, "run": TEXT, "batch": COUNT, REMEDY: TEXT}
