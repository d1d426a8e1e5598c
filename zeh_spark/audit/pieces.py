"""An answer cut at its checkpoints: the chunks of a feed, each with its position. Pure.

Simpler than `wire.PageScanner`, because our publisher's checkpoints are known bytes, and because
all partitions come in one answer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_CHECKPOINT = re.compile(rb'\{"partition":(\d{1,9}),"cursor":"([^"\\]*)"\}')
_POSITION = re.compile(r"(0|[1-9][0-9]{0,17})\.[0-9a-f]{8}")
_SIGN = b',"cursor":"'

MOST_HELD = 16 << 20
"""Bytes without a checkpoint: a chunk has at most 1 MiB, and stamps."""


class StrangeFeedError(Exception):
    """An answer that our publisher does not give."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A chunk as it is served: its lines, and the checkpoint behind them. Without lines the
    checkpoint alone.
    """

    partition: int
    cursor: str
    position: int
    lines: bytes


class Cutter:
    """Takes the bytes of one answer as they come. The same bytes give the same pieces, however the
    network cut them.
    """

    def __init__(self) -> None:
        self._held = b""
        self._searched = 0

    @property
    def held(self) -> bool:
        """Whether something has come that no checkpoint closed."""
        return bool(self._held)

    def feed(self, data: bytes) -> list[Piece]:
        """Raises StrangeFeedError."""
        held = self._held + data
        pieces, begin, search = [], 0, self._searched
        while (found := held.find(_SIGN, search)) >= 0:
            line = max(begin, held.rfind(b"\n", begin, found) + 1)
            end = held.find(b"\n", found)
            if end < 0:
                break
            search = end + 1
            if match := _CHECKPOINT.fullmatch(held, line, end):
                pieces.append(_piece(match, held[begin:line]))
                begin = search
        self._held = held[begin:]
        self._searched = max(0, self._held.rfind(b"\n") + 1)
        if len(self._held) > MOST_HELD:
            raise StrangeFeedError(f"{len(self._held):,} bytes came without a checkpoint")
        return pieces


def position_of(cursor: str) -> int | None:
    match = _POSITION.fullmatch(cursor)
    return int(match[1]) if match else None


def _piece(match: re.Match[bytes], lines: bytes) -> Piece:
    partition, cursor = int(match[1]), match[2].decode(errors="replace")
    position = position_of(cursor)
    if position is None:
        raise StrangeFeedError(f"{cursor!r} is no cursor of its kind, like 17.0a1b2c3d")
    return Piece(partition, cursor, position, lines)
