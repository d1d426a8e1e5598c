"""What a publisher puts into lines, an audit takes out again."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import each_case
from zeh_spark.service.app.rendering import body
from zeh_spark.service.telemetry.exchange import Tally
from zeh_spark.tools.audit.lines import OddLineError, content, stamps_of
from zeh_spark.tools.audit.pieces import Cutter, Piece, StrangeFeedError
from zeh_spark.wire import wire
from zeh_spark.wire.served_lines import Block, with_all_headers
from zeh_spark.wire.upload_format import Content, content_of, rest_of

STAMPS = {"zeh-producer": "p#k", "zeh-batch": "7", "zeh-partition": "3", "zeh-time": "9"}
EVENTS = st.lists(
    st.tuples(
        st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
        st.recursive(
            st.integers() | st.text(max_size=9) | st.just("}\n,\"cursor\":\""),
            lambda inner: st.dictionaries(st.sampled_from(["cursor", "zeh-time", ""]), inner),
            max_leaves=3,
        ),
    ),
    min_size=1,
    max_size=12,
)  # fmt: skip


def block(
    events: list[tuple[dict[str, str], object]],
    sequence: int | None = 0,
    stamps: Mapping[str, str] = STAMPS,
) -> tuple[Block, Content]:
    """A chunk of partition 3, and what it says."""
    rests = [rest_of(headers, msgspec.json.encode(data)) for headers, data in events]
    lines = b"".join(b'{"partition":3,%b\n' % rest for rest in rests)
    return Block(3, lines, "17.0a1b2c3d", stamps, sequence), content_of(rests)


@given(EVENTS, st.sampled_from([0, 5, 97, 10**6 - 3, 2**53 - 20]))
def test_content_of_what_is_served_is_that_of_what_is_stored(events, sequence):
    """Whatever headers and data hold, and wherever numbers get longer."""
    stored, says = block(events, sequence)
    lines = with_all_headers(stored, 3)
    stamps = stamps_of(lines)

    assert ("p#k", 7, 3, 3, 9, sequence) == (
        stamps.producer, stamps.batch, stamps.partition, stamps.served, stamps.time,
        stamps.sequence,
    )  # fmt: skip
    assert says == content(lines, stamps)


@given(EVENTS, st.data())
def test_the_same_pieces_come_however_the_network_cut_them(events, data):
    """Positions, cursors and lines are those of the publisher."""
    stored, _ = block(events)
    empty = Block(1, b"", "4.00000000")
    served = b"".join(body([stored, stored, empty], 4, with_all_headers, Tally()))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(served)), max_size=5)))
    cutter = Cutter()

    pieces = [
        piece
        for begin, end in zip([0, *cuts], [*cuts, len(served)], strict=True)
        for piece in cutter.feed(served[begin:end])
    ]

    lines = with_all_headers(stored, 3)
    one = Piece(3, "17.0a1b2c3d", 17, lines)
    assert ([one, one, Piece(1, "4.00000000", 4, b"")], False) == (pieces, cutter.held)


@each_case(
    ("old", "new", "reason"),
    [
        (b'"zeh-sequence":"6"', b'"zeh-sequence":"7"', "line 2"),
        (b'"zeh-sequence":"6"', b'"zeh-sequence":"06"', "line 2"),
        (b'"zeh-sequence":"7"', b'"zeh-sequence":"71"', "line 3"),
        (b'"6","own"', b'"6";"own"', "line 2"),
        (b'"6",', b'"6" ,', "line 2"),
        (b'"7","own":"1"},', b'"7"x},', "line 3"),
        (b"\n", b"\n{}\n", "line 2"),
        (b"\n", b"\n\n", "line 2"),
        (b"\n", b'\n{"partition":3,"data":1}\n', "line 2"),
    ],
)  # fmt: skip
@each_case("own", [{}, {"own": "1"}])
def test_line_that_is_not_as_the_others_is_named(old, new, reason, own):
    """Not one byte of the stamps is taken on trust."""
    stored, _ = block([(own, 1), ({"own": "1"}, 2), ({"own": "1"}, 3)], 5)
    lines = with_all_headers(stored, 3)
    changed = lines.replace(old, new, 1)
    assert changed != lines

    with pytest.raises(OddLineError, match=reason):
        content(changed, stamps_of(changed))


@each_case(
    ("line", "stamped"),
    [
        (b'{"partition":0,"data":1}', False),
        (b'{"partition":0,"headers":{},"data":1}', False),
        (b'{"partition":0,"headers":{"zeh-time":"1","zeh-partition":"1"},"data":1}', True),
        (b'{"partition":0,"headers":{"zeh-partition":"1","zeh-time":"1","zeh-sequence":"1"},}',
         True),
        (b'{"partition":0,"headers":{"zeh-producer":"p","zeh-batch":"1","zeh-partition":"1",'
         b'"zeh-time":"1"},}', True),
        (b"", False),
    ],
)  # fmt: skip
def test_line_without_stamps_is_no_line_of_ours(line, stamped):
    """And one with some of them is damaged."""
    with pytest.raises(OddLineError) as caught:
        stamps_of(line + b"\n")

    assert stamped == caught.value.stamped


@each_case("cursor", ["17", "_first", "017.00000000", "1.0000000G", ""])
def test_other_cursors_are_strange(cursor):
    """An audit needs positions."""
    with pytest.raises(StrangeFeedError, match=f"its cursor '{cursor}' is not of the kind"):
        Cutter().feed(wire.checkpoint_line(0, cursor))
