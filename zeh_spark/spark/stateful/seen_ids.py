"""Which ids were seen, for as long as a window: what `dedup.drop_seen(id=…)` keeps in a bucket.

An id is known by 128 bits of its hash, its content by 64. The bucket has a clock, the newest time
of its events. Ids are kept in slices by the clock at which they were first seen. A slice is
forgotten as a whole, when the clock is `window` after its end. So each id is remembered for at
least the window.

    slices  [ids seen 0:00-1:00] [ids seen 1:00-2:00] ... [ids seen now]      each sorted by hash

The module has no side effects except on the slices that it is given. It runs in tasks.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from zeh_spark.errors import CheckpointError
from zeh_spark.spark.stateful.state_buckets import BucketFormat

if TYPE_CHECKING:
    from numpy.typing import NDArray

SLICES = 8
"""Slices in a window."""

BYTES = 24
"""What an id takes in the state."""

NEW, SEEN, CONFLICT, UNKNOWN = 0, 1, 2, 3
"""What is known of an event: its id is new; it was seen with this content, or with another one; it
may have been seen, because the event is older than what is remembered.
"""


NOTHING, FEEDS, GIVEN = SCOPES = "nothing", "feeds", "scope="
"""What ids belong to: nothing, the feeds that events tell, or what the argument `scope` says."""


class Slice(msgspec.Struct, array_like=True):
    """Ids that were first seen between two times, in milliseconds since 1970.

    Attributes:
        begin: The first time, which is the slice's name in Spark's state.
        end: The time after it.
    """

    begin: int
    end: int
    count: int = 0


class IdBucket(msgspec.Struct, array_like=True):
    """The value of a bucket; the ids themselves are beside it.

    Attributes:
        buckets: The number of buckets, which never changes in a checkpoint.
        floor: What was first seen before this time may be forgotten, in milliseconds since 1970.
        scope: What its ids belong to: one of SCOPES; empty if there were none yet.
    """

    buckets: int
    clock: int = 0
    floor: int = 0
    slices: list[Slice] = []
    scope: str = ""

    @property
    def count(self) -> int:
        return sum(each.count for each in self.slices)

    def belong(self, scopes: set[str]) -> None:
        """Keep what the ids of a batch belong to. Raises CheckpointError if it was another."""
        found = scopes | {self.scope} - {""}
        if len(found) > 1:
            raise CheckpointError(
                f"drop_seen: some ids belong to {' and some to '.join(sorted(found))}, so that an "
                f"id that was seen would pass as a new one: events begin or end to tell their feed "
                f"in the header zeh-feed, or scope= was changed. Nothing of this batch was passed "
                f"on. To continue, give headers, stamps and scope= as they were; or take a new "
                f"checkpoint, and scope= if only some events have zeh-feed",
                expected=self.scope or None,
                got=sorted(scopes),
                anchor="the-state-was-made-with-another-option",
            )
        (self.scope,) = found


class Ids(NamedTuple):
    """Ids and the contents of their events, as hashes.

    Attributes:
        hashes: The ids, 16 bytes each: numpy's S16, of which all bytes are compared.
        contents: The contents, 8 bytes each.
    """

    hashes: NDArray[np.bytes_]
    contents: NDArray[np.uint64]

    def where(self, some: NDArray[Any]) -> Ids:
        """Return some of the ids, by a mask or by places."""
        return Ids(self.hashes[some], self.contents[some])

    def to_bytes(self) -> bytes:
        return self.hashes.tobytes() + self.contents.tobytes()

    @classmethod
    def of_bytes(cls, value: bytes) -> Ids:
        count = len(value) // BYTES
        contents = np.frombuffer(value, np.uint64, count, offset=16 * count)
        return cls(np.frombuffer(value, "S16", count), contents)

    @classmethod
    def of_hex(cls, ids: list[str], contents: list[str]) -> Ids:
        """Return ids whose hashes are given as 32 and 16 hexadecimal digits."""
        hashes = np.frombuffer(bytes.fromhex("".join(ids)), "S16")
        return cls(hashes, np.frombuffer(bytes.fromhex("".join(contents)), np.uint64))


IdSlices = MutableMapping[tuple[int], bytes]
"""The ids of slices, by the beginning of the slice."""

FORMAT = BucketFormat(IdBucket, version=2)


def judge(
    bucket: IdBucket, slices: IdSlices, ids: Ids, times: NDArray[np.int64], window: int, most: int
) -> NDArray[np.int8]:
    """Return what is known of each event, and keep the new ids.

    `bucket` gets the newest time as its clock, if that is later. `ids` has at least one event,
    sorted by (id, time, event); `times` and `window` are milliseconds. Raises CheckpointError if
    there would be more than `most` ids.
    """
    firsts = np.ones(len(times), bool)
    firsts[1:] = ids.hashes[1:] != ids.hashes[:-1]
    heads = ids.where(firsts)
    known, contents = _found(bucket, slices, heads)
    group = np.cumsum(firsts) - 1
    again = known[group] | ~firsts
    found = np.where(again, SEEN, NEW).astype(np.int8)
    found[again & (ids.contents != contents[group])] = CONFLICT
    found[(found == NEW) & (times < bucket.floor)] = UNKNOWN
    bucket.clock = max(bucket.clock, int(times.max()))
    _keep(bucket, slices, heads.where(~known), window)
    _forget(bucket, slices, window)
    if bucket.count > most:
        raise CheckpointError(
            f"drop_seen: a bucket of the state would have {bucket.count} ids, and max_ids allows "
            f"{most} for each of the {bucket.buckets} buckets. Nothing of this batch was passed "
            f"on. Raise max_ids (an id takes {BYTES} bytes), or give a shorter window, and start "
            f"the query again",
            expected=most,
            got=bucket.count,
            anchor="the-state-would-have-too-many-ids",
        )
    return found


def _found(
    bucket: IdBucket, slices: IdSlices, heads: Ids
) -> tuple[NDArray[np.bool_], NDArray[np.uint64]]:
    """Return which ids are known, and the first content of each: the kept one, or its own."""
    known, contents = np.zeros(len(heads.hashes), bool), heads.contents.copy()
    for part in bucket.slices:
        if part.count:
            kept = Ids.of_bytes(slices[part.begin,])
            at = np.searchsorted(kept.hashes, heads.hashes)
            at[at == len(kept.hashes)] = 0
            here = kept.hashes[at] == heads.hashes
            contents[here] = kept.contents[at[here]]
            known |= here
    return known, contents


def _keep(bucket: IdBucket, slices: IdSlices, fresh: Ids, window: int) -> None:
    if not len(fresh.hashes):
        return
    if not bucket.slices or bucket.slices[-1].end <= bucket.clock:
        bucket.slices.append(Slice(bucket.clock, bucket.clock + max(1, window // SLICES)))
    newest = bucket.slices[-1]
    if newest.count:
        kept = Ids.of_bytes(slices[newest.begin,])
        fresh = Ids(
            np.concatenate([kept.hashes, fresh.hashes]),
            np.concatenate([kept.contents, fresh.contents]),
        )
        fresh = fresh.where(np.argsort(fresh.hashes, kind="stable"))
    newest.count = len(fresh.hashes)
    slices[newest.begin,] = fresh.to_bytes()


def _forget(bucket: IdBucket, slices: IdSlices, window: int) -> None:
    while bucket.slices and bucket.slices[0].end + window <= bucket.clock:
        gone = bucket.slices.pop(0)
        bucket.floor = gone.end
        del slices[gone.begin,]
