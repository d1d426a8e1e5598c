"""Which repaired dead letters can be published, before any of them is."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.cases import each_case
from tests.unit.protocol.test_dead_letters import FEED, OTHER, PLACE, line, lines, long_letter
from zeh_spark.cli.dead_letter_replay import repaired
from zeh_spark.protocol.dead_letters import Unreadable, letters
from zeh_spark.protocol.upload_format import LINE_BYTES

ONE = json.dumps({"row": {"data": "1"}}).encode()


def given(*rows, sequence=5):
    """Dead letters, one after the other, as lines."""
    return [
        line(json.dumps({"row": row}).encode(), PLACE, sequence=sequence + each)
        for each, row in enumerate(rows)
    ]


def checked(some):
    return repaired(letters(some), 4)


def test_a_repaired_dead_letter_is_ready_to_be_published():
    """Its event, and where it goes."""
    row = {"data": '{"a": 1.50}', "key": "k", "headers": {"h": "1"}}

    (found,) = checked(given(row))

    assert (PLACE, b'{"a": 1.50}') == (found.place, found.data)
    assert ("k", None, {"h": "1"}) == (found.row.key, found.row.partition, found.row.headers)


@each_case(
    ("row", "why"),
    [
        ({"data": "{"}, "not JSON"),
        ({"unfit": {"x": "NaN"}}, "no 'data'"),
        ({"data": "1", "partition": 4}, "no partition 4"),
        ({"data": "1", "partition": 1, "key": "k"}, "exclude each other"),
        ({"data": json.dumps("x" * LINE_BYTES)}, "bytes as a line"),
        ({"data": "[" * 501 + "]" * 501}, "nested 501 deep"),
    ],
)
def test_a_dead_letter_that_still_cannot_be_published_is_named(row, why):
    """By its line."""
    with pytest.raises(Unreadable, match=why) as raised:
        checked(given({"data": "1"}, row))

    assert 2 == raised.value.line


def test_a_long_dead_letter_is_repaired_whole():
    """As it was it is too long still; shortened it can be published."""
    (whole,) = letters(lines(long_letter(), PLACE))
    short = json.loads(whole.whole)
    short["data"]["row"]["data"] = "[]"

    with pytest.raises(Unreadable, match="bytes as a line"):
        checked(lines(long_letter(), PLACE))
    (found,) = checked([json.dumps(short).encode()])

    assert (whole.place, b"[]") == (found.place, found.data)


def test_equal_rows_are_two_dead_letters():
    """Both are published, also those of two feeds, whose numbers mean other events; only the same
    dead letter again is one.
    """
    twice = given({"data": "1"}, {"data": "1"})
    of_two_feeds = [line(ONE, replace(PLACE, feed=each)) for each in (FEED, OTHER)]

    assert 2 == len(checked([*twice, *twice]))
    assert 2 == len(checked(of_two_feeds))


def test_a_dead_letter_that_is_repaired_in_two_ways_is_refused():
    """Nobody guesses which one is meant."""
    with pytest.raises(Unreadable, match="of line 1, repaired in another way") as raised:
        checked([*given({"data": "1"}), *given({"data": "2"})])

    assert 2 == raised.value.line
