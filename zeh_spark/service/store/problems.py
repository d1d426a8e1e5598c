"""What a publisher refuses, made from the declared types (`wire.problems`).

Rule for editors: `detail` has the value that came and what is allowed. Facts are also members of
the document, so that a program need not read the sentence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zeh_spark.errors import ZeroEventHubError
from zeh_spark.wire import problems
from zeh_spark.wire.problems import ProblemType


class Problem(ZeroEventHubError):
    """A request that gets an error status instead of a page. A feed's `page` may raise it too.

    Args:
        type: One of `zeh_spark.wire.problems`; it decides the status.
        detail: The value that came, what is allowed, and what to do, for people.
        members: The facts, under the names that the type declares.

    Raises:
        TypeError: A member is not declared by the type, or a required one is missing.
    """

    def __init__(self, type: ProblemType, detail: str, **members: Any) -> None:
        type.check(members.keys())
        super().__init__(detail, anchor=problems.anchor(type.name))
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
        return Problem(self.type, self.detail, **self.members, **more)


def bad_cursor(partition: int, cursor: str, allowed: str) -> Problem:
    return Problem(
        problems.MALFORMED_CURSOR,
        f"cursor{partition} is {cursor!r}; allowed are {allowed}",
        partition=partition,
        cursor=cursor,
    )


def cursor_gone(
    partition: int, cursor: str, oldest: str, lost: Mapping[int, str] | None = None
) -> Problem:
    """Return the problem of a cursor after which events were removed.

    The oldest events that are left come after the cursor `oldest`. `lost` is the same for all
    partitions with such a cursor, if they are known.
    """
    return Problem(
        problems.CURSOR_GONE,
        f"cursor{partition} is {cursor!r}, and events after it were removed because of the feed's "
        f"retention; the oldest that are left are after {oldest!r}",
        partition=partition,
        cursor=cursor,
        oldest=oldest,
        lost={str(each): left for each, left in (lost or {partition: oldest}).items()},
    )


def no_cursors() -> Problem:
    return Problem(problems.CURSORSET_UNSUPPORTED, "this feed keeps no cursors for readers")


def no_cursors_on_replica() -> Problem:
    return Problem(
        problems.CURSORSET_UNSUPPORTED,
        "this publisher serves a replica, which cannot keep cursors, and may not have the last "
        "ones that are kept; leave cursorset out, and keep the cursors yourself, or ask a "
        "publisher of the primary",
    )


def other_history(partition: int, cursor: str, why: str, *, replica: bool = False) -> Problem:
    """Return the problem of a cursor that this feed, as it is now, did not give.

    `why` is what shows it. A `replica` says so of itself: its primary, which may be further, may
    have given the cursor.
    """
    if replica:
        return Problem(
            problems.REPLICA_BEHIND,
            f"cursor{partition} is {cursor!r}, but {why} in this replica, which may lag behind its "
            f"primary; ask again, or ask a publisher of the primary",
            partition=partition,
            cursor=cursor,
        )
    return Problem(
        problems.CURSOR_OF_ANOTHER_HISTORY,
        f"cursor{partition} is {cursor!r}, but {why}: it belongs to another feed, or to a history "
        f"that a restore of this feed undid; start from _first, or from a cursor that this feed "
        f"gave",
        partition=partition,
        cursor=cursor,
    )
