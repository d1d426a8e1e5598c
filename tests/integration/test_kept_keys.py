"""Keys that other writers than Spark keep: a Producer, the command line, replayed dead letters."""

from __future__ import annotations

import json

import pytest

from tests.fix_cli import call
from tests.fix_dead_letters import Two
from tests.fix_publisher import Publisher
from tests.integration.test_dead_letters import BAD
from tests.scratch_store import ScratchStore
from zeh_spark.client import dead_letter_replay
from zeh_spark.errors import RowError
from zeh_spark.publish import Producer
from zeh_spark.wire.dead_letters import Unreadable, letters


def keys(publisher: Publisher) -> dict[object, str | None]:
    """The header `zeh-key` of each event, by its data's member `i`."""
    lines = publisher.get("n=2&cursor0=_first&cursor1=_first&headers=_all").lines
    return {each["data"]["i"]: each["headers"].get("zeh-key") for each in lines if "data" in each}


def test_a_producer_keeps_the_keys_that_i_say(publisher: Publisher) -> None:
    """As the sink does with keepKey: text, integers as their text, nothing without a key."""
    with Producer(publisher.url, "till").batch() as batch:
        batch.add({"i": 0}, key='say "ø"\n', keep_key=True, headers={"zeh-key": "forged"})
        batch.add({"i": 1}, key=7, keep_key=True)
        batch.add({"i": 2}, keep_key=True)
        batch.add({"i": 3}, key="c-4", headers={"zeh-key": "forged"})
        batch.add({"i": 4}, key="ä" * 512, keep_key=True)
        with pytest.raises(RowError, match="key: it takes 1,025 bytes in UTF-8; at most 1,024"):
            batch.add({"i": 5}, key="ä" * 512 + "x", keep_key=True)
    assert {0: 'say "ø"\n', 1: "7", 2: None, 3: None, 4: "ä" * 512} == keys(publisher)


def test_the_command_line_keeps_keys(publisher: Publisher) -> None:
    """`publish` and `load`, with a column or with envelopes."""
    lines = '{"i": 0, "k": "a"}\n{"i": 1, "k": 7}\n{"i": 2, "k": null}\n'
    flags = ("--producer", "till", "--key", "k", "--keep-key")
    done = call("publish", publisher.url, *flags, stdin=lines)
    assert 0 == done.returncode, done.stderr
    enveloped = '{"key": "b", "data": {"i": 3}}\n{"data": {"i": 4}}\n'
    store = ("--store", publisher.store_url)
    done = call("load", "orders", "-", *store, "--envelope", "--keep-key", stdin=enveloped)
    assert 0 == done.returncode, done.stderr
    done = call("load", "orders", "-", *store, "--envelope", stdin='{"key":"c","data":{"i":5}}\n')
    assert 0 == done.returncode, done.stderr
    assert {0: "a", 1: "7", 2: None, 3: "b", 4: None, 5: None} == keys(publisher)


@pytest.mark.parametrize("command", ["load", "publish"])
def test_keys_to_keep_have_to_be_named(command: str, publisher: Publisher) -> None:
    """The option alone would keep nothing."""
    where = ["orders", "-"] if command == "load" else [publisher.url, "--producer", "till"]
    done = call(command, *where, "--keep-key", stdin='{"i": 0}\n')
    assert (2, True) == (done.returncode, "--keep-key needs keys: give --key" in done.stderr)


def test_a_replayed_dead_letter_keeps_its_key_on_request(two: Two) -> None:
    """So it is published as its query would have published it."""
    two.publish(0, ["1", BAD])
    letter = json.loads(two.repaired_letter('{"i": 1}'))

    def repaired(key: str) -> list[dead_letter_replay.RepairedLetter]:
        letter["data"]["row"]["key"] = key
        line = json.dumps(letter).encode()
        return dead_letter_replay.repaired(letters([line]), 2, keep_key=True)

    with pytest.raises(Unreadable, match="key: it takes 1,025 bytes"):
        repaired("x" * 1025)
    (replayed,) = dead_letter_replay.replay(two.url, repaired("k"), keep_key=True)

    assert "published" == replayed.outcome.value
    lines = (
        Publisher(ScratchStore(), two.main.address, "")
        .get("n=2&cursor0=_first&cursor1=_first&headers=zeh-key")
        .lines
    )
    kept = [each.get("headers", {}).get("zeh-key") for each in lines if "data" in each]
    assert {None, "k"} == {*kept}
    # without the key it is another content
    (without_key,) = dead_letter_replay.replay(two.url, repaired("k"))
    assert "refused" == without_key.outcome.value
