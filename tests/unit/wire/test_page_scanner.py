"""An answer's body cut into intervals: what ends one, what is no event, and what its end means."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import strategies
from tests.cases import each_case
from zeh_spark.errors import PublisherError, ZeroEventHubError
from zeh_spark.wire import hashes, wire
from zeh_spark.wire.page_scanner import PageScanner
from zeh_spark.wire.wire import Interval

E1 = b'{"partition":0,"data":1}\n'
E2 = b'{"partition":0,"data":2}\n'
C1 = b'{"partition":0,"cursor":"c1"}\n'
C2 = b'{"partition":0,"cursor":"c2"}\n'


def scan(*pieces: bytes) -> tuple[list[Interval], PageScanner]:
    """Read a whole body of partition 0 that came in these pieces."""
    scanner = PageScanner(0)
    intervals = [interval for piece in pieces for interval in scanner.feed(piece)]
    return intervals + scanner.close(), scanner


def interval(lines: bytes, events: int, cursor: str) -> Interval:
    """An interval with the digest by which a repeated batch is compared."""
    return Interval(lines, events, cursor, int(hashes.sum_of_lines(lines), 16))


def cursors_of(body: bytes) -> list[str]:
    return [interval.cursor for interval in scan(body)[0]]


# Lines


def test_events_up_to_a_checkpoint_are_one_interval():
    """What I get is always the events between two checkpoints."""
    assert [interval(E1 + E2, 2, "c1"), interval(E1, 1, "c2")] == scan(E1 + E2 + C1 + E1 + C2)[0]


def test_events_after_the_last_checkpoint_are_kept_apart():
    """Events that no checkpoint has closed are not delivered yet (D6)."""
    intervals, scanner = scan(C1 + E1 + E2)

    assert ([interval(b"", 0, "c1")], E1 + E2, 2) == (intervals, scanner.tail, scanner.tail_events)


@each_case(
    "body",
    [
        E1 + b"\n\n" + C1,
        E1 + b"\r\n" + C1,
        E1 + b"  \t\n" + C1,
        E1.replace(b"\n", b"\r\n") + C1.replace(b"\n", b"\r\n"),
        E1 + C1 + b"\n",
        E1 + C1 + b"\r\n",
        (E1 + C1)[:-1],
        (E1 + C1)[:-1] + b"\r",
        b"\xef\xbb\xbf" + E1 + C1,
        E1 + b" " + C1,
    ],
)
def test_what_stands_around_lines_changes_nothing(body):
    """Whether a publisher ends lines with CRLF or sends empty ones, I get the same events."""
    assert [interval(E1, 1, "c1")] == scan(body)[0]


# Checkpoints


@each_case(
    ("line", "expected"),
    [
        (b'{"partition":0,"cursor":"17"}', "17"),
        (b'{"cursor":"17","partition":0}', "17"),
        (b'{ "partition": 0, "cursor": "17" }', "17"),
        (b'{"cursor":"17"}', "17"),
        (b'{"partition":null,"cursor":"17"}', "17"),
        (b'{"partition":0,"cursor":17}', "17"),
        (b'{"partition":0,"cursor":%d}' % 10**30, str(10**30)),
        (b'{"partition":0,"cursor":-1}', "-1"),
        (b'{"partition":0,"cursor":"17","data":{"id":1}}', "17"),
        (b'{"partition":0,"cursor":"17","new":[]}', "17"),
        (b'{"partition":0,"cursor":"\\"0000d826\\""}', '"0000d826"'),
        (b'{"partition":0,"cursor":"a+b/c=&;%# "}', "a+b/c=&;%# "),
        (b'{"partition":0,"cursor":"_first"}', "_first"),
    ],
)
def test_a_cursor_makes_a_line_a_checkpoint(line, expected):
    """A line with a cursor is a checkpoint, whatever it has and however written (D15, D19, D21)."""
    assert [expected] == cursors_of(line + b"\n")


@each_case(
    "line",
    [
        b'{"partition":0,"data":{"cursor":"c"}}',
        b'{"partition":0,"data":"\\"cursor\\":1"}',
        b'{"partition":0,"headers":{"cursor":"c"},"data":1}',
        b'{"partition":0,"data":1,"cursor":""}',
        b'{"partition":0,"data":1,"cursor":null}',
        b'{"partition":0,"data":"cursor"}',
        b'{"partition":0}',
        b'{"partition":0,"headers":{"h":"v"}}',
        *(
            wire.event_line(0, {}, json.dumps(f"a{newline}b", ensure_ascii=False).encode())
            for newline in ("\u2028", "\u2029", "\u0085", "\v", "\f", "\x1c")
        ),
    ],
)
def test_a_line_without_a_cursor_of_its_own_is_an_event(line):
    """My events may hold the word cursor, and an empty cursor is none. Some publishers leave empty
    data out. Only a line feed ends a line: text may hold what other alphabets and printers call a
    new line.
    """
    assert [interval(line + b"\n", 1, "c1")] == scan(line + b"\n" + C1)[0]
    assert (b'"data"' in line) == (wire.parse_event(line, 0).data is not wire.UNSET)


@each_case(
    "cursor",
    [b"true", b"1.5", b"1e400", b"{}", b'["a"]', b'"\xff"', b'"_last"', b"9" * 5000],
)
def test_a_cursor_that_is_none_is_refused(cursor):
    """A cursor that could not be sent back as it came stops the query, and is shown (D15)."""
    with pytest.raises(PublisherError, match="partition 0") as caught:
        scan(b'{"cursor":' + cursor + b"}\n" + C1)

    assert 0 == caught.value.partition


@each_case("partition", [b"1", b'"0"', b"0.0", b"true", b"-1", b"1e999", b'"\xff"'])
def test_a_checkpoint_of_another_partition_is_refused(partition):
    """A publisher that mixes up partitions is named, and its cursor is not taken."""
    with pytest.raises(PublisherError, match="which was not asked for"):
        scan(b'{"partition":' + partition + b',"cursor":"c1"}\n')


# Events


@each_case(
    "line",
    [b"{}", b'{"command":"x"}', b'{"partition":0,"new":1}', b'{"headers":{}}', b'{"cursor":""}'],
)
def test_unknown_lines_are_left_out_and_counted(line):
    """Lines of a later version of the protocol do not stop me, and I see how many came (D17)."""
    intervals, scanner = scan(E1 + line + b"\n" + E2 + C1)

    assert ([interval(E1 + E2, 2, "c1")], 1) == (intervals, scanner.ignored)
    assert wire.parse_event(line, 0) is None


# The end of an answer


NAN = b'{"partition":0,"data":NaN}'


@each_case("end", [b"", b"\n", b"\r\n", b"\n\n", b"\n  \n"])
@each_case("line", [b"Internal server error", b"<html>", b'{"partition":0,"da', b"[]", NAN])
def test_a_last_line_that_is_not_json_is_the_publishers_error(line, end):
    """A publisher that fails in the middle of an answer is heard, not taken for the end (D2). One
    that is written in Python can send NaN; the error tells its owner how not to.
    """
    scanner = PageScanner(0)

    intervals = scanner.feed(E1 + C1 + E2 + line + end)

    assert [interval(E1, 1, "c1")] == intervals
    with pytest.raises(PublisherError, match="ended its answer with a line that is not JSON") as e:
        scanner.close()
    assert (line == NAN) == ("NaN is not JSON" in str(e.value))


@each_case("body", [b"", b"\n", b"\r\n", b"\xef\xbb\xbf", b"\xef\xbb\xbf\n"])
def test_an_empty_answer_is_whole(body):
    """Nothing new is a good answer."""
    assert [] == scan(body)[0]


def test_what_waits_for_a_checkpoint_is_measured():
    """Memory is bounded by what no checkpoint has closed, half a line included."""
    scanner = PageScanner(0)
    scanner.feed(E1 + C1 + E2 + b'{"par')

    assert len(E2) + 5 == scanner.held_bytes


# Laws


EVERY_KIND = (
    b"\xef\xbb\xbf" + E1 + b"  " + E2 + b"\r\n" + C1 + E1[:-1] + b" \r\n" + b'{"later":1}\n' + b"\n"
    b" " + E2 + b'{"partition":0}\n' + C2 + b' {"data":"\xe2\x80\xa8"}\n\t\n' + E2[:-1]
)


@each_case(
    "places",
    [
        *([place] for place in range(len(EVERY_KIND))),
        *(range(size, len(EVERY_KIND), size) for size in (1, 2, 3, 7, 31)),
    ],
)
def test_small_reads_give_the_same_as_one(places):
    """A slow network changes nothing in what I get, nor does the place of a cut."""
    whole, one = scan(EVERY_KIND)

    found, many = scan(*(EVERY_KIND[begin:end] for begin, end in pairwise([0, *places, None])))

    assert (whole, one.tail, one.ignored) == (found, many.tail, many.ignored)


@given(st.data(), strategies.feed_bodies())
def test_any_cut_of_the_bytes_gives_the_same(data, body):
    """How the network delivers an answer changes nothing in what I get."""
    whole, one = scan(body)

    pieces, many = scan(*data.draw(strategies.cut(body)))

    assert whole == pieces
    assert (one.tail, one.tail_events, one.ignored) == (many.tail, many.tail_events, many.ignored)


@given(st.lists(strategies.events), strategies.cursors)
def test_what_is_written_is_read(events, cursor):
    """Events come out as they went in, in their order."""
    lines = [wire.event_line(0, headers, data) + b"\n" for headers, data in events]

    (interval,), _ = scan(b"".join(lines) + wire.checkpoint_line(0, cursor))

    read = [wire.parse_event(line, 0) for line in interval.lines.split(b"\n")[:-1]]
    assert (events, cursor) == ([(e.headers, bytes(e.data)) for e in read], interval.cursor)


@given(strategies.almost_lines)
def test_any_bytes_give_events_or_one_kind_of_error(body):
    """Whatever a publisher sends, what stops me is a publisher's error with a text."""
    for read in (scan, lambda line: wire.parse_event(line, 0)):
        try:
            read(body)
        except ZeroEventHubError as exc:
            assert isinstance(exc, PublisherError)
            assert str(exc)
