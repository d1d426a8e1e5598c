"""Dead letters that are published again: of several feeds, and of older versions."""

from __future__ import annotations

import json
import re

from tests.fix_dead_letters import Two, direct
from zeh_spark.cli import dead_letter_replay
from zeh_spark.client.discovery import discover
from zeh_spark.client.following import follow
from zeh_spark.client.transport import Transport
from zeh_spark.options.client_options import ClientOptions
from zeh_spark.options.given import parse
from zeh_spark.protocol.dead_letters import letters

BAD = '{"i":'


def repaired_dead_letter(two, data="2", **headers):
    """The one dead letter of `two`, repaired, with other headers; None takes one away."""
    pages = follow(direct(two.dead, "dead"), "_first", {}, whole=True, endless=False)
    (letter,) = (json.loads(line) for page in pages for line in page)
    letter["data"]["row"]["data"] = data
    named = {**letter["headers"], **{f"zeh-{name}": each for name, each in headers.items()}}
    letter["headers"] = {name: each for name, each in named.items() if each is not None}
    return json.dumps(letter).encode()


def replayed(two, line):
    letters_given = dead_letter_replay.repaired(letters([line]), 2)
    (found,) = dead_letter_replay.replay(two.url, letters_given)
    return found.outcome.value, found.reason


def test_dead_letters_of_two_feeds_with_the_same_stamps_are_both_published(two: Two) -> None:
    """Each feed counts from 0: the dead letter of another one is not the same dead letter again."""
    two.publish(0, ["1", BAD])
    one, other = repaired_dead_letter(two), repaired_dead_letter(two, feed="60303ae22b998861")

    said = [replayed(two, each)[0] for each in (one, other, one, other)]

    assert ["published", "published", "published before", "published before"] == said
    assert 3 == len(two.events())


def test_a_dead_letter_is_known_again_and_compared(two: Two) -> None:
    two.publish(0, ["1", BAD])
    replayed(two, repaired_dead_letter(two))

    again = replayed(two, repaired_dead_letter(two))
    otherwise = replayed(two, repaired_dead_letter(two, data="3"))

    assert ("published before", "refused") == (again[0], otherwise[0])
    assert re.search(r"repaired in another way, as batch p#dead:0:", otherwise[1])
    assert 2 == len(two.events())


def test_dead_letters_are_printed_with_the_feed_that_they_come_from(two: Two) -> None:
    """As its publisher tells it; what an address is made of is not needed."""
    two.publish(0, ["1", BAD])
    found = discover(Transport(parse(ClientOptions, {"url": direct(two.dead, "dead")}))).identity

    assert found
    assert found.id == json.loads(repaired_dead_letter(two))["headers"]["zeh-feed"]
