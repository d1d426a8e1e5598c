"""After a restore, events with the numbers of others are told apart, by command line and HTTP."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.fix_backup import Place
from tests.fix_cli import Run, call, published
from tests.fix_publisher import new_feed, open_feeds
from zeh_spark.publisher import open_store
from zeh_spark.service.sql.feed_epochs import over_at
from zeh_spark.service.store.interface import now_ms
from zeh_spark.testing import publish
from zeh_spark.wire.feed_identity import FeedIdentity, feed_of, parse


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """`new-history`, without the address of a store in the environment."""
    return partial(call, "new-history", folder=tmp_path)


def add(url: str, *events: object) -> None:
    with closing(open_store(url)) as store:
        publish(store, "orders", events, partition=0)


def told(base: str) -> FeedIdentity:
    return parse(requests.get(f"{base}/orders", timeout=30).json()["feed"])


def stamps(base: str) -> dict[Any, tuple[str, int]]:
    """Of each event, by its data: producer, partition and number; time."""
    first = "&".join(f"cursor{each}=_first" for each in range(3))
    text = requests.get(f"{base}/orders?n=3&headers=_all&{first}", timeout=30).text
    events = [each for each in map(json.loads, text.splitlines()) if "data" in each]
    names = ("zeh-producer", "zeh-partition", "zeh-sequence")
    return {
        each["data"]: (
            ":".join(each["headers"][name] for name in names),
            int(each["headers"]["zeh-time"]),
        )
        for each in events
    }


def test_events_after_a_restore_are_told_apart(place: Place, run: Run) -> None:
    """I publish, back up, publish more, and restore the backup: what I publish next has the numbers
    of what the restore undid. After `new-history` readers see that they are other events.
    """
    add(place.url, "kept")
    backup = place.back_up()
    add(place.url, "undone")
    with published(place.url) as base:
        before, old = told(base), stamps(base)
    place.restore(backup)
    done = run("orders", "--store", place.url, "--yes")
    add(place.url, "new")
    with published(place.url) as base:
        after, new = told(base), stamps(base)
    assert (0, 1, 2) == (done.returncode, len(before.epochs), len(after.epochs)), done.stderr
    assert {"kept", "new"} == new.keys()
    assert old["undone"][0] == new["new"][0]
    begin = after.epochs[1]
    assert new["kept"][1] < begin.time <= new["new"][1]
    ids = [before.at(old["undone"][1]), after.at(new["kept"][1]), after.at(new["new"][1])]
    assert [before.id, before.id, begin.id] == ids
    assert before.id == after.id == feed_of(begin.id) != begin.id
    assert begin.id in done.stdout and str(begin.time) in done.stdout


def test_the_next_epoch_gets_a_higher_number_however_soon_it_comes(
    tmp_path: Path, run: Run
) -> None:
    """A script restores a backup again and again: the command lets its second pass."""
    with open_feeds(tmp_path / "feeds.db", orders=3) as store:
        done = run("orders", "--yes")
        begun = store.identity("orders").epochs[1]
    assert (0, True) == (done.returncode, over_at(begun) <= now_ms())


def test_a_copy_becomes_another_feed(tmp_path: Path, run: Run) -> None:
    """The copy is used beside the original; their events are never taken for each other's."""
    original, copy = (f"sqlite:///{tmp_path / name}.db" for name in ("original", "copy"))
    new_feed(original, partitions=3)
    add(original, "shared")
    assert 0 == call("backup", str(tmp_path / "copy.db"), "--store", original).returncode
    done = run("orders", "--copy", "--yes", ZEH_STORE=copy)
    for url in (original, copy):
        add(url, url)
    found = []
    for url in (original, copy):
        with published(url) as base:
            found.append((told(base), stamps(base)))
    (one, ours), (other, theirs) = found
    assert (0, 2) == (done.returncode, len({one.id, other.id})), done.stderr
    assert ours[original][0] == theirs[copy][0]
    assert one.at(ours["shared"][1]) == other.at(theirs["shared"][1]) == one.id
    assert other.id == other.at(theirs[copy][1])
    assert other.id in done.stdout


@pytest.mark.parametrize("typed", ["n\n", ""])
def test_it_asks_first(tmp_path: Path, run: Run, typed: str) -> None:
    """I may change my mind; the question says what it is about, and nothing is done."""
    url = f"sqlite:///{tmp_path}/feeds.db"
    with closing(open_store(url)) as store:
        name = store.create("orders", 3).origin[:8].hex()
        asked = run("orders", stdin=typed), run("orders", "--copy", stdin=typed)
        assert 1 == len(store.identity("orders").epochs)
    assert [1, 1] == [each.returncode for each in asked]
    assert "new events, never for those before" in asked[0].stdout
    assert f"becomes another feed than {name}" in asked[1].stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nothing"], "there is no feed 'nothing' in this store; for a table, give"),
        (["orders", "--url", "sqlite:///x.db"], "--url is for tables"),
        (["orders", "--store", "sqlite:///nothing.db"], "there is no store nothing.db"),
        (["outbox", "--config", "publisher.toml"], "there is no feed 'outbox' in this store"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, run: Run, words: list[str], said: str) -> None:
    """A typing error changes nothing; a table's name is not taken for a feed of the store."""
    new_feed(tmp_path / "feeds.db", partitions=3)
    (tmp_path / "publisher.toml").write_text(
        'store = "sqlite:///feeds.db"\n[feeds.sales]\nurl = "sqlite:///shop.db"\n'
        'table = "outbox"\ndata = "body"\n'
    )
    done = run(*words, "--yes")
    assert (True, True, False) == (
        done.returncode > 0, said in done.stderr, "Traceback" in done.stderr,
    ), done.stderr  # fmt: skip


def test_settings_name_a_store_and_a_table(tmp_path: Path, run: Run) -> None:
    """One file for both: each feed by its name, and each is done its own way."""
    new_feed(tmp_path / "feeds.db", partitions=3)
    shop, settings = tmp_path / "shop.db", tmp_path / "publisher.toml"
    with closing(sqlite3.connect(shop)) as database:
        database.executescript(
            "CREATE TABLE outbox (id INTEGER PRIMARY KEY AUTOINCREMENT, body JSON);"
            "CREATE TABLE zeroeventhub_history (table_name, history, feed_id);"
            "INSERT INTO zeroeventhub_history VALUES ('outbox', '01234567', '0123456789abcdef');"
        )
    settings.write_text(
        'store = "sqlite:///feeds.db"\n[feeds.sales]\nurl = "sqlite:///shop.db"\n'
        'table = "outbox"\ndata = "body"\n'
    )
    stored = run("orders", "--config", str(settings), "--yes")
    kept = run("sales", "--config", str(settings), "--yes")
    copied = run("sales", "--config", str(settings), "--yes", "--copy")
    with closing(open_store(f"sqlite:///{tmp_path}/feeds.db")) as store:
        assert store.identity("orders").epochs[1].id in stored.stdout
    with closing(sqlite3.connect(shop)) as database:
        ((history, name),) = database.execute("SELECT history, feed_id FROM zeroeventhub_history")
    assert "0123456789abcdef" in kept.stdout, kept.stderr
    assert f"has the new history {history} and the id {name}." in copied.stdout, copied.stderr
    assert name != "0123456789abcdef"
