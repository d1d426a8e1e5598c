"""The entries of a bucket in parts, of which a batch reads and writes those that it needs.

An entry is a packed value with a table and a key. A part has the entries, of all tables, of the
keys with one hash.

A part costs a call to the JVM to read it and one to write it, and each byte costs too. If a batch
touches few keys of a large bucket, many small parts are best, and otherwise a single one, which is
in the bucket's value and so costs no call. So the parts follow the batches: one that touches many
keys joins them at once, and several in a row that touch few spread them. What a batch gives does
not depend on the parts.

It has no side effects except on the state that it is given. Runs in tasks.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from zlib import crc32

import msgspec
from msgspec import Raw

PART = 2 << 10
"""Bytes of a part when the entries are spread."""

FEW = 16
"""A batch touches few keys if there are so many parts of PART bytes for each of them.

Measured: with half of that, the calls to the JVM cost a third more than all the bytes did.
"""

PATIENCE = 4
"""Batches in a row that touch few keys before the entries are spread, which costs a batch more."""

Part = dict[str, dict[str, Raw]]
"""Entries by table and key."""

Blobs = MutableMapping[tuple[int], bytes]
"""The packed parts of a bucket by number."""

_encode = msgspec.msgpack.Encoder().encode
unpack = msgspec.msgpack.Decoder(Part).decode


class Layout(msgspec.Struct, array_like=True):
    """How the entries of a bucket are spread.

    Attributes:
        count: The number of parts.
        size: The bytes of all parts.
        few: How many batches in a row touched few keys.
        whole: The packed part, if there is one; else it is empty.
    """

    count: int = 1
    size: int = 0
    few: int = 0
    whole: bytes = b""


class Parts:
    """The parts of a bucket in one batch. `layout` is changed by `save`.

    Attributes:
        opened: The parts that were read, by number.
    """

    def __init__(self, blobs: Blobs, layout: Layout) -> None:
        self._blobs, self._layout = blobs, layout
        self._before: dict[int, bytes] = {}
        self._keys: set[str] = set()
        self.opened: dict[int, Part] = {}

    def of(self, key: str) -> Part:
        """Return the part of a key, whose entries may be changed."""
        self._keys.add(key)
        return self.open(_number(key, self._layout.count))

    def open(self, number: int) -> Part:
        if (part := self.opened.get(number)) is None:
            is_whole = self._layout.count == 1
            before = self._layout.whole if is_whole else self._blobs.get((number,), b"")
            self._before[number] = before
            part = self.opened[number] = unpack(before) if before else {}
        return part

    def open_all(self) -> list[Part]:
        return [self.open(number) for number in range(self._layout.count)]

    def save(self) -> None:
        """Write the parts that were changed, and spread the entries anew if that is better.

        Then all parts are among `opened`.
        """
        layout = self._layout
        blobs = {number: _encode(part) for number, part in self.opened.items()}
        layout.size += sum(len(blob) - len(self._before[each]) for each, blob in blobs.items())
        count = self._best_count()
        if count != layout.count:
            self._spread(count)
            blobs = {number: _encode(part) for number, part in self.opened.items()}
            layout.size = sum(map(len, blobs.values()))
        if count == 1:
            layout.whole = blobs.get(0, layout.whole)
            return
        for number, blob in blobs.items():
            if blob != self._before.get(number):
                self._blobs[number,] = blob

    def _best_count(self) -> int:
        layout = self._layout
        if not self._keys:
            return layout.count
        best = layout.size // PART
        if best < FEW * len(self._keys):
            layout.few = 0
            return 1
        layout.few = min(layout.few + 1, PATIENCE)
        fits = layout.count <= 2 * best and best <= 2 * layout.count
        return layout.count if fits or layout.few < PATIENCE else best

    def _spread(self, count: int) -> None:
        parts: list[Part] = [{} for _ in range(count)]
        for part in self.open_all():
            for table, entries in part.items():
                for key, value in entries.items():
                    parts[_number(key, count)].setdefault(table, {})[key] = value
        if self._layout.count > 1:
            self._blobs.clear()
        self._before = {}
        self._layout.count, self._layout.whole = count, b""
        self.opened = dict(enumerate(parts))


def _number(key: str, count: int) -> int:
    return crc32(key.encode()) % count if count > 1 else 0
