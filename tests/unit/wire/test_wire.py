"""What is written in the wire format; what is read is in test_page_scanner and test_lines."""

import pytest

from tests.cases import each_case
from zeh_spark.wire import upload_format, wire


def test_what_is_written_is_canonical():
    """The same event is always the same bytes: compact, with sorted headers, and its data as it is
    but for newlines between tokens. A cursor may hold quotes and backslashes.
    """
    data = upload_format.validated_json(b'\r\n{"a":\r\n1.50,\n  "a":"\\n"}\n')
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
        upload_format.validated_json(text)


def test_stamps_fit_the_room_left_for_them():
    """A line with the longest stamps is no longer than what every client reads (EH-17)."""
    longest = {name: "x" * size for name, size in wire.STAMPS.items()}
    stamped = wire.event_line(0, {**longest, "h": "v"}, b"1")

    assert wire.STAMP_BYTES == len(stamped) - len(wire.event_line(0, {"h": "v"}, b"1"))
