"""Uploads of one feed that are not committed, in this process's memory.

Rule for editors: whoever calls holds the store's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from zeh_spark.store import refusals
from zeh_spark.store.batches import Call, Found, TaskAttempt, Upload, base
from zeh_spark.store.commit_plan import Moved

Place = tuple[int, int, int]
"""The key of an upload in its staging: task, attempt, number."""

Uploads = Mapping[Place, tuple[Upload, list[Moved]]]


@dataclass(slots=True)
class Staging:
    """What one run has uploaded of one batch: each upload with its digest and its chunks."""

    producer: str
    incarnation: str
    batch: int | None
    run: str
    touched: int
    uploads: dict[Place, tuple[Upload, list[Moved]]] = field(default_factory=dict)

    def is_of(self, call: Call) -> bool:
        """Return whether a call belongs to this run and batch."""
        mine = self.producer, self.incarnation, self.batch, self.run
        return mine == (call.producer, call.incarnation, call.batch, call.run)


class Stagings:
    """What is staged for one feed.

    Args:
        blobs: the store's frames by their number; those that are dropped become empty.
    """

    def __init__(self, blobs: list[bytes]) -> None:
        self._blobs = blobs
        self._all: list[Staging] = []

    def holds(self, call: Call, upload: Upload, now: int) -> bool:
        """Return whether this very upload is staged. Raises Problem if another one is."""
        staging = self._of(call, now)
        place = _place(upload)
        if (before := staging.uploads.get(place)) and before[0].digest != upload.digest:
            raise refusals.upload_conflict(call, ".".join(map(str, (call.run, *place))))
        staging.touched = now
        return before is not None

    def add(self, call: Call, upload: Upload, now: int) -> None:
        """Stage an upload."""
        moved = []
        for each in upload.chunks:
            self._blobs.append(each.frame)
            blob = len(self._blobs) - 1
            moved.append(Moved(blob, each.partition, each.events, each.size, each.digest))
        self._of(call, now).uploads[_place(upload)] = (upload, moved)

    def named(self, call: Call, attempts: Sequence[TaskAttempt]) -> Uploads:
        """Return the uploads of these attempts."""
        wanted = {(each.task, each.attempt) for each in attempts}
        mine = (each for each in self._all if each.is_of(call))
        uploads = (each for staging in mine for each in staging.uploads.items())
        return {place: each for place, each in uploads if place[:2] in wanted}

    def forget(self, call: Call, places: Iterable[Place]) -> None:
        """Forget uploads whose chunks are published now."""
        for staging in [each for each in self._all if each.is_of(call)]:
            for place in places:
                del staging.uploads[place]
            self._end(staging)

    def bytes(self, producer: str | None = None) -> int:
        """Return how many bytes are staged, of one producer with its named batches, or of all."""
        mine = (e for e in self._all if producer is None or base(e.producer) == base(producer))
        return sum(upload.bytes for each in mine for upload, _ in each.uploads.values())

    def drop(self, which: Callable[[Staging], bool], attempt: tuple[int, int] | None = None) -> int:
        """Delete uploads with their frames, and return how many.

        Args:
            which: whether a run's uploads of a batch are deleted.
            attempt: the only task and attempt whose uploads are; None for all.
        """
        dropped = 0
        for staging in [each for each in self._all if which(each)]:
            for place in [at for at in staging.uploads if attempt in (None, at[:2])]:
                _, moved = staging.uploads.pop(place)
                dropped += 1
                for chunk in moved:
                    self._blobs[chunk.blob] = b""
            self._end(staging)
        return dropped

    def _of(self, call: Call, now: int) -> Staging:
        for each in self._all:
            if each.is_of(call):
                return each
        new = Staging(call.producer, call.incarnation, call.batch, call.run, touched=now)
        self._all.append(new)
        return new

    def _end(self, staging: Staging) -> None:
        if not staging.uploads:
            self._all.remove(staging)


def found_of(uploads: Uploads) -> dict[tuple[int, int], Found]:
    """Return what was found of each task's attempt."""
    found: dict[tuple[int, int], Found] = {}
    for place, (upload, _) in uploads.items():
        before = found.get(place[:2], Found())
        found[place[:2]] = Found(before.uploads + 1, before.content + upload.content)
    return found


def _place(upload: Upload) -> Place:
    return upload.task, upload.attempt, upload.number
