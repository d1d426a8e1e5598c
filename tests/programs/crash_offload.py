"""A store that dies, with SIGKILL, at every point of moving packs to objects. Not a test.

Usage: crash_offload.py PLACE FOLDER. As `crash_publisher`, whose points it has, for the act of
`keep_tidy` here; and before and after each step on the storage. The objects of store `0` are in the
folder `0`, and so on. Of the store `made`, which ends whole, nothing was moved.
"""

import itertools
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from tests.programs.crash_publisher import (
    FEED,
    OLD,
    Points,
    call,
    chunk,
    in_a_process,
    make,
    publish,
    upload,
    url_of,
)
from zeh_spark.publisher import Store, open_store
from zeh_spark.service.retention import segments as moving
from zeh_spark.service.segments.objects import Objects
from zeh_spark.service.sql import commits
from zeh_spark.service.sql import segments as tables
from zeh_spark.service.store import packs

MANY = [chunk(at % 2, [b"%d" % at] * (90 if at == 2 else 1 + at % 3)) for at in range(16)]
REMOVED = 9
"""The position up to which chunks are removed: all of the first object, and a part of the next."""

EVER = 1 << 62


def shrink() -> None:
    """Packs of four chunks, two for an object; and what is garbage is deleted at once."""
    packs.PACK_CHUNKS, packs.BLOCK_BYTES, packs.OWN_BYTES = 4, 120, 2000
    tables._PACKS = 2
    commits.KEPT_MS = tables.KEPT_MS = -1


def keep_tidy(store: Any, objects: Objects) -> None:
    """Move all packs, remove the oldest chunks, and delete what nobody needs any more."""
    moving.offload(store, FEED, objects, EVER)
    store.remove(FEED, REMOVED)
    moving.collect(store)


class StoragePoints(Points):
    """Counts the steps on the storage, too."""

    def install(self) -> None:
        super().install()
        put = Objects.put

        def stepwise(parts: Iterable[bytes]) -> Iterator[bytes]:
            for part in parts:
                self("before", "a part of an object")
                yield part

        def put_stepwise(objects: Objects, name: str, parts: Iterable[bytes]) -> int:
            return put(objects, name, stepwise(parts))

        Objects.put = put_stepwise  # type: ignore[method-assign]
        for of, name in ((Path, "replace"), (Path, "mkdir"), (os, "fsync"), (Objects, "delete")):
            self._pass(of, name)

    def _pass(self, of: Any, name: str) -> None:
        real: Callable[..., Any] = getattr(of, name)

        def passed(*given: Any, **named: Any) -> Any:
            self("before", name)
            done = real(*given, **named)
            self("after", name)
            return done

        setattr(of, name, passed)


def main(place: str, folder: str) -> None:
    shrink()
    make(place, "made", None)

    def begin() -> None:
        store: Store = open_store(url_of(place, "made"))
        store.create(FEED, 2)
        publish(store, call(0), [upload(0, chunk(0, OLD))])
        for at, each in enumerate(MANY, 1):
            publish(store, call(at), [upload(0, each)])
        while store.seal(FEED, EVER):
            pass
        store.close()

    def crash(point: int) -> None:
        store = open_store(url_of(place, point))
        objects = Objects(f"{folder}/{point}")
        points = StoragePoints(point)
        points.install()
        keep_tidy(store, objects)
        points.end()

    in_a_process(begin)
    for point in itertools.count():
        make(place, point, "made")
        if in_a_process(lambda point=point: crash(point)):  # type: ignore[misc]
            os.write(1, b"done\n")
            break


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
