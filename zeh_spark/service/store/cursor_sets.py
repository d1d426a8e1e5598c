"""Cursor sets: positions that a feed keeps for its consumers, each under a name.

A name is bound to the first consumer that keeps cursors under it and tells its identity. Another
consumer, and one that tells none, is refused then: it would overwrite the cursors, and a resume
would skip events without an error. A name that only consumers without an identity use is bound to
nobody, and they are not told apart. Rejected: an identity as a part of the key; retention, which
waits for a name, could not know which of its consumers has ended.

A name keeps positions for one n, so that no position of an n that nobody uses any more holds
retention for ever. The consumer to which the name is bound may change n: the positions for the n
before are forgotten. Consumers without an identity are refused.

A consumer whose identity begins with `subset:` reads only the partitions that its first request
named, in which alone retention waits for it. So it needs a name of its own. Rejected: one name for
several of them, because nothing would tell two of one partition apart.

Rule for editors: stores compare and bind in the transaction that keeps the cursors. Pure.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from zeh_spark.service.store.problems import Problem
from zeh_spark.service.store.token_rights import Maker
from zeh_spark.wire import problems
from zeh_spark.wire.phrases import counted
from zeh_spark.wire.wire import SUBSET_CONSUMER

NOBODY = ""
"""The identity of a consumer that tells none."""

NAME = re.compile(r"[ -~]{1,50}")
"""The name of a cursor set: 1 to 50 printable ASCII characters."""

_IDENTITY = re.compile(r"[A-Za-z0-9._:@=-]{1,100}")


@dataclass(frozen=True, slots=True)
class CursorSet:
    """What a feed keeps under a name.

    Args:
        consumer: The identity to which the name is bound; NOBODY if it is bound to none.
    """

    name: str
    consumer: str
    cursors: Mapping[int, Mapping[int, str]]

    def may_read(self, n: int, partition: int) -> bool:
        """Return whether its consumer may read a partition of n: any, if it keeps no subset."""
        return not self.consumer.startswith(SUBSET_CONSUMER) or partition in self.cursors[n]


def parse_consumer(text: str | None) -> str:
    """Return the identity that a header tells, NOBODY without one. Raises Problem for a bad one."""
    if text is None:
        return NOBODY
    if not _IDENTITY.fullmatch(text):
        raise Problem(
            problems.BAD_CONSUMER,
            f"ZEH-Consumer is {text!r}; allowed are 1 to 100 letters, digits and . _ : @ = -",
        )
    return text


def check_consumer(name: str, bound: str | None, consumer: str, free: str) -> None:
    """Refuse a consumer of a name that is bound to another one.

    `bound` is NOBODY or None if it is bound to none. `free` says how the operator frees the name,
    for the message. Raises Problem (`cursorset-taken`).
    """
    if not bound or bound == consumer:
        return
    asks = f"consumer {consumer!r}" if consumer else "a consumer without an identity"
    raise Problem(
        problems.CURSORSET_TAKEN,
        f"cursorset {name!r} is bound to consumer {bound!r}, and {asks} asks for it. Choose "
        f"another name; or, if the first consumer has ended, free the name with {free}",
        cursorset=name,
        consumer=bound,
        given=consumer,
    )


def check_n(name: str, n: int, kept: Collection[int], consumer: str, free: str) -> None:
    """Refuse a consumer without an identity that comes with another n than is kept.

    `kept` has the n for which positions are kept. The name is bound to the consumer, or to nobody.
    Raises Problem (`cursorset-n`).
    """
    if consumer or set(kept) <= {n}:
        return
    other = max(set(kept) - {n})
    raise Problem(
        problems.CURSORSET_N,
        f"cursorset {name!r} keeps positions for n={other}, and the request has n={n}. Use "
        f"n={other}; or choose another name; or tell who you are in the header ZEH-Consumer, to "
        f"change n; or free the name with {free}",
        cursorset=name,
        kept=other,
        n=n,
    )


def check_made(name: str, made: int, most: int) -> None:
    """Refuse a new name if as many are there as may be. Raises Problem (`too-many-cursor-sets`)."""
    if made >= most:
        raise Problem(
            problems.TOO_MANY_CURSOR_SETS,
            f"cursorset {name!r} is new, and this client (its token, or its address; of a table, "
            f"all clients together) has begun {counted(made, 'cursor set')} already, as many as it "
            f"may have. Use a name that is there; or let the publisher's operator delete cursor "
            f"sets, or raise --most-cursor-sets",
            cursorset=name,
            maximum=most,
        )


def freed_by(feed: str, name: str) -> str:
    """Return the command that frees a name of a store's feed, ready to paste."""
    return f"zeh-spark cursor-sets {feed} --delete {shlex.quote(name)}"


class CursorSets(Protocol):
    """The cursors that a store keeps for readers of its feeds (see `Store`)."""

    def save_cursors(
        self,
        feed: str,
        name: str,
        n: int,
        cursors: Mapping[int, str],
        consumer: str = NOBODY,
        maker: Maker | None = None,
    ) -> None:
        """Keep a reader's cursors under a name, the last one for each partition of its n.

        A name that is bound to nobody is bound to this consumer, if it tells its identity. It then
        keeps positions for the last n of this consumer only.

        Args:
            n: How many partitions the reader works with.
            cursors: The cursors by partition.
            consumer: The reader's identity (see `store.cursor_sets`).
            maker: The reader's client, if it may have only so many cursor sets.

        Raises:
            Problem: The name is bound to another consumer, or keeps positions for another n and the
                reader tells no identity, or is one too many. Nothing is kept then.
        """

    def load_cursors(self, feed: str, name: str, n: int, consumer: str = NOBODY) -> dict[int, str]:
        """Return the cursors that `save_cursors` kept.

        Raises:
            Problem: The name is bound to another consumer.
        """

    def saved_cursors(self, feed: str, name: str) -> dict[int, dict[int, str]]:
        """Return the cursors that `save_cursors` kept for a name, by n and partition."""

    def cursor_sets(self, feed: str, name: str | None = None) -> list[CursorSet]:
        """Return what `save_cursors` kept for a feed, by name; or under one name."""
