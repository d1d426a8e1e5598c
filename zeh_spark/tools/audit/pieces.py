"""Cut an answer at its checkpoint lines, into the chunks of a feed with their positions. Pure.

This is simpler than `page_scanner.PageScanner`: the checkpoint lines of our publisher are known
bytes, and all partitions come in one answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_CHECKPOINT = re.compile(rb'\{"partition":(\d{1,9}),"cursor":"([^"\\]*)"\}')
_POSITION = re.compile(r"(0|[1-9][0-9]{0,17})\.[0-9a-f]{8}")
_SIGN = b',"cursor":"'

MOST_HELD = 16 << 20
"""Most bytes that may come without a checkpoint line: a chunk has at most 1 MiB, and stamps."""


class StrangeFeedError(Exception):
    """An answer that a publisher of `zeh_spark` does not give."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A chunk as it is served, or a checkpoint line alone.

    Args:
        position: The feed's position that the cursor names.
        lines: The chunk's lines, each with its newline; empty for a checkpoint line alone.
    """

    partition: int
    cursor: str
    position: int
    lines: bytes


class Cutter:
    """Takes the bytes of one answer as they come, and cuts them into pieces.

    Guarantee: the same bytes give the same pieces, however the network has cut them.
    """

    def __init__(self) -> None:
        self._lines: list[bytes] = []
        self._size = 0
        self._partial = b""

    @property
    def held(self) -> bool:
        """Return whether something has come after the last checkpoint line."""
        return bool(self._lines or self._partial)

    def feed(self, data: bytes) -> list[Piece]:
        """Take the next bytes of the answer, and return the pieces that they complete.

        Raises StrangeFeedError if a cursor is of another kind, or too many bytes came without one.
        """
        pieces: list[Piece] = []
        begin = data.find(b"\n") + 1 if self._partial else 0
        if begin:
            line, self._partial = self._partial + data[:begin], b""
            pieces += self._scan(line, 0, len(line))
        if not self._partial:
            end = data.rfind(b"\n") + 1 or begin
            pieces += self._scan(data, begin, end)
            begin = end
        self._partial += data[begin:]
        if self._size + len(self._partial) > MOST_HELD:
            raise StrangeFeedError(f"{MOST_HELD:,} bytes came without a checkpoint")
        return pieces

    def _scan(self, data: bytes, begin: int, end: int) -> Iterator[Piece]:
        """Yield the pieces that `data[begin:end]` completes, which has to be whole lines."""
        search = begin
        while (found := data.find(_SIGN, search, end)) >= 0:
            line = max(begin, data.rfind(b"\n", begin, found) + 1)
            search = data.find(b"\n", found) + 1
            if match := _CHECKPOINT.fullmatch(data, line, search - 1):
                self._hold(data[begin:line])
                yield _piece(match, b"".join(self._lines))
                self._lines, self._size, begin = [], 0, search
        self._hold(data[begin:end])

    def _hold(self, lines: bytes) -> None:
        if lines:
            self._lines.append(lines)
            self._size += len(lines)


def position_of(cursor: str) -> int | None:
    """Return the position that a cursor names; None for a cursor of another kind."""
    match = _POSITION.fullmatch(cursor)
    return int(match[1]) if match else None


def _piece(match: re.Match[bytes], lines: bytes) -> Piece:
    partition, cursor = int(match[1]), match[2].decode(errors="replace")
    position = position_of(cursor)
    if position is None:
        raise StrangeFeedError(f"its cursor {cursor!r} is not of the kind 17.0a1b2c3d")
    return Piece(partition, cursor, position, lines)
