"""Taking an answer part by part gives its bytes, and its errors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeh_spark.service.app.answers import Taken, taken
from zeh_spark.service.app.rendering import SEND_BYTES

MOST = 2 << 20


def parts_of(sends: Iterator[bytes]) -> Iterator[Taken]:
    rest: Iterator[Sequence[bytes]] | None = ([each] for each in sends)
    while rest is not None:
        part = taken(rest, MOST)
        rest = part.rest
        yield part


@given(st.lists(st.integers(1, SEND_BYTES) | st.integers(1, 100)))
def test_parts_are_the_answer(sizes: list[int]) -> None:
    """However it is cut, my answer has every byte in its place, in steps that are not too large."""
    sends = [bytes([number % 256]) * size for number, size in enumerate(sizes)]
    parts = list(parts_of(iter(sends)))
    assert b"".join(sends) == b"".join(each for part in parts for each in part.sends)
    assert all(0 < len(each) <= SEND_BYTES for part in parts for each in part.sends)
    assert all(sum(map(len, part.sends)) < MOST + SEND_BYTES for part in parts)


def test_small_pieces_are_sent_together() -> None:
    """A feed of tiny chunks does not cost a packet each."""
    assert [b"x" * 100] == taken(iter([[b"x"]] * 100), MOST).sends


def failing(*sends: bytes) -> Iterator[Sequence[bytes]]:
    yield from ([each] for each in sends)
    raise OSError("the disk is gone")


def test_a_fault_follows_what_there_is() -> None:
    """What fails at once is refused, not begun. Else I get the events before the damage, and then
    no end of the answer.
    """
    with pytest.raises(OSError, match="the disk is gone"):
        taken(failing(), MOST)
    begun = taken(failing(b"event"), MOST)
    assert [b"event"] == begun.sends
    assert begun.rest is not None
    with pytest.raises(OSError, match="the disk is gone"):
        taken(begun.rest, MOST)
