"""Dead letters that are published again: of several feeds, and of older versions."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from tests.fix_dead_letters import Two, direct
from tests.fix_raw_server import RawServer, ok
from zeh_spark.cli import dead_letter_replay
from zeh_spark.client.discovery import discover
from zeh_spark.client.following import follow
from zeh_spark.client.transport import Transport
from zeh_spark.options.client_options import ClientOptions
from zeh_spark.options.given import parse
from zeh_spark.protocol.dead_letters import letters
from zeh_spark.protocol.feed_identity import untold
from zeh_spark.protocol.problems import URN as PROBLEM

BAD = '{"i":'


def repaired_dead_letter(two, data="2", **headers):
    """The one dead letter of `two`, repaired, with other headers; None takes one away."""
    pages = follow(direct(two.dead, "dead"), "_first", {}, whole=True, endless=False)
    (letter,) = (json.loads(line) for page in pages for line in page)
    letter["data"]["row"]["data"] = data
    named = {**letter["headers"], **{f"zeh-{name}": each for name, each in headers.items()}}
    letter["headers"] = {name: each for name, each in named.items() if each is not None}
    return json.dumps(letter).encode()


def replayed(two, line, letters_of=None):
    return published(two, dead_letter_replay.repaired(letters([line]), 2, letters_of))


def replayed_by_an_older_version(two, line):
    """Under the name that leaves the feed out."""
    (letter,) = dead_letter_replay.repaired(letters([line]), 2)
    return published(two, [replace(letter, place=letter.place.without_feed)])


def published(two, given):
    (found,) = dead_letter_replay.replay(two.url, given)
    return found.outcome.value, found.reason


def test_dead_letters_of_two_feeds_with_the_same_stamps_are_both_published(two: Two) -> None:
    """Each feed counts from 0: the dead letter of another one is not the same dead letter again."""
    two.publish(0, ["1", BAD])
    one, other = repaired_dead_letter(two), repaired_dead_letter(two, feed="60303ae22b998861")

    said = [replayed(two, each)[0] for each in (one, other, one, other)]

    assert ["published", "published", "published before", "published before"] == said
    assert 3 == len(two.events())


def test_a_dead_letter_that_an_older_version_published_is_not_published_again(two: Two) -> None:
    """Printed again by this one it says which feed it comes from: the same dead letter still."""
    two.publish(0, ["1", BAD])
    assert "published" == replayed_by_an_older_version(two, repaired_dead_letter(two))[0]

    again = replayed(two, repaired_dead_letter(two))
    otherwise = replayed(two, repaired_dead_letter(two, data="3"))

    assert "published before" == again[0]
    assert "refused" == otherwise[0]
    assert re.search(r"repaired in another way, as batch p#dead:0:", otherwise[1])
    assert 2 == len(two.events())


@pytest.mark.parametrize("first", [replayed, replayed_by_an_older_version])
def test_a_dead_letter_of_a_file_of_an_older_version_is_known_again(two: Two, first: Any) -> None:
    """With the feed that it is from, whichever version published it."""
    two.publish(0, ["1", BAD])
    feed = dead_letter_replay.identity_of(two.dead_url)
    first(two, repaired_dead_letter(two))

    again = replayed(two, repaired_dead_letter(two, feed=None), feed)
    otherwise = replayed(two, repaired_dead_letter(two, data="3", feed=None), feed)

    assert ("published before", "refused") == (again[0], otherwise[0])
    assert 2 == len(two.events())


@pytest.mark.parametrize("printed", ["by an older version", "by this one"])
def test_dead_letters_of_a_feed_that_tells_no_id_keep_the_name_of_older_versions(
    two: Two, raw_server: RawServer, printed: str
) -> None:
    """Printed they name the feed's URL, and so they do with the feed that I give."""
    older = {"type": f"{PROBLEM}partition-count-missing", "partitionCount": 3}
    raw_server.discovery = ok(json.dumps(older).encode(), 400)
    two.publish(0, ["1", BAD])
    feed = dead_letter_replay.identity_of(raw_server.url)
    named = {"by an older version": None, "by this one": raw_server.url}[printed]

    said = replayed(two, repaired_dead_letter(two, feed=named), None if named else feed)
    again = replayed_by_an_older_version(two, repaired_dead_letter(two))

    assert untold(raw_server.url) == feed
    assert ("published", "published before") == (said[0], again[0])
    assert 2 == len(two.events())


def test_dead_letters_are_printed_with_the_feed_that_they_come_from(two: Two) -> None:
    """As its publisher tells it; what an address is made of is not needed."""
    two.publish(0, ["1", BAD])
    found = discover(Transport(parse(ClientOptions, {"url": direct(two.dead, "dead")}))).identity

    assert found
    assert found.id == json.loads(repaired_dead_letter(two))["headers"]["zeh-feed"]
