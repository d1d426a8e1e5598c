"""Choose the partition of an event: by its key, as it says itself, or wherever there is room.

All writers use these functions: the sink, `producer.Producer`, `zeh-spark load`, SQLite's tables.

Rule for editors: `partition_of` never changes. The order of a key's events rests on it, in all
feeds that were ever written. Pure; runs wherever events are published.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import xxhash

from zeh_spark.wire import event_key
from zeh_spark.wire.upload_format import CHUNK_EVENTS, checked_rest


def partition_of(key: str, partition_count: int) -> int:
    """Return the partition of a key, by xxh3_64 of its UTF-8 text. All writers use it; it stays."""
    return xxhash.xxh3_64_intdigest(key.encode()) % partition_count


def partition_for(key: str | int | None, partition: int | None, count: int) -> int | None:
    """Return the partition of an event: its own, or its key's; None if it may go anywhere.

    Raises ValueError if both are given, the feed has no such partition, or the key is no text or
    integer.
    """
    if key is not None and partition is not None:
        raise ValueError("'partition' and 'key' exclude each other")
    if partition is not None:
        if type(partition) is not int or not 0 <= partition < count:
            raise ValueError(f"there is no partition {partition!r}: the feed has 0 to {count - 1}")
        return partition
    if not (key is None or isinstance(key, str) or type(key) is int):
        raise ValueError(f"the key is {key!r}; a key is text or an integer")
    text = event_key.text_of(key)
    return None if text is None else partition_of(text, count)


def placed(
    count: int,
    data: bytes,
    key: str | int | None,
    partition: int | None,
    headers: Mapping[str, str] | None,
    keep_key: bool,
) -> tuple[int | None, bytes]:
    """Return where an event goes, and the rest of its line (see `upload_format.checked_rest`).

    Raises ValueError for an event that cannot be published to a feed of `count` partitions.
    """
    where = partition_for(key, partition, count)
    longest = count - 1 if where is None else where
    kept = event_key.text_of(key) if keep_key else None
    return where, checked_rest(longest, headers or {}, data, kept)


class Spread:
    """Places events in partitions.

    Events that may go anywhere fill one chunk after the other, partition by partition. Rejected: to
    place each event in the next partition. A task of few events would make a chunk in each
    partition, and each chunk is stored and read by itself.
    """

    def __init__(self, partition_count: int, begin: int) -> None:
        self._count = partition_count
        self._begin = begin
        self._placed = 0

    def parts(
        self, rests: Sequence[bytes], partitions: np.ndarray | int | None
    ) -> Iterable[tuple[int, Sequence[bytes]]]:
        """Return events by partition, in their order. Arguments as in `BatchUploader.add`."""
        if not rests:
            return ()
        if partitions is None:
            return self._filled(rests)
        if isinstance(partitions, int):
            return ((partitions, rests),)
        return self._sorted(rests, partitions)

    def _filled(self, rests: Sequence[bytes]) -> list[tuple[int, Sequence[bytes]]]:
        found = []
        while rests:
            number, before = divmod(self._placed, CHUNK_EVENTS)
            some = rests[: CHUNK_EVENTS - before]
            found.append(((self._begin + number) % self._count, some))
            self._placed += len(some)
            rests = rests[len(some) :]
        return found

    def _sorted(
        self, rests: Sequence[bytes], partitions: np.ndarray
    ) -> Iterator[tuple[int, Sequence[bytes]]]:
        free = partitions < 0
        partitions = partitions.copy()
        partitions[free] = self.places(int(free.sum()))
        order = np.argsort(partitions, kind="stable")
        found, begins = np.unique(partitions[order], return_index=True)
        sorted_rests = [rests[row] for row in order.tolist()]
        for partition, begin, end in zip(
            found.tolist(), begins.tolist(), [*begins[1:].tolist(), len(rests)], strict=True
        ):
            yield partition, sorted_rests[begin:end]

    def places(self, events: int) -> np.ndarray:
        """Return the partitions of the next events that may go anywhere."""
        numbers = np.arange(self._placed, self._placed + events)
        self._placed += events
        return (self._begin + numbers // CHUNK_EVENTS) % self._count
