"""The wire format, rule by rule as in the head of `wire`, and its laws."""

from __future__ import annotations

import pytest

from tests.cases import each_case
from zeh_spark.errors import MalformedLineError, PublisherError
from zeh_spark.protocol import wire

# Events


@each_case(
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


@each_case(
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


# Writing


def test_what_is_written_is_canonical():
    """The same event is always the same bytes: compact, with sorted headers, and its data as it is
    but for newlines between tokens. A cursor may hold quotes and backslashes.
    """
    data = wire.validated_json(b'\r\n{"a":\r\n1.50,\n  "a":"\\n"}\n')
    line = wire.checkpoint_line(3, 'a"b\\')

    assert b'{"a":  1.50,   "a":"\\n"}' == data
    assert b'{"partition":3,"headers":{"a":"\xc3\xa9","b":"2"},"data":%b}' % data == (
        wire.event_line(3, {"b": "2", "a": "é"}, data)
    )
    assert b'{"partition":3,"cursor":"a\\"b\\\\"}\n' == line
    assert 'a"b\\' == wire.checkpoint_cursor(line, 3)


@each_case(
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
    """A line with the longest stamps is no longer than what every client reads (EH-17)."""
    longest = {name: "x" * size for name, size in wire.STAMPS.items()}
    stamped = wire.event_line(0, {**longest, "h": "v"}, b"1")

    assert wire.STAMP_BYTES == len(stamped) - len(wire.event_line(0, {"h": "v"}, b"1"))
