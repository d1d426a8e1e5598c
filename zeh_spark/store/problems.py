"""What a publisher refuses, made from the declared types (`protocol.problems`).

Rule for editors: `detail` says the value that came and what is allowed; facts are also members of
the document, so that a program need not read the sentence.
"""

from __future__ import annotations

from typing import Any

from zeh_spark.errors import ZeroEventHubError
from zeh_spark.protocol import problems
from zeh_spark.protocol.problems import ProblemType


class Problem(ZeroEventHubError):
    """A request that gets an error status instead of a page. A feed's `page` may raise it too.

    Args:
        type: one of `zeh_spark.protocol.problems`; it decides the status.
        detail: the value that came, what is allowed, what to do: for people.
        members: the facts, under the names that the type declares.

    Raises TypeError for a member that the type does not declare, and for one that lacks.
    """

    def __init__(self, type: ProblemType, detail: str, **members: Any) -> None:
        type.check(members.keys())
        super().__init__(detail)
        self.type = type
        self.detail = detail
        self.members = members

    @property
    def name(self) -> str:
        return self.type.name

    @property
    def status(self) -> int:
        return self.type.status

    def document(self) -> dict[str, Any]:
        """Return the RFC 9457 document."""
        return {
            "type": self.type.type,
            "title": self.type.title,
            "status": self.type.status,
            "detail": self.detail,
            **self.members,
        }

    def with_members(self, **more: Any) -> Problem:
        """Return the same problem with more members in its document."""
        return Problem(self.type, self.detail, **self.members, **more)


def bad_cursor(partition: int, cursor: str, allowed: str) -> Problem:
    return Problem(
        problems.MALFORMED_CURSOR,
        f"cursor{partition} is {cursor!r}; allowed are {allowed}",
        partition=partition,
        cursor=cursor,
    )


def cursor_gone(partition: int, cursor: str, oldest: str) -> Problem:
    return Problem(
        problems.CURSOR_GONE,
        f"cursor{partition} is {cursor!r}, and events behind it were removed because of the feed's "
        f"retention; the oldest that are left are behind {oldest!r}",
        partition=partition,
        cursor=cursor,
        oldest=oldest,
    )


def other_history(partition: int, cursor: str, why: str) -> Problem:
    return Problem(
        problems.CURSOR_OF_ANOTHER_HISTORY,
        f"cursor{partition} is {cursor!r}, but {why}: it belongs to another feed, or to a history "
        f"that a restore of this feed undid; start from _first, or from a cursor that this feed "
        f"gave",
        partition=partition,
        cursor=cursor,
    )
