"""Objects below a location: a folder, or an object store that `pyarrow.fs` knows.

An object is written once, under a name that nobody has used, and never changed.

Guarantee: when `put` returns, the object is on disk; in an object store it has been read back. A
name that has no object is told apart (`NoObjectError`) from storage that fails (`ObjectError`).
Runs in the publisher, on the threads of `block_reader`, and in commands.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import xxhash
from pyarrow import ArrowException, fs

from zeh_spark._locations import opened, told
from zeh_spark.service.store.interface import DamagedObjectError, NoObjectError, ObjectError
from zeh_spark.wire.option_values import parse_location

_STEP = 1 << 20
"""Bytes of an object that are read back at a time."""

_PART = ".part"
"""What the name of a file has at its end until the file is complete."""


class Objects:
    """The objects below a location. Every method may block for as long as the storage does.

    Args:
        location: An absolute path of a folder, or a URI without credentials
            (`option_values.parse_location`). Raises ObjectError if it is neither.
    """

    def __init__(self, location: str) -> None:
        try:
            self.location = _spelled(parse_location(location))
        except ValueError as exc:  # its text is not shown: it may hold a secret
            raise ObjectError(f"a location of segments {exc}") from None
        with self._failures("open"):
            self._files, self._root = opened(self.location)
        self._is_folder = isinstance(self._files, fs.LocalFileSystem)

    def name_of(self, name: str) -> str:
        """Return how messages name an object."""
        place, mark, query = self.location.partition("?")
        return f"{place}/{name}{mark}{query}"

    def put(self, name: str, parts: Iterable[bytes]) -> int:
        """Write an object and return its size in bytes. An object of that name is replaced."""
        written = xxhash.xxh3_128()
        size = 0

        def measured() -> Iterator[bytes]:
            nonlocal size
            for part in parts:
                written.update(part)
                size += len(part)
                yield part

        if self._is_folder:
            with self._failures("write", name):
                self._put_file(name, measured())
            return size
        with self._failures("write", name), self._files.open_output_stream(self._at(name)) as file:
            for part in measured():
                file.write(part)
        found = xxhash.xxh3_128()
        with self._failures("read", name), self._files.open_input_stream(self._at(name)) as file:
            while step := file.read(_STEP):
                found.update(step)
        if found.digest() != written.digest():
            raise DamagedObjectError(
                f"{self.name_of(name)} was written, and what was read back is something else. "
                f"Check the storage"
            )
        return size

    def _put_file(self, name: str, parts: Iterable[bytes]) -> None:
        path = Path(self._at(name))
        self._make_folder(path.parent)
        part = path.with_name(f"{path.name}.{secrets.token_hex(4)}{_PART}")  # several may write it
        try:
            with open(part, "xb", opener=lambda at, flags: os.open(at, flags, 0o600)) as file:
                for each in parts:
                    file.write(each)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        except BaseException:  # raised again, after the part is gone
            with suppress(OSError):
                part.unlink()
            raise
        _sync(path.parent)

    def _make_folder(self, folder: Path) -> None:
        """Make a folder at the location, or the location itself, but not what that is in.

        A file system that is not mounted would be written to beside it.
        """
        if folder.is_dir():
            return
        if folder != Path(self._root):
            self._make_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
        _sync(folder.parent)

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Return a range of bytes of an object. Raises DamagedObjectError if it is not so long."""
        with self._failures("read", name), self._files.open_input_file(self._at(name)) as file:
            size = int(file.size())
            if offset + length <= size:
                found: bytes = file.read_at(length, offset)
                return found
        raise DamagedObjectError(
            f"{self.name_of(name)} has {size} bytes, and needs {offset + length}: it was cut off, "
            f"or is another object. Put the object back that was there"
        )

    def start(self, name: str, most: int) -> bytes:
        """Return the beginning of an object, at most so many bytes, also if it is replaced now."""
        with self._failures("read", name), self._files.open_input_stream(self._at(name)) as file:
            found: bytes = file.read(most)
            return found

    def size(self, name: str) -> int:
        """Return the size of an object in bytes."""
        with self._failures("read", name):
            (found,) = self._files.get_file_info([self._at(name)])
            if found.is_file:
                return int(found.size)
            raise FileNotFoundError

    def names(self) -> dict[str, int]:
        """Return the names of the objects with their sizes in bytes."""
        start = f"{self._root.rstrip('/')}/"
        with self._failures("list"):
            selector = fs.FileSelector(self._root, recursive=True)
            found = [each for each in self._files.get_file_info(selector) if each.is_file]
        return {each.path.removeprefix(start): int(each.size) for each in found}

    def delete(self, name: str) -> None:
        """Delete an object, also one that is half written. It is no error if it is not there."""
        with suppress(NoObjectError), self._failures("delete", name):
            if self._is_folder:
                path = Path(self._at(name))
                for part in path.parent.glob(f"{path.name}.*{_PART}"):
                    part.unlink(missing_ok=True)
            self._files.delete_file(self._at(name))

    def _at(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"

    @contextmanager
    def _failures(self, doing: str, name: str = "") -> Iterator[None]:
        where = self.name_of(name) if name else self.location
        try:
            yield
        except (OSError, ValueError, ArrowException) as exc:
            if isinstance(exc, FileNotFoundError) and doing in ("read", "delete"):
                raise NoObjectError(f"there is no object {where}") from None
            raise ObjectError(
                f"cannot {doing} {where}: {told(exc)}. Check that the folder or bucket exists and "
                f"can be reached, and that the publisher may list, read, write and delete there"
            ) from None  # its text may show a secret


def _spelled(location: str) -> str:
    """Return a location as all spell it, so that two spellings are not two locations."""
    parts = urlsplit(location)
    if location.startswith("/") or parts.scheme == "file":
        path = location if location.startswith("/") else unquote(parts.path)
        return os.path.normpath(f"/{path.lstrip('/')}")
    return parts._replace(query=urlencode(sorted(parse_qsl(parts.query)))).geturl()


def _sync(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
