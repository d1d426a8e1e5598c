"""Which mended letters can be published, before any of them is."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.unit.test_dead_letters import FEED, OTHER, PLACE, line, lines, long_letter
from zeh_spark.chunks import LINE_BYTES
from zeh_spark.dead_letters import Unreadable, letters
from zeh_spark.replaying import mended


def given(*rows, sequence=5):
    """Letters, one behind the other, as lines."""
    return [
        line(json.dumps({"row": row}).encode(), sequence=sequence + each)
        for each, row in enumerate(rows)
    ]


def checked(some, count=4):
    return mended(letters(some), count)


def test_a_mended_letter_is_ready_to_be_published():
    """Its event, and where it goes."""
    row = {"data": '{"a": 1.50}', "key": "k", "headers": {"h": "1"}}

    (found,) = checked(given(row))

    assert (PLACE, b'{"a": 1.50}') == (found.place, found.data)
    assert ("k", None, {"h": "1"}) == (found.row.key, found.row.partition, found.row.headers)


@pytest.mark.parametrize(
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
def test_a_letter_that_still_cannot_be_published_is_named(row, why):
    """By its line."""
    with pytest.raises(Unreadable, match=why) as raised:
        checked(given({"data": "1"}, row))

    assert 2 == raised.value.line


def test_a_long_letter_is_mended_whole():
    """As it was it is too long still; shortened it can be published."""
    (whole,) = letters(lines(long_letter()))
    short = json.loads(whole.whole)
    short["data"]["row"]["data"] = "[]"

    with pytest.raises(Unreadable, match="bytes as a line"):
        checked(lines(long_letter()))
    (found,) = checked([json.dumps(short).encode()])

    assert (whole.place, b"[]") == (found.place, found.data)


def test_equal_rows_are_two_letters():
    """Both are published; only the same letter again is one."""
    twice = given({"data": "1"}, {"data": "1"})

    assert 2 == len(checked([*twice, *twice]))


def test_equal_letters_of_two_feeds_are_two_letters():
    """Their numbers mean other events."""
    data = json.dumps({"row": {"data": "1"}}).encode()

    assert 2 == len(checked([line(data, replace(PLACE, feed=each)) for each in (FEED, OTHER)]))


@pytest.mark.parametrize("order", [1, -1])
def test_letters_of_which_one_does_not_name_its_feed_are_refused(order):
    """A file of an older version beside a new one: whether they are the same cannot be told."""
    data = json.dumps({"row": {"data": "1"}}).encode()
    given = [line(data), line(data, replace(PLACE, feed=FEED))][::order]

    with pytest.raises(Unreadable, match=r"'zeh-feed'.*print that of line .* again"):
        checked(given)


def test_a_letter_that_is_mended_in_two_ways_is_refused():
    """Nobody guesses which one is meant."""
    with pytest.raises(Unreadable, match="the letter of line 1, mended in another way") as raised:
        checked([*given({"data": "1"}), *given({"data": "2"})])

    assert 2 == raised.value.line
