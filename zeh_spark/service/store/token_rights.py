"""Who may do what: tokens and their rights, as a store keeps them.

A token is a text that its owner sends as `Authorization: Bearer …`. It is shown once, when it is
made; the store keeps its SHA-256. It is random, so a faster hash is as safe as a slow one.

A right is written RIGHT:FEED or RIGHT:FEED/NAME. FEED and NAME may end with *, which stands for any
end. Pure; runs in the publisher and in commands.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from zeh_spark.errors import StoreError

_PREFIX = "zeh"
_ID_BYTES, _SECRET_BYTES = 4, 32


class Right(str, Enum):
    """What a token may do with a feed.

    Attributes:
        READ: Read its events.
        CONSUME: Keep a cursor set on it; NAME is that of the cursor set.
        PUBLISH: Publish to it; NAME is that of the producer.
        AUDIT: See all its producers, and what they have published.
    """

    READ = "read"
    CONSUME = "consume"
    PUBLISH = "publish"
    AUDIT = "audit"


_NAMED = (Right.CONSUME, Right.PUBLISH)


@dataclass(frozen=True, slots=True)
class Maker:
    """A client that begins names: of producers or of cursor sets.

    Attributes:
        client: What tells it from other clients: its token, say.
        most: How many names that it began a store may have at a time, of either kind.
    """

    client: str
    most: int


@dataclass(frozen=True, slots=True)
class Need:
    """What a request needs: a right on a feed, and under a name if the right has one."""

    right: Right
    feed: str
    name: str = ""

    def __str__(self) -> str:
        return f"{self.right.value}:{self.feed}" + (f"/{self.name}" if self.name else "")


@dataclass(frozen=True, slots=True)
class Grant:
    """A right that a token has, on all feeds and under all names that match.

    Attributes:
        feed: The feed's name, or the beginning of names and *.
        name: The same for the name of a producer or a cursor set; * for rights without one.
    """

    right: Right
    feed: str
    name: str = "*"

    def gives(self, need: Need) -> bool:
        return (
            self.right is need.right
            and _matches(self.feed, need.feed)
            and _matches(self.name, need.name)
        )

    def __str__(self) -> str:
        named = f"/{self.name}" if self.right in _NAMED else ""
        return f"{self.right.value}:{self.feed}{named}"


def _matches(pattern: str, text: str) -> bool:
    return text.startswith(pattern[:-1]) if pattern.endswith("*") else text == pattern


def parse_grant(right: Right, text: str) -> Grant:
    """Return the grant that FEED or FEED/NAME stands for.

    Raises StoreError if there is no feed, or * is not at an end.
    """
    feed, slash, name = text.partition("/") if right in _NAMED else (text, "", "")
    problem = None
    if not feed:
        problem = "it names no feed"
    elif slash and not name:
        problem = f"nothing follows the /. Write {feed}/* or {feed} for every name"
    elif right is Right.PUBLISH and ("/" in name or "#" in name):
        problem = "it is not the name of a producer, whose named batches belong to it"
    elif "*" in feed[:-1] or "*" in name[:-1]:
        problem = "a * can only be at the end of a name"
    if problem:
        raise StoreError(f"{right.value} {text!r} cannot be granted: {problem}", anchor="tokens")
    return Grant(right, feed, name or "*")


@dataclass(frozen=True, slots=True)
class Token:
    """A token, without its text.

    Attributes:
        id: What its text begins with, after zeh_. It is no secret.
        digest: The SHA-256 of its text.
        created: When it was made, in ms since 1970.
        expires: From when on it is not valid; None for never.
        revoked: From when on it is not valid; None if it is not revoked.
    """

    id: str
    name: str
    digest: bytes
    grants: tuple[Grant, ...]
    created: int
    expires: int | None = None
    revoked: int | None = None

    def is_valid(self, now: int) -> bool:
        return self.revoked is None and (self.expires is None or now < self.expires)

    @property
    def told(self) -> dict[str, Any]:
        """What the log of administrative acts tells of it, besides its id."""
        return {"name": self.name, "rights": [*map(str, self.grants)], "expires": self.expires}

    def may(self, need: Need) -> bool:
        return any(each.gives(need) for each in self.grants)

    @property
    def is_admin(self) -> bool:
        """Whether it has all rights on all feeds."""
        return all(self.may(Need(right, "*")) for right in Right)


ADMIN = tuple(Grant(right, "*") for right in Right)
"""All rights on all feeds."""


def new_token(
    name: str, grants: Iterable[Grant], now: int, expires: int | None = None
) -> tuple[str, Token]:
    """Return the text of a new token, and the token that a store keeps."""
    identifier = secrets.token_hex(_ID_BYTES)
    text = f"{_PREFIX}_{identifier}_{secrets.token_urlsafe(_SECRET_BYTES)}"
    return text, Token(identifier, name, _digest(text), tuple(grants), now, expires)


def id_in(text: str) -> str | None:
    """Return the id in the text of a token; None if it does not look like a token."""
    parts = text.split("_", 2)
    return parts[1] if len(parts) == 3 and parts[0] == _PREFIX else None


def is_text_of(text: str, token: Token) -> bool:
    """Return whether a text is that of a token, in a time that does not depend on the text."""
    return hmac.compare_digest(_digest(text), token.digest)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
