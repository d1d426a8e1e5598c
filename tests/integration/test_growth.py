"""What a publisher lets grow: what a nearly full disk takes, how many names a client may begin."""

import json
import os
import secrets
import shutil
from contextlib import closing, contextmanager
from types import SimpleNamespace

import pytest
import requests

from tests.fix_cli import call
from tests.fix_publish import Caller, Who, commit_of, rows
from zeh_spark.errors import StoreError, UnavailableError
from zeh_spark.publish import Producer
from zeh_spark.publisher import Problem, create_app
from zeh_spark.service.access.disk import Disk
from zeh_spark.service.access.gate import Gate
from zeh_spark.service.app.config import FeedConfig, engine_of
from zeh_spark.service.console import retention_form
from zeh_spark.service.retention.rules import prune
from zeh_spark.service.store.interface import Retention
from zeh_spark.service.store.token_rights import ADMIN, Grant, Right, new_token
from zeh_spark.service.telemetry.health import Telemetry
from zeh_spark.testing import publish, running_publisher

EVERYTHING = 1 << 62
"""More than any disk has: as --least-free, it leaves only the reserve."""
MIB = 1 << 20


@pytest.fixture
def free(monkeypatch):
    """Say how many bytes the disk has left."""
    usage = SimpleNamespace(free=0)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    return lambda size: setattr(usage, "free", size)


@contextmanager
def served(store, file, least_free=EVERYTHING):
    app = create_app(store, telemetry=Telemetry(store_file=file, least_free=least_free))
    with running_publisher(store, app) as base, closing(Caller(f"{base}/orders")) as caller:
        yield caller


def kept(caller, cursor_set, cursors):
    """Ask for a page that keeps these cursors."""
    given = "&".join(f"cursor{each}={cursor}" for each, cursor in cursors.items())
    answer = requests.get(f"{caller.url}?n=2&{given}&cursorset={cursor_set}", timeout=60)
    problem = "" if answer.ok else answer.json()["type"].rpartition(":")[2]
    return answer.status_code, problem


def test_nothing_grows_into_the_reserve(store, file):
    """Whatever a token may do, the disk does not fill up. Answers that were lost are told.
    Retention may wait for a reader, and frees room once that has moved on.
    """
    with served(store, file, 0) as caller:
        assert (200, "committed") == caller.publish(Who(), 1).short
        assert (200, "") == kept(caller, "known", {0: "_first"})
    with served(store, file) as caller:
        full = (507, "store-full")
        assert full == caller.upload(Who(1), rows(2)).short
        assert full == caller.commit(Who(1)).short
        assert full == caller.commit(Who(producer="another")).short
        assert full == kept(caller, "new", {0: "_first"})
        assert full == kept(caller, "known", {1: "_first"})
        producer = Producer(caller.url, "program", retryTimeout="0s")
        with pytest.raises(UnavailableError, match="need at least") as refused:
            with producer.batch() as batch:
                batch.add({"i": 1})
        assert "store-full" == refused.value.anchor
        assert (200, "already-committed") == caller.commit(Who(), rows(1)).short
        assert (200, "") == kept(caller, "known", {0: "_last"})
    (known,) = store.cursor_sets("orders")
    assert ("known", ["p"]) == (known.name, [each.name for each in store.producers("orders")])
    assert store.feed("orders").head == int(known.cursors[2][0].partition(".")[0])


def test_what_frees_room_or_takes_rights_away_works_in_the_reserve(store, file):
    text, token = new_token("admin", ADMIN, store.now())
    store.add_token(token)
    store.add_token(new_token("reader", [Grant(Right.READ, "*")], store.now())[1])
    publish(store, "orders", range(3))
    store.save_cursors("orders", "known", 2, {0: "1.x"})
    telemetry = Telemetry(store_file=file, least_free=EVERYTHING)
    app = create_app(store, gate=Gate(store), telemetry=telemetry, console=True)
    with running_publisher(store, app) as base:
        headers = {"Authorization": f"Bearer {text}"}
        runs = f"{base}/orders/producers/p/batches/0/uploads?run=r1"
        assert 200 == requests.delete(runs, headers=headers, timeout=60).status_code
        for path, form in {
            "retention": {
                **retention_form.texts(Retention(bytes=1)), "confirmed": "yes",
                "before": json.dumps(retention_form.texts(Retention())),
            },
            "delete-cursor-set": {"name": "known"},
        }.items():  # fmt: skip
            url = f"{base}/console/feeds/orders/{path}"
            done = requests.post(url, form, headers=headers, timeout=60, allow_redirects=False)
            assert 303 == done.status_code, done.text
        assert 0 == call("token", "revoke", "reader", "--store", f"sqlite:///{file}").returncode
        assert 3 == prune(store, "orders").events
    assert [] == store.cursor_sets("orders")
    assert [True, False] == [each.is_valid(store.now()) for each in store.tokens()]


def test_below_the_limit_what_is_uploaded_can_still_be_committed(store, file, free, caplog):
    """The operator has one line, whatever number of uploads is refused."""
    with served(store, file, 256 * MIB) as caller:
        free(300 * MIB)
        assert (201, "staged") == caller.upload(Who(), rows(1)).short
        free(200 * MIB)
        refused = [caller.upload(Who(), rows(2), name="1.0.0") for _ in range(2)]
        assert (200, "committed") == caller.commit(Who(), rows(1)).short
        assert (200, "already-committed") == caller.upload(Who(), rows(2)).short
        free(100 * MIB)
        assert (507, "store-full") == caller.commit(Who(1)).short
    assert [(507, "store-full")] * 2 == [each.short for each in refused]
    assert "has 200 MiB left, and uploads need at least 256" in refused[0].document["detail"]
    assert 1 == len([each for each in caplog.messages if "MiB left" in each])


def test_room_that_retention_frees_in_the_file_counts(store, file, free):
    """The file does not shrink, so the disk alone would stay full for ever."""
    disk = Disk(file, 100 * MIB, store)
    for _ in range(20):
        publish(store, "orders", [secrets.token_hex(30_000) for _ in range(10)])
    free(99 * MIB)
    assert not disk.look()[0]
    with pytest.raises(Problem, match="has 99 MiB left, and uploads need at least 100 MiB"):
        disk.check_upload()
    store.set_retention("orders", Retention(bytes=1))
    prune(store, "orders")
    disk.check_upload()
    assert disk.look()[0]
    free(MIB)  # not even SQLite's log has room
    with pytest.raises(Problem, match="has 1 MiB left"):
        disk.check_growth()


@contextmanager
def served_table(database, **limits):
    """A table as the feed `orders`, with a table of cursors beside it."""
    feed = database.served("data TEXT")
    database.run(feed.ddl(cursorsets=True))
    app = create_app({"orders": feed}, **limits)
    with running_publisher(None, app) as base, closing(Caller(f"{base}/orders")) as caller:
        yield caller


def test_cursors_beside_a_table_leave_its_disk_the_reserve(sqlite_database):
    with served_table(sqlite_database, telemetry=Telemetry(least_free=EVERYTHING)) as caller:
        assert (507, "store-full") == kept(caller, "new", {0: "_first"})


def test_a_table_keeps_only_so_many_cursor_sets(sqlite_database):
    with served_table(sqlite_database, most_cursor_sets=2) as caller:
        assert [(200, "")] * 2 == [kept(caller, each, {0: "_first"}) for each in ("a", "b")]
        assert (507, "too-many-cursor-sets") == kept(caller, "c", {0: "_first"})
        assert (200, "") == kept(caller, "a", {0: "_last", 1: "_first"})


def test_a_table_whose_database_has_two_names_is_refused(sqlite_database, tmp_path):
    """Through the other name, the rows in SQLite's log would be missing."""
    with served_table(sqlite_database):
        os.link(sqlite_database.file, tmp_path / "other.db")
        with pytest.raises(StoreError, match="has 2 names"):
            engine_of(FeedConfig(url=f"sqlite:///{tmp_path / 'other.db'}", table="orders"))


def test_each_token_begins_only_so_many_producers_and_cursor_sets(store, file):
    """Another token of the same rights is not held up by it."""
    texts = []
    for name in ("mine", "other"):
        text, token = new_token(name, ADMIN, store.now())
        store.add_token(token)
        texts.append({"Authorization": f"Bearer {text}"})
    app = create_app(store, gate=Gate(store), most_producers=2, most_cursor_sets=1)
    with running_publisher(store, app) as base:

        def answered(method, path, whose, body=None):
            url = f"{base}/orders{path}"
            answer = requests.request(method, url, json=body, headers=whose, timeout=60)
            return "" if answer.ok else answer.json()["type"].rpartition(":")[2]

        def begins(whose, name):
            path = f"/producers/{name}/batches/0/commit?incarnation=a&run=r&n=2"
            return answered("POST", path, whose, commit_of([]))

        def keeps(whose, name):
            return answered("GET", f"?n=2&cursor0=_first&cursorset={name}", whose)

        mine, other = texts
        assert ["", "", "too-many-producers"] == [begins(mine, each) for each in "abc"]
        assert ["", ""] == [begins(mine, "a"), begins(other, "c")]
        assert ["", "too-many-cursor-sets", ""] == [keeps(mine, each) for each in "aba"]
        assert "" == keeps(other, "b")
