"""The wire format, rule by rule as in the head of `wire`, and its laws."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import strategies
from zeh_spark.errors import MalformedLineError, PublisherError, ZeroEventHubError
from zeh_spark.protocol import wire
from zeh_spark.protocol.page_scanner import PageScanner
from zeh_spark.protocol.wire import Interval

E1 = b'{"partition":0,"data":1}\n'
E2 = b'{"partition":0,"data":2}\n'
C1 = b'{"partition":0,"cursor":"c1"}\n'
C2 = b'{"partition":0,"cursor":"c2"}\n'


def scan(*pieces: bytes) -> tuple[list[Interval], PageScanner]:
    """Read a whole body of partition 0 that came in these pieces."""
    scanner = PageScanner(0)
    intervals = [interval for piece in pieces for interval in scanner.feed(piece)]
    return intervals + scanner.close(), scanner


def cursors_of(body: bytes) -> list[str]:
    return [interval.cursor for interval in scan(body)[0]]


# Lines


def test_events_up_to_a_checkpoint_are_one_interval():
    """What I get is always the events between two checkpoints."""
    assert [Interval(E1 + E2, 2, "c1"), Interval(E1, 1, "c2")] == scan(E1 + E2 + C1 + E1 + C2)[0]


def test_events_after_the_last_checkpoint_are_kept_apart():
    """Events that no checkpoint has closed are not delivered yet."""
    intervals, scanner = scan(C1 + E1 + E2)

    assert ([Interval(b"", 0, "c1")], E1 + E2, 2) == (intervals, scanner.tail, scanner.tail_events)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(E1 + b"\n\n" + C1, id="empty lines"),
        pytest.param(E1 + b"\r\n" + C1, id="an empty line with CRLF"),
        pytest.param(E1 + b"  \t\n" + C1, id="a line of spaces"),
        pytest.param(E1.replace(b"\n", b"\r\n") + C1.replace(b"\n", b"\r\n"), id="CRLF"),
        pytest.param(E1 + C1 + b"\n", id="an empty line at the end"),
        pytest.param(E1 + C1 + b"\r\n", id="an empty line with CRLF at the end"),
        pytest.param((E1 + C1)[:-1], id="no newline at the end"),
        pytest.param((E1 + C1)[:-1] + b"\r", id="half a CRLF at the end"),
        pytest.param(b"\xef\xbb\xbf" + E1 + C1, id="a byte order mark"),
        pytest.param(E1 + b" " + C1, id="spaces before a checkpoint"),
    ],
)
def test_what_stands_around_lines_changes_nothing(body):
    """Whether a publisher ends lines with CRLF or sends empty ones, I get the same events."""
    assert [Interval(E1, 1, "c1")] == scan(body)[0]


@pytest.mark.parametrize("newline", ["\u2028", "\u2029", "\u0085", "\v", "\f", "\x1c"])
def test_only_a_line_feed_ends_a_line(newline):
    """Text in an event may hold what other alphabets and printers call a new line."""
    line = wire.event_line(0, {}, json.dumps(f"a{newline}b", ensure_ascii=False).encode()) + b"\n"

    assert [Interval(line, 1, "c1")] == scan(line + C1)[0]


# Checkpoints


@pytest.mark.parametrize(
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
    """A line with a cursor is a checkpoint, whatever else it holds and however it is written."""
    assert [expected] == cursors_of(line + b"\n")


@pytest.mark.parametrize(
    "line",
    [
        b'{"partition":0,"data":{"cursor":"c"}}',
        b'{"partition":0,"data":"\\"cursor\\":1"}',
        b'{"partition":0,"headers":{"cursor":"c"},"data":1}',
        b'{"partition":0,"data":1,"cursor":""}',
        b'{"partition":0,"data":1,"cursor":null}',
        b'{"partition":0,"data":"cursor"}',
    ],
)
def test_a_cursor_elsewhere_does_not(line):
    """My events may hold the word cursor, and an empty cursor is none."""
    assert [Interval(line + b"\n", 1, "c1")] == scan(line + b"\n" + C1)[0]


@pytest.mark.parametrize(
    "cursor",
    [b"true", b"1.5", b"1e400", b"{}", b'["a"]', b'"\xff"', b'"_last"', b"9" * 5000],
)
def test_a_cursor_that_is_none_is_refused(cursor):
    """A cursor that could not be sent back as it came stops the query, with the line shown."""
    with pytest.raises(PublisherError, match="partition 0") as caught:
        scan(b'{"cursor":' + cursor + b"}\n" + C1)

    assert 0 == caught.value.partition


@pytest.mark.parametrize("partition", [b"1", b'"0"', b"0.0", b"true", b"-1", b"1e999", b'"\xff"'])
def test_a_checkpoint_of_another_partition_is_refused(partition):
    """A publisher that mixes up partitions is named, and its cursor is not taken."""
    with pytest.raises(PublisherError, match="which was not asked for"):
        scan(b'{"partition":' + partition + b',"cursor":"c1"}\n')


# Events


@pytest.mark.parametrize(
    ("line", "headers", "data"),
    [
        (b'{"partition":0,"headers":{"h":"v"},"data":{"a":1}}', {"h": "v"}, b'{"a":1}'),
        (b'{"data": {"a": 1} , "partition": 0}', wire.UNSET, b'{"a": 1}'),
        (b'{"partition":0,"headers":{},"data":1.50}', {}, b"1.50"),
        (b'{"partition":0,"headers":null,"data":"x"}', None, b'"x"'),
        (b'{"partition":0,"headers":{"h":null},"data":[1]}', {"h": None}, b"[1]"),
        (b'{"partition":0,"data":null}', wire.UNSET, b"null"),
        (b'{"data":true}', wire.UNSET, b"true"),
        (b'{"partition":0,"data":1,"new":2}', wire.UNSET, b"1"),
        (b'{"partition":0,"data":1e400}', wire.UNSET, b"1e400"),
        (b'{"partition":0,"data":"\\u2028\\ud83d\\ude00"}', wire.UNSET, b'"\\u2028\\ud83d\\ude00"'),
    ],
)
def test_an_event_keeps_its_data_byte_for_byte(line, headers, data):
    """Data comes as the publisher wrote it, with its spaces, digits and escapes."""
    event = wire.parse_event(line, 0)

    assert (headers, data) == (event.headers, bytes(event.data))


@pytest.mark.parametrize("line", [b'{"partition":0}', b'{"partition":0,"headers":{"h":"v"}}'])
def test_an_event_may_lack_data(line):
    """Some publishers leave empty data out; it is an event all the same."""
    intervals, _ = scan(line + b"\n" + C1)

    assert (1, wire.UNSET) == (intervals[0].events, wire.parse_event(line, 0).data)


@pytest.mark.parametrize(
    "line",
    [b"{}", b'{"command":"x"}', b'{"partition":0,"new":1}', b'{"headers":{}}', b'{"cursor":""}'],
)
def test_unknown_lines_are_left_out_and_counted(line):
    """Lines of a later version of the protocol do not stop me, and I see how many there were."""
    intervals, scanner = scan(E1 + line + b"\n" + E2 + C1)

    assert ([Interval(E1 + E2, 2, "c1")], 1) == (intervals, scanner.ignored)
    assert wire.parse_event(line, 0) is None


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"Internal server error", "malformed"),
        (b"[1]", "object"),
        (b"null", "object"),
        (b'{"partition":0,"data":1', "truncated"),
        (b'{"partition":0,"data":1}{"partition":0,"data":2}', "trailing characters"),
        (b'{"partition":"0","data":1}', "partition"),
        (b'{"partition":0,"headers":{"h":1},"data":1}', "headers"),
        (b'{"partition":0,"headers":[],"data":1}', "headers"),
        (b'{"partition":0,"data":"\xff"}', "not UTF-8"),
        (b'{"partition":0,"data":NaN}', r"NaN is not JSON .*allow_nan=False"),
        (b'{"partition":0,"data":[1, -Infinity]}', "-Infinity is not JSON"),
        (b'{"partition":0,"data":' + b"[" * 100_000, "nested too deeply"),
        (b'{"partition":0,"data":"\\ud800"}', "half of a surrogate pair"),
    ],
)
def test_a_line_that_is_no_event_is_named_with_the_reason(line, reason):
    """The error shows me the line's beginning and what is wrong with it."""
    with pytest.raises(MalformedLineError, match=reason) as caught:
        wire.parse_event(line, 0)

    assert (0, wire.excerpt(line)) == (caught.value.partition, caught.value.body)


def test_an_event_of_another_partition_is_refused():
    """An event that I did not ask for may come to me twice, so it stops the query."""
    with pytest.raises(PublisherError, match="partition 1, which was not asked for"):
        wire.parse_event(b'{"partition":1,"data":1}', 0)


# The end of an answer


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n", b"\n\n", b"\n  \n"])
@pytest.mark.parametrize(
    "line", [b"Internal server error", b"<html>", b'{"partition":0,"da', b"[]"]
)
def test_a_last_line_that_is_not_json_is_the_publishers_error(line, end):
    """A publisher that fails in the middle of an answer is heard, not taken for the end."""
    scanner = PageScanner(0)

    intervals = scanner.feed(E1 + C1 + E2 + line + end)

    assert [Interval(E1, 1, "c1")] == intervals
    with pytest.raises(PublisherError, match="ended its answer with a line that is not JSON"):
        scanner.close()


def test_a_last_line_with_nan_says_so():
    """A publisher written in Python can send NaN; the error tells its owner how not to."""
    scanner = PageScanner(0)
    scanner.feed(b'{"partition":0,"data":NaN}')

    with pytest.raises(PublisherError, match="NaN is not JSON"):
        scanner.close()


@pytest.mark.parametrize("body", [b"", b"\n", b"\r\n", b"\xef\xbb\xbf", b"\xef\xbb\xbf\n"])
def test_an_empty_answer_is_whole(body):
    """Nothing new is a good answer."""
    assert [] == scan(body)[0]


def test_what_waits_for_a_checkpoint_is_measured():
    """Memory is bounded by what no checkpoint has closed, half a line included."""
    scanner = PageScanner(0)
    scanner.feed(E1 + C1 + E2 + b'{"par')

    assert len(E2) + 5 == scanner.held_bytes


# Writing


def test_an_event_line_is_compact_and_its_headers_sorted():
    """The same event is always the same bytes."""
    expected = b'{"partition":3,"headers":{"a":"\xc3\xa9","b":"2"},"data":{"x": 1}}'

    assert expected == wire.event_line(3, {"b": "2", "a": "é"}, b'{"x": 1}')


def test_a_checkpoint_line_escapes_its_cursor():
    """A cursor may hold quotes and backslashes."""
    line = wire.checkpoint_line(3, 'a"b\\')

    assert (b'{"partition":3,"cursor":"a\\"b\\\\"}\n', 'a"b\\') == (
        line,
        wire.checkpoint_cursor(line, 3),
    )


def test_json_text_keeps_its_bytes_but_for_newlines_between_tokens():
    """What I publish is what is read, in one line."""
    assert b'{"a":  1.50,   "b":"\\n"}' == wire.validated_json(
        b'\r\n{"a":\r\n1.50,\n  "b":"\\n"}\n'
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "not JSON"),
        (b"{'a':1}", "not JSON"),
        (b'"a\nb"', "not JSON"),
        (b'{"a":1,}', "trailing comma"),
        (b"1 2", "trailing characters"),
        (b'"\xff"', "not UTF-8"),
        (b"[NaN]", "NaN is not JSON"),
        (b"[" * 100_000, "nested 100000 deep"),
        (b'[{"a":' * 250 + b"[1]" + b"}]" * 250, "nested 501 deep; at most 500"),
    ],
)
def test_text_that_is_not_json_is_refused(text, reason):
    """I hear what is wrong with my data before it is published."""
    with pytest.raises(ValueError, match=reason):
        wire.validated_json(text)


def test_stamps_fit_the_room_left_for_them():
    """A line with the longest stamps is no longer than what every client reads."""
    longest = {name: "x" * size for name, size in wire.STAMPS.items()}
    stamped = wire.event_line(0, {**longest, "h": "v"}, b"1")

    assert wire.STAMP_BYTES == len(stamped) - len(wire.event_line(0, {"h": "v"}, b"1"))


@pytest.mark.parametrize(
    ("key", "of_4", "of_1000"),
    [("", 2, 138), ("a", 3, 719), ("customer-17", 0, 452), ("42", 1, 473), ("Ålesund", 3, 263)],
)
def test_a_key_goes_to_the_same_partition_for_ever(key, of_4, of_1000):
    """A key's events stay in their partition with every version of every writer."""
    assert (of_4, of_1000) == (wire.partition_of(key, 4), wire.partition_of(key, 1000))


def test_the_digest_is_the_same_for_ever():
    """A checkpoint written by one version can be replayed by the next."""
    assert "99aa06d3014798d86001c324468d497f" == wire.digest([])
    assert "19e42a072f69fab97e10515bf52ed38f" == wire.digest([E1, E2])


# Laws

EVERY_KIND = (
    b"\xef\xbb\xbf" + E1 + b"  " + E2 + b"\r\n" + C1 + E1[:-1] + b" \r\n" + b'{"later":1}\n' + b"\n"
    b" " + E2 + b'{"partition":0}\n' + C2 + b' {"data":"\xe2\x80\xa8"}\n\t\n' + E2[:-1]
)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 31])
def test_small_reads_give_the_same_as_one(size):
    """A slow network changes nothing in what I get."""
    whole, one = scan(EVERY_KIND)

    pieces, many = scan(*[EVERY_KIND[at : at + size] for at in range(0, len(EVERY_KIND), size)])

    assert (whole, one.tail, one.ignored) == (pieces, many.tail, many.ignored)


def test_a_cut_at_any_byte_gives_the_same():
    """Nor does the place where an answer is cut into two reads."""
    expected = scan(EVERY_KIND)[0]

    for place in range(len(EVERY_KIND)):
        assert expected == scan(EVERY_KIND[:place], EVERY_KIND[place:])[0], place


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


@given(st.lists(strategies.feed_lines()).map(b"".join), st.data())
def test_the_digest_depends_on_the_bytes_alone(lines, data):
    """In what pieces the events are held changes nothing."""
    assert wire.digest([lines]) == wire.digest(data.draw(strategies.cut(lines)))


@given(strategies.json_texts())
def test_json_is_published_as_it_is(text):
    """My data is not rewritten."""
    assert text == wire.validated_json(text)


@given(strategies.text, st.integers(1, 1000))
def test_every_key_has_a_partition(key, partition_count):
    """No key falls outside the feed."""
    assert 0 <= wire.partition_of(key, partition_count) < partition_count
