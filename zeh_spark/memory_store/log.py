"""The committed chunks of one feed in this process's memory.

Rule for editors: readers take no lock. So a list that a reader may hold is appended to or replaced,
never shortened. The callers of `append` and `remove` run one at a time.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence

from zeh_spark.store.interface import Anchor, Chunk


class Log:
    """Chunks in the order of g, all together and by stored partition."""

    def __init__(self, partitions: int) -> None:
        self.anchors: Mapping[int, Anchor] = {}
        self._all: list[Chunk] = []
        self._by_partition: list[list[Chunk]] = [[] for _ in range(partitions)]

    def append(self, chunks: Iterable[Chunk]) -> None:
        """Add chunks at the end."""
        for each in chunks:
            self._all.append(each)
            self._by_partition[each.partition].append(each)

    def remove(self, upto: int) -> Sequence[Chunk]:
        """Remove all chunks up to a position, and return them."""
        gone = self._all[: bisect_right(self._all, upto, key=_position)]
        last = {each.partition: Anchor(each.g, each.tag) for each in gone}
        self.anchors = {**self.anchors, **last}  # before they are gone
        self._all = self._all[len(gone) :]
        for partition in last:
            here = self._by_partition[partition]
            self._by_partition[partition] = here[bisect_right(here, upto, key=_position) :]
        return gone

    def behind(self, positions: Mapping[int, int], upto: int, limit: int) -> list[Chunk]:
        """Return chunks after some positions (see `Store.chunks`)."""
        found: list[Chunk] = []
        for partition, position in positions.items():
            here = self._by_partition[partition]
            first = bisect_right(here, position, key=_position)
            found += [each for each in here[first : first + limit] if each.g <= upto]
        return sorted(found, key=_position)

    def scan(self, after: int, upto: int, limit: int) -> list[Chunk]:
        """Return chunks of all partitions between two positions (see `Store.scan`)."""
        chunks = self._all
        first = bisect_right(chunks, after, key=_position)
        return [each for each in chunks[first : first + limit] if each.g <= upto]

    def tags(self, positions: Iterable[int]) -> dict[int, str]:
        """Return the tags of chunks by g (see `Store.tags`)."""
        chunks, wanted = self._all, set(positions)
        found = (chunks[bisect_left(chunks, g, key=_position) :][:1] for g in wanted)
        return {each.g: each.tag for some in found for each in some if each.g in wanted}

    def last(self, partitions: Iterable[int], upto: int) -> Chunk | None:
        """Return the last chunk of some partitions (see `Store.last`)."""
        found: list[Chunk] = []
        for partition in partitions:
            here = self._by_partition[partition]
            found += here[: bisect_right(here, upto, key=_position)][-1:]
        return max(found, key=_position, default=None)


def _position(chunk: Chunk) -> int:
    return chunk.g
