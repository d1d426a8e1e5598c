"""Parts of answers that are kept in memory for the next readers.

A key is the SHA-256 of everything that the bytes depend on. So a part never has to be removed
because something has changed: it is found no more, and gives way to newer ones. Rejected: keys of
feed, position and tag, because a tag does not cover when and by whom a chunk was published, and
the same events that are published again after a restore have the same tags.

Runs in the publisher's worker threads.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, TimeoutError
from contextlib import suppress
from typing import Any, TypeVar, cast

import msgspec

from zeh_spark.service.store.log import Chunk

_OVERHEAD = 512
"""Bytes of memory, about, that a part takes beside its own."""

_PATIENCE = 1.0
"""Seconds for which a thread waits for another one that makes the same part. That one may wait for
storage, as only a few threads may.
"""

T = TypeVar("T")


class AnswerCache:
    """Keeps the parts of answers that were used last.

    Guarantee: threads that need the same part at the same time make it once, unless it takes long.

    Args:
        most: Most bytes that are kept; 0 keeps nothing.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._size = 0
        self._lock = threading.RLock()
        self._kept: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._under_way: dict[bytes, Future[Any]] = {}

    @property
    def size(self) -> int:
        return self._size

    def get(self, key: bytes, make: Callable[[], T]) -> T:
        """Return a part: the kept one, or what `make` returns. Raises what `make` raises.

        `make` may block. The key tells the type of the part, too (see `key_of`). A part never
        changes, and has the bytes of memory that it takes, about, as `cost`.
        """
        with self._lock:
            if (kept := self.find(key)) is not None:
                return cast(T, kept)
            others = self._under_way.get(key)
            if others is None:
                mine = self._under_way[key] = Future()
        if others is not None:
            with suppress(TimeoutError):
                return cast(T, others.result(_PATIENCE))
            return make()
        try:
            made = make()
        except BaseException as exc:
            with self._lock:
                del self._under_way[key]
            mine.set_exception(exc)
            raise
        with self._lock:
            del self._under_way[key]
            self.keep(key, made, cast(Any, made).cost)
        mine.set_result(made)
        return made

    def find(self, key: Hashable) -> Any:
        """Return what is kept, or None."""
        with self._lock:
            if (kept := self._kept.get(key)) is None:
                return None
            self._kept.move_to_end(key)
            return kept[0]

    def keep(self, key: Hashable, made: object, cost: int) -> None:
        with self._lock:
            self._size -= self._kept.pop(key, (None, 0))[1]
            if (cost := cost + _OVERHEAD) > self._most:
                return
            self._kept[key] = made, cost
            self._size += cost
            while self._size > self._most:
                self._size -= self._kept.popitem(last=False)[1][1]


def key_of(kind: str, origin: bytes, chunks: Sequence[Chunk], *how: Any) -> bytes:
    """Return the key of what is made of chunks.

    `origin` is the feed's (see `FeedState`), which no other feed has, whatever its name. The tags
    of the chunks stand for the lines, the rest for when and by whom they were published. Where the
    lines are (`blob`) changes once they are packed. `how` is what else it depends on.
    """
    of = [each[:-1] for each in chunks]
    return hashlib.sha256(msgspec.msgpack.encode((kind, origin, of, how))).digest()
