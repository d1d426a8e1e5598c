"""What a publisher refuses, as RFC 9457 problem documents.

Rule for editors: `detail` says the value that came and what is allowed; facts are also members of
the document, so that a program need not read the sentence. Names of problems are part of the API:
clients compare `type`.
"""

from __future__ import annotations

from typing import Any

from zeh_spark.errors import ZeroEventHubError

CONTENT_TYPE = "application/problem+json"


class Problem(ZeroEventHubError):
    """A request that gets an error status instead of a page. A feed's `page` may raise it too."""

    def __init__(self, name: str, status: int, detail: str, **members: Any) -> None:
        super().__init__(detail)
        self.name = name
        self.status = status
        self.detail = detail
        self.members = members

    def document(self) -> dict[str, Any]:
        return {
            "type": f"urn:zeroeventhub:problem:{self.name}",
            "title": self.name.replace("-", " ").capitalize(),
            "status": self.status,
            "detail": self.detail,
            **self.members,
        }

    def with_members(self, **more: Any) -> Problem:
        """Return the same problem with more members in its document."""
        return Problem(self.name, self.status, self.detail, **self.members, **more)


def bad_request(name: str, detail: str, **members: Any) -> Problem:
    return Problem(name, 400, detail, **members)


def bad_cursor(partition: int, cursor: str, allowed: str) -> Problem:
    return bad_request(
        "malformed-cursor",
        f"cursor{partition} is {cursor!r}; allowed are {allowed}",
        partition=partition,
        cursor=cursor,
    )


def cursor_gone(partition: int, cursor: str, oldest: str) -> Problem:
    return Problem(
        "cursor-gone",
        410,
        f"cursor{partition} is {cursor!r}, and events behind it were removed because of the feed's "
        f"retention; the oldest that are left are behind {oldest!r}",
        partition=partition,
        cursor=cursor,
        oldest=oldest,
    )


def other_history(partition: int, cursor: str, why: str) -> Problem:
    return Problem(
        "cursor-of-another-history",
        409,
        f"cursor{partition} is {cursor!r}, but {why}: it belongs to another feed, or to a history "
        f"that a restore of this feed undid; start from _first, or from a cursor that this feed "
        f"gave",
        partition=partition,
        cursor=cursor,
    )
