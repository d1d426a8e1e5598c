"""Dead letters from the command line: printed, repaired with other tools, published again, once."""

from __future__ import annotations

import json
import os
import re
import subprocess
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.fix_cli import COMMAND, call, published
from tests.fix_publisher import open_feeds
from tests.fix_sink import Watched, lost
from zeh_spark.client.http.publish_client import BatchCall, TaskDone
from zeh_spark.spark.sink.options import sink_options
from zeh_spark.spark.sink.row_layout import RowLayout
from zeh_spark.spark.sink.writer import StreamWriter, stage

Lines = list[dict[str, Any]]


@dataclass
class Shop:
    """A publisher with the feeds `orders` and `dead`; its commands."""

    folder: Path
    base: str

    @property
    def orders(self) -> str:
        return f"{self.base}/orders"

    @property
    def dead(self) -> str:
        return f"{self.base}/dead"

    def sink(self, producer: str, number: int, **columns: pa.Array) -> None:
        """What a batch with dead letters leaves."""
        given = {"url": self.orders, "deadLetterUrl": self.dead, "producerId": producer}
        options = sink_options(given, streaming=True)
        layout = RowLayout(tuple(columns), text=True)
        batch = BatchCall(producer, f"checkpoint-of-{producer}", uuid.uuid4().hex, number)
        frame = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
        staged = stage(options, layout, batch, TaskDone(0, 0), iter([frame]))
        StreamWriter(options, layout).commit([staged], number)

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*COMMAND, *words],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return call(*words, stdin=stdin)

    def letters(self) -> Lines:
        done = self.run("dead-letters", self.dead)
        assert 0 == done.returncode, done.stderr
        return list(map(json.loads, done.stdout.splitlines()))

    def replay(self, lines: Lines, url: str = "") -> subprocess.CompletedProcess[str]:
        return self.run("replay-dead", url or self.orders, stdin=text_of(lines))

    def events(self) -> Lines:
        done = self.run("tail", self.orders, "--from", "first", "--no-follow", "--headers")
        return list(map(json.loads, done.stdout.splitlines()))

    def data(self) -> Counter[str]:
        return Counter(json.dumps(each["data"]) for each in self.events())


def text_of(lines: Lines) -> str:
    return "".join(json.dumps(each) + "\n" for each in lines)


def with_data(lines: Lines, repair: Callable[[str], Any]) -> Lines:
    """Repaired copies."""
    found = json.loads(json.dumps(lines))
    for each in found:
        each["data"]["row"]["data"] = repair(each["data"]["row"]["data"])
    return list(found)


def closed(data: str) -> str:
    return f"{data}}}"


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    url = f"sqlite:///{tmp_path}/feeds.db"
    with open_feeds(url, orders=3, dead=2), published(url) as base:
        yield Shop(tmp_path, base)


def test_dead_letters_are_repaired_and_published(shop: Shop) -> None:
    """Data, key and headers come back where they belong; who had them first is named."""
    headers = pa.array([[("kind", "a")]] * 3, pa.map_(pa.string(), pa.string()))
    data, keys = pa.array(['{"i":1}', '{"i":2', '{"i":3']), pa.array(["k", "k", None])
    shop.sink("job", 0, data=data, key=keys, headers=headers)

    done = shop.replay(with_data(shop.letters(), closed))

    assert (0, "Published 2 dead letters.\n") == (done.returncode, done.stdout)
    by_number = {each["data"]["i"]: each for each in shop.events()}
    assert {1, 2, 3} == by_number.keys()
    assert by_number[1]["partition"] == by_number[2]["partition"]
    assert {"a"} == {each["headers"]["kind"] for each in by_number.values()}
    assert by_number[2]["headers"]["zeh-producer"].startswith("job#dead:0:")


def test_dead_letters_that_are_replayed_again_change_nothing(shop: Shop) -> None:
    """All of them, some of them, with others, from tail or from dead-letters."""
    shop.sink("job", 0, data=pa.array(['{"i":1', '{"i":1', '{"i":2']))
    first = with_data(shop.letters(), closed)
    shop.replay(first[:2])
    shop.sink("job", 1, data=pa.array(['{"i":1']))
    tailed = shop.run("tail", shop.dead, "--from", "first", "--no-follow", "--headers").stdout
    every = with_data(list(map(json.loads, tailed.splitlines())), closed)

    said = [shop.replay(each).stdout for each in (every, every[::-1], first + every)]

    again = "Published 0 dead letters; 4 dead letters published before: no change.\n"
    mixed = "Published 2 dead letters; 2 dead letters published before: no change.\n"
    assert [mixed, again, again] == said
    assert {'{"i": 1}': 3, '{"i": 2}': 1} == shop.data()


def test_a_second_repair_of_a_dead_letter_is_refused_by_name(shop: Shop) -> None:
    """What was published first stays; the other dead letters are published."""
    shop.sink("job", 0, data=pa.array(['{"i":1', '{"i":2']))
    found = shop.letters()
    shop.replay(with_data(found[:1], closed))
    other = with_data(found, lambda data: f'{data}, "again": true}}')

    done = shop.replay(other)

    assert (1, "Published 1 dead letter.\n") == (done.returncode, done.stdout)
    assert re.fullmatch(
        r"Refused, line 1: this dead letter was published before, repaired in another way, "
        r"as batch "
        r"job#dead:0:\d:\d:\d{13}:[0-9a-f]{16}\.\n",
        done.stderr,
    )
    assert {'{"i": 1}': 1, '{"i": 2, "again": true}': 1} == shop.data()


def test_dead_letters_of_a_producer_that_was_deleted_do_not_hold_up_the_others(shop: Shop) -> None:
    """They are named, with their lines; and told how they can be published."""
    for producer in ("a", "gone", "z"):
        shop.sink(producer, 0, data=pa.array([f'{{"by":"{producer}"']))
    lines = sorted(shop.letters(), key=lambda each: each["data"]["producer"])
    shop.run(
        "delete-producer", "orders", "gone", "--store", f"sqlite:///{shop.folder}/feeds.db", "--yes"
    )

    done = shop.replay(with_data(lines, closed))

    assert (1, "Published 2 dead letters.\n") == (done.returncode, done.stdout)
    assert done.stderr.startswith("Refused, line 2: producer 'gone' was deleted on that feed. ")
    assert Counter(['{"by": "a"}', '{"by": "z"}']) == shop.data()


def test_nothing_is_published_if_a_dead_letter_cannot_be(shop: Shop) -> None:
    """The line is named; the file can be repaired and given again. A dead letter that does not say
    which one it is, and of which feed, could be published a second time.
    """
    shop.sink("job", 0, data=pa.array(['{"i":1', '{"i":2', '{"i":3']))
    found = shop.letters()
    lines = with_data(found, closed)
    stamps = {k: v for k, v in lines[2]["headers"].items() if k != "zeh-feed"}
    unknown = (
        r"it lacks valid headers .*zeh-feed.* "
        r"Print it again with zeh-spark dead-letters, or zeh-spark tail --headers"
    )

    for last, said in (
        (found[2], "not JSON.*"),
        ({**lines[2], "headers": stamps}, unknown),
        ({**lines[2], "headers": {}}, unknown),
    ):
        done = shop.replay([*lines[:2], last])
        assert (1, "") == (done.returncode, done.stdout)
        assert re.fullmatch(
            rf"Error: \[ZEH_\w+\] standard input, line 3: {said}; nothing was published\nSee .+\n",
            done.stderr,
        )
    assert [] == shop.events()
    assert "Published 3 dead letters.\n" == shop.replay(lines).stdout


@pytest.mark.kill
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_replay_that_is_killed_continues(moment: str, shop: Shop) -> None:
    """SIGKILL at a commit; the same command again publishes the rest."""
    shop.sink("job", 0, data=pa.array([f'{{"i":{each}' for each in range(30)]))
    lines = with_data(shop.letters(), closed)
    with closing(Watched(shop.base)) as gateway:
        replay: subprocess.Popen[str]
        killed: dict[str, Any] = {moment: lambda: (replay.kill(), lost())}
        for _ in range(10):
            gateway.once("POST .*/commit")
        gateway.once("POST .*/commit", **killed)
        with shop.start("replay-dead", f"{gateway.address}/orders") as replay:
            replay.communicate(text_of(lines), timeout=60)

    before = len(shop.events())
    done = shop.replay(lines)

    assert -9 == replay.returncode
    assert {"before": 10, "after": 11}[moment] == before
    told = f"Published {30 - before} dead letters; {before} dead letters published before"
    assert f"{told}: no change.\n" == done.stdout
    assert {json.dumps({"i": each}): 1 for each in range(30)} == shop.data()


def test_a_long_row_is_printed_whole_and_published_when_it_is_short(shop: Shop) -> None:
    """Several megabytes in parts; tail prints these, and replay-dead joins them, too."""
    text = json.dumps({"i": 1, "x": 'é"\n' * 700_000}, ensure_ascii=False)
    shop.sink("job", 0, data=pa.array([text, '{"i":2', text]))

    letters = shop.letters()
    parts = shop.run("tail", shop.dead, "--from", "first", "--no-follow", "--headers").stdout
    long = shop.run("replay-dead", shop.orders, stdin=parts)
    done = shop.replay(with_data(letters, lambda data: data[:7] + "}"))

    assert Counter([text, text, '{"i":2']) == Counter(
        each["data"]["row"]["data"] for each in letters
    )
    assert re.search(r"line \d+: (the event takes 3,[0-9,]+ bytes as a line|not JSON)", long.stderr)
    assert "Published 3 dead letters.\n" == done.stdout
    assert 3 == len(shop.events())


def test_another_event_on_a_dead_letter_feed_is_named(shop: Shop) -> None:
    """It is not silently left out, and does not hide the dead letters after it."""
    shop.run("publish", shop.dead, "--producer", "till", stdin='{"id":1}\n')
    before = shop.run("dead-letters", shop.dead)
    shop.sink("job", 0, data=pa.array(["["]))

    done = shop.run("dead-letters", shop.dead)

    assert (1, "") == (before.returncode, before.stdout)
    assert "event 1 of" in before.stderr
    assert "its data has no 'row': it is no dead letter" in before.stderr
    assert (1, 1) == (done.returncode, len(done.stdout.splitlines()))
