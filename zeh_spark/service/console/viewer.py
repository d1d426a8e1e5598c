"""What a visitor of the console may see and do: what the rights of the token allow, no more.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from zeh_spark.service.store.batches import base
from zeh_spark.service.store.token_rights import Need, Right, Token


@dataclass(frozen=True, slots=True)
class Viewer:
    """A visitor."""

    token: Token | None

    @property
    def acts(self) -> bool:
        """Whether the visitor may change settings: with a token that has all rights."""
        return self.token is not None and self.token.is_admin

    @property
    def watches(self) -> bool:
        """Whether the visitor sees what concerns the publisher as a whole."""
        return self._may(Right.AUDIT, "*")

    def sees(self, feed: str) -> bool:
        """Whether the visitor sees the feed's page."""
        return self.reads(feed) or self.audits(feed)

    def reads(self, feed: str) -> bool:
        return self._may(Right.READ, feed)

    def audits(self, feed: str) -> bool:
        """Whether the visitor sees all producers and consumers of the feed."""
        return self._may(Right.AUDIT, feed)

    def sees_producer(self, feed: str, producer: str) -> bool:
        return self.audits(feed) or self._may(Right.PUBLISH, feed, base(producer))

    def sees_consumer(self, feed: str, cursor_set: str) -> bool:
        """Whether the visitor sees how far a cursor set is."""
        return self.audits(feed) or self._may(Right.CONSUME, feed, cursor_set)

    def own_producers(self) -> Iterator[tuple[str, str]]:
        """Yield the feeds and producers that the token names as what it may publish."""
        for grant in self.token.grants if self.token else ():
            if grant.right is Right.PUBLISH and "*" not in grant.feed + grant.name:
                yield grant.feed, grant.name

    def _may(self, right: Right, feed: str, name: str = "") -> bool:
        return self.token is None or self.token.may(Need(right, feed, name))
