"""Which repaired dead letters can be published, before any of them is."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.unit.protocol.test_dead_letters import FEED, OTHER, PLACE, URL, line, lines, long_letter
from zeh_spark.cli.dead_letter_replay import repaired
from zeh_spark.protocol.dead_letters import Unreadable, letter, letters
from zeh_spark.protocol.feed_identity import Epoch, FeedIdentity, untold
from zeh_spark.protocol.upload_format import LINE_BYTES

HERE = replace(PLACE, feed=FEED)
TOLD = FeedIdentity(FEED, (Epoch(FEED),))
ONE = json.dumps({"row": {"data": "1"}}).encode()


def given(*rows, sequence=5):
    """Dead letters, one after the other, as lines."""
    return [
        line(json.dumps({"row": row}).encode(), HERE, sequence=sequence + each)
        for each, row in enumerate(rows)
    ]


def checked(some, letters_of=None):
    return repaired(letters(some), 4, letters_of)


def test_a_repaired_dead_letter_is_ready_to_be_published():
    """Its event, and where it goes."""
    row = {"data": '{"a": 1.50}', "key": "k", "headers": {"h": "1"}}

    (found,) = checked(given(row))

    assert (HERE, b'{"a": 1.50}') == (found.place, found.data)
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
def test_a_dead_letter_that_still_cannot_be_published_is_named(row, why):
    """By its line."""
    with pytest.raises(Unreadable, match=why) as raised:
        checked(given({"data": "1"}, row))

    assert 2 == raised.value.line


def test_a_long_dead_letter_is_repaired_whole():
    """As it was it is too long still; shortened it can be published."""
    (whole,) = letters(lines(long_letter(), HERE))
    short = json.loads(whole.whole)
    short["data"]["row"]["data"] = "[]"

    with pytest.raises(Unreadable, match="bytes as a line"):
        checked(lines(long_letter(), HERE))
    (found,) = checked([json.dumps(short).encode()])

    assert (whole.place, b"[]") == (found.place, found.data)


def test_equal_rows_are_two_dead_letters():
    """Both are published; only the same dead letter again is one."""
    twice = given({"data": "1"}, {"data": "1"})

    assert 2 == len(checked([*twice, *twice]))


def test_equal_dead_letters_of_two_feeds_are_two_dead_letters():
    """Their numbers mean other events."""
    assert 2 == len(checked([line(ONE, replace(PLACE, feed=each)) for each in (FEED, OTHER)]))


@pytest.mark.parametrize("order", [1, -1])
def test_dead_letters_of_which_one_names_its_feed_by_a_url_are_refused(order):
    """Printed before and after the publisher's upgrade: they may be the same dead letter."""
    given = [line(ONE, replace(PLACE, feed=each)) for each in (URL, FEED)][::order]

    with pytest.raises(Unreadable, match=r"'zeh-feed'.*Print that of line .* again"):
        checked(given)


@pytest.mark.parametrize("feed", [None, ""])
def test_a_dead_letter_that_does_not_name_its_feed_is_refused(feed):
    """It may have been published under the name that the feed's id is part of."""
    given = [line(ONE, HERE), line(ONE, replace(PLACE, sequence=6, feed=feed))]

    with pytest.raises(Unreadable, match=r"dead-letters.*--letters-of URL") as raised:
        checked(given)

    assert 2 == raised.value.line


def test_what_has_no_event_needs_no_feed():
    """A record of a session is not published."""
    assert [] == checked([line(b'{"row":null}')])


def test_a_dead_letter_without_a_feed_gets_the_one_that_is_given():
    """It is the same dead letter as in the file that names it."""
    (found,) = checked([line(ONE), line(ONE, HERE)], TOLD)

    assert HERE == found.place


@pytest.mark.parametrize("named", [OTHER, URL])
def test_a_dead_letter_that_names_its_feed_keeps_it(named):
    """Whatever feed is given for the others."""
    (found,) = checked([line(ONE, replace(PLACE, feed=named))], TOLD)

    assert named == found.place.feed


def test_a_feed_without_an_id_gives_its_dead_letters_the_name_of_older_versions():
    """As if the dead letter had been printed again."""
    (found,) = checked([line(ONE)], untold(URL))

    assert (URL, PLACE.name) == (found.place.feed, found.place.name)


def test_a_dead_letter_in_parts_gets_the_feed_that_is_given():
    """It is one dead letter then."""
    parts = lines(letter("x" * 200_000, "p", 1, {"data": "1"}))

    (found,) = checked(parts, TOLD)

    assert 1 < len(parts)
    assert HERE == found.place


def test_a_dead_letter_that_is_repaired_in_two_ways_is_refused():
    """Nobody guesses which one is meant."""
    with pytest.raises(Unreadable, match="of line 1, repaired in another way") as raised:
        checked([*given({"data": "1"}), *given({"data": "2"})])

    assert 2 == raised.value.line
