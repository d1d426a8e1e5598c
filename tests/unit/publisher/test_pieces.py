"""Pieces of answers: any of them, in a row, are one body."""

from __future__ import annotations

import gzip
import zlib
from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from zeh_spark.service.app.rendering import (
    SEND_BYTES,
    gzip_piece,
    gzip_stream,
    plain_piece,
    plain_stream,
)

texts = st.lists(st.binary() | st.builds(bytes.__mul__, st.binary(), st.integers(0, 1000)))


@given(texts)
def test_compressed_pieces_are_one_gzip_stream(given_texts: list[bytes]) -> None:
    """My client unpacks the answer, also if it knows of one gzip member only, as httpx does. Plain
    ones are what they are made of.
    """
    sent = chain.from_iterable(plain_stream(map(plain_piece, given_texts)))
    assert b"".join(given_texts) == b"".join(sent)
    packed = b"".join(chain.from_iterable(gzip_stream(map(gzip_piece, given_texts))))
    member = zlib.decompressobj(16 + zlib.MAX_WBITS)
    assert b"".join(given_texts) == member.decompress(packed) == gzip.decompress(packed)
    assert (True, b"") == (member.eof, member.unused_data)


def test_a_compressed_piece_can_be_read_once_it_has_arrived() -> None:
    """I parse events while the rest is still on its way."""
    first, _ = (gzip_piece(text) for text in (b"first", b"second"))
    member = zlib.decompressobj(16 + zlib.MAX_WBITS)
    assert b"first" == member.decompress(b"".join(next(gzip_stream([first]))))


def test_a_piece_is_sent_in_bounded_steps() -> None:
    """A slow client holds little memory."""
    piece = plain_piece(b"x" * (2 * SEND_BYTES + 1))
    assert [SEND_BYTES, SEND_BYTES, 1] == [len(each) for each in piece.sends]
