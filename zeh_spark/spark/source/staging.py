"""Keep batches in a directory that driver and executors share, so that they can be delivered again.

    <stagingLocation>/<stage>/<batch>/<segment>

`stage` is random. It is made with a checkpoint's first batch, and kept for the checkpoint's life.
Batch names are random and become known only through the offset. So no offset names a half written
batch, and nothing has to be renamed. A segment begins with the digest of the rest.

Rule for editors: a reader deletes under its own stage only, and only what no offset can name any
more. The driver writes and deletes; tasks read.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property

import xxhash
from pyarrow import ArrowException, fs

from zeh_spark._locations import delete_folder, opened, told
from zeh_spark.errors import StagingError
from zeh_spark.spark.source.offsets import StagedBatch, headers_tag
from zeh_spark.spark.source.tasks import SegmentTask

log = logging.getLogger(__name__)

_DIGEST_SIZE = 16
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_REMEDY = "It has to be a directory that the driver can write and all executors can read"
_REMEDY_OF_STORES = (
    "Check that the bucket or container exists and can be reached, and that the credentials of "
    "driver and executors may list, read, write and delete there"
)


class Staging:
    """One stage under a `stagingLocation`. It is pickled to executors.

    Args:
        location: a path, or a URI, as `option_values.parse_location` returns it.
    """

    def __init__(self, location: str, stage: str) -> None:
        self.location = location
        self.stage = stage

    @cached_property
    def _root(self) -> tuple[fs.FileSystem, str]:
        return opened(self.location)

    @property
    def _is_local(self) -> bool:
        return isinstance(self._root[0], fs.LocalFileSystem)

    def __getstate__(self) -> dict[str, str]:
        return {"location": self.location, "stage": self.stage}

    def _path(self, *names: str) -> str:
        """Return the path of the stage, of a batch or of a segment.

        Raises StagingError for a name that no stage gives, so the path could be anywhere.
        """
        for each in (self.stage, *names):
            if not _NAME.fullmatch(each):
                raise StagingError(
                    f"{each!r} is no name of a staged batch, so the offset that has it was not "
                    f"written by this source. Start with a new checkpoint"
                )
        return "/".join((self._root[1], self.stage, *names))

    def begin(self, staged: StagedBatch | None) -> None:
        """Check the location at the beginning of a run, and clear what a crash left there.

        `staged` is the batch that the checkpoint names, which is kept.
        """
        self.probe()
        self.forget_all_but(staged.batch if staged else None)

    def probe(self) -> None:
        """Write and remove a file, so that a wrong location fails before the first batch."""
        with self._explained("write to"):
            name = f"probe-{secrets.token_hex(8)}"
            self._write(name, "0", b"probe")
            delete_folder(self._root[0], self._path(name))

    def keep(self, payloads: Iterable[bytes], headers: Sequence[str]) -> StagedBatch:
        """Write a batch's segments, whose lines have these headers, and return where they are.

        They are durable when this returns, as far as the file system is.
        """
        batch = f"{secrets.token_hex(8)}{headers_tag(headers)}"
        number = 0
        with self._explained("write to"):
            for number, payload in enumerate(payloads, 1):
                self._write(batch, str(number - 1), payload)
        return StagedBatch(self.stage, batch, number)

    def _write(self, batch: str, name: str, payload: bytes) -> None:
        filesystem, path = self._root[0], self._path(batch, name)
        if self._is_local:  # object stores need no folders, and would create a missing bucket
            filesystem.create_dir(self._path(batch), recursive=True)
            stream = open(path, "xb", opener=_private)
        else:
            stream = filesystem.open_output_stream(path)
        with stream as file:
            file.write(xxhash.xxh3_128_digest(payload))
            file.write(payload)

    def read(self, batch: str, segment: int) -> bytes:
        """Return a segment's payload. Raises StagingError if it cannot be read, or is damaged."""
        with self._explained("read from"):
            path = self._path(batch, str(segment))
            with self._root[0].open_input_stream(path) as file:
                content = bytes(file.read())
        digest, payload = content[:_DIGEST_SIZE], content[_DIGEST_SIZE:]
        if xxhash.xxh3_128_digest(payload) != digest:
            raise StagingError(
                f"the staged segment {path!r} is damaged ({len(content)} bytes). Start the query "
                f"again: the batch is then read from the feed and compared"
            )
        return payload

    def has(self, staged: StagedBatch) -> bool:
        """Return whether every segment of a batch is there, as it was written."""
        try:
            for number in range(staged.segments):
                self.read(staged.batch, number)
        except StagingError as exc:
            log.warning("%s", exc)
            return False
        return True

    def forget(self, batch: str) -> None:
        """Delete a batch. It is no error if it is not there."""
        with self._explained("delete from"):
            delete_folder(self._root[0], self._path(batch))

    def forget_all_but(self, batch: str | None) -> None:
        with self._explained("read from"):
            selector = fs.FileSelector(self._path(), allow_not_found=True, recursive=True)
            found = [info.path for info in self._root[0].get_file_info(selector)]
            start = len(f"{self._path()}/")
        for name in sorted({path[start:].partition("/")[0] for path in found} - {batch}):
            if _NAME.fullmatch(name):  # anything else is not the stage's
                self.forget(name)

    @contextmanager
    def _explained(self, doing: str) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError, ArrowException) as exc:
            remedy = _REMEDY if self.location.startswith(("/", "file:")) else _REMEDY_OF_STORES
            raise StagingError(
                f"option 'stagingLocation': cannot {doing} {self.location!r}: {told(exc)}. {remedy}"
            ) from None  # its text may show a secret


def _private(path: str, flags: int) -> int:
    """Open a new file that only its owner can read, as it has events."""
    return os.open(path, flags, 0o600)


def new_stage() -> str:
    return secrets.token_hex(8)


@dataclass(frozen=True)
class StagedSegment(SegmentTask):
    """A segment that its task reads from where it is staged."""

    staging: Staging = field(repr=False)
    batch: str
    segment: int

    def content(self) -> bytes:
        return self.staging.read(self.batch, self.segment)


def staged_segments(staging: Staging, staged: StagedBatch) -> list[StagedSegment]:
    return [StagedSegment(staging, staged.batch, number) for number in range(staged.segments)]
