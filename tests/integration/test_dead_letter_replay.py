"""Dead letters that are published again: of several feeds, and of older versions."""

from __future__ import annotations

import json
import re

import pytest

from tests.fix_dead_letters import Two, direct
from tests.fix_sink import lost
from zeh_spark.cli import dead_letter_replay
from zeh_spark.client.discovery import discover
from zeh_spark.client.transport import Transport
from zeh_spark.errors import UnavailableError
from zeh_spark.options.client_options import ClientOptions
from zeh_spark.options.given import parse
from zeh_spark.protocol.dead_letters import letters

BAD = '{"i":'


def replayed(two: Two, line: bytes, **options: str) -> tuple[str, str]:
    given = dead_letter_replay.repaired(letters([line]), 2)
    (found,) = dead_letter_replay.replay(two.url, given, **options)
    return found.outcome.value, found.reason


@pytest.fixture
def one_bad(two: Two) -> Two:
    """A dead letter is there, and an event."""
    two.publish(0, ["1", BAD])
    return two


def test_dead_letters_of_two_feeds_with_the_same_stamps_are_both_published(one_bad):
    """Each feed counts from 0: the dead letter of another one is not the same dead letter again."""
    one, other = one_bad.repaired_letter(), one_bad.repaired_letter(feed="60303ae22b998861")

    said = [replayed(one_bad, each)[0] for each in (one, other, one, other)]

    assert ["published", "published", "published before", "published before"] == said
    assert 3 == len(one_bad.events())


def test_a_dead_letter_is_known_again_and_compared(one_bad):
    replayed(one_bad, one_bad.repaired_letter())

    again = replayed(one_bad, one_bad.repaired_letter())
    otherwise = replayed(one_bad, one_bad.repaired_letter(data="3"))

    assert ("published before", "refused") == (again[0], otherwise[0])
    assert re.search(r"repaired in another way, as batch p#dead:0:", otherwise[1])
    assert 2 == len(one_bad.events())


def test_dead_letters_are_printed_with_the_feed_that_they_come_from(one_bad):
    """As its publisher tells it; what an address is made of is not needed."""
    options = parse(ClientOptions, {"url": direct(one_bad.dead, "dead")})
    found = discover(Transport(options)).identity

    assert found
    assert found.id == json.loads(one_bad.repaired_letter())["headers"]["zeh-feed"]


def test_a_dead_letter_whose_outcome_is_unknown_is_told_by_its_line(one_bad):
    """The next call finds out; none is published twice."""
    letter = one_bad.repaired_letter()
    one_bad.main.once("POST .*/commit", before=lost)

    with pytest.raises(
        UnavailableError, match="not known whether the dead letter of line 1 was published"
    ) as told:
        replayed(one_bad, letter, retryTimeout="0")

    assert str(told.value).endswith("Give the same dead letters again; none is published twice.")
    assert replayed(one_bad, letter)[0] in ("published", "published before")
    assert 2 == len(one_bad.events())
