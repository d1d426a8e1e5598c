"""What Hypothesis draws: everything that a test of a law needs, in one place."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from zeh_spark.wire import wire

# JSON has no lone surrogates; everything else is drawn, newlines of all alphabets among it.
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)

json_values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)

headers = st.dictionaries(text, text, max_size=3)

cursors = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1).filter(
    lambda cursor: cursor != wire.LAST
)
"""ASCII printable, as the specification has it: quotes, spaces and all."""


@st.composite
def json_texts(draw: st.DrawFn, value: st.SearchStrategy[Any] = json_values) -> bytes:
    """JSON as different libraries write it: compact or not, escaped or not."""
    separators = draw(st.sampled_from([(",", ":"), (", ", ": ")]))
    ascii_only = draw(st.booleans())
    return json.dumps(draw(value), separators=separators, ensure_ascii=ascii_only).encode()


events = st.tuples(headers, json_texts())
"""Headers and data."""

_spaces = st.sampled_from([b"", b" ", b"\t", b"\r", b" \r"])
_others = st.sampled_from(
    [
        b"",
        b"  ",
        b'{"partition":0,"headers":{}}',
        b'{"command":"later"}',
        b'{"partition":0,"cursor":""}',
    ]
)


@st.composite
def feed_lines(draw: st.DrawFn) -> bytes:
    """A line that a publisher may send in partition 0, with its newline."""
    event = st.builds(lambda event: wire.event_line(0, *event), events)
    checkpoint = st.builds(lambda cursor: wire.checkpoint_line(0, cursor)[:-1], cursors)
    line = draw(event | checkpoint | _others)
    return draw(_spaces.filter(lambda spaces: b"\r" not in spaces)) + line + draw(_spaces) + b"\n"


@st.composite
def feed_bodies(draw: st.DrawFn) -> bytes:
    """The body of an answer for partition 0; its last line may lack the newline."""
    body = b"".join(draw(st.lists(feed_lines(), max_size=12)))
    beginning = draw(st.sampled_from([b"", b"\xef\xbb\xbf"]))
    return beginning + (body[:-1] if draw(st.booleans()) else body)


@st.composite
def cut(draw: st.DrawFn, whole: bytes) -> list[bytes]:
    """Pieces as a network may deliver them, empty ones among them."""
    places = sorted(draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    return [
        whole[begin:end] for begin, end in zip([0, *places], [*places, len(whole)], strict=True)
    ]


almost_lines = st.lists(
    st.sampled_from(
        [
            *(b'"cursor"', b'"partition"', b'"data"', b'"headers"', b"{", b"}", b"[", b":", b","),
            *(b"0", b"-1", b"1e999", b"9" * 5000, b'"a"', b'""', b'"\\ud800"', b'"\xff"', b"NaN"),
            *(b"null", b"true", b'{"partition":0,"cursor":', b'{"partition":', b"[" * 3000),
            *(b"\n", b"\r", b" "),
        ]
    )
    | st.binary(max_size=4),
    max_size=20,
).map(b"".join)
"""Bytes that look like a feed, and mostly are not one."""
