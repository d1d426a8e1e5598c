"""Cursors that a table's feed keeps for its readers (the spec's `cursorset` and `resume`)."""

from __future__ import annotations

import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import pytest
import requests
from sqlalchemy import create_engine

from tests import fix_cli
from tests.patience import eventually
from tests.scratch_store import ScratchStore
from zeh_spark.publisher import create_app
from zeh_spark.service.outbox.feed import SqlTableFeed
from zeh_spark.service.store.problems import Problem
from zeh_spark.testing import running_publisher

BOTH = "n=2&cursor0=_first&cursor1=_first"
MINE = {"partition_by": "k", "partitions": 2}


@contextmanager
def serving(feed):
    with running_publisher({"outbox": feed}) as base:
        yield lambda query: requests.get(f"{base}/outbox?{query}", timeout=30)


def served(database):
    feed = database.served("data TEXT, k TEXT", **MINE)
    database.run(feed.ddl(cursorsets=True))
    return feed


def written(database, *numbers):
    for number in numbers:
        database.execute(f"INSERT INTO outbox (data, k) VALUES ('{number}', '{number}')")


def events(answer):
    assert answer.status_code == 200, answer.text
    return sorted(each["data"] for each in lines(answer) if "data" in each)


def lines(answer):
    return [json.loads(line) for line in answer.text.splitlines()]


def cursors(answer):
    found = [each for each in lines(answer) if "cursor" in each]
    last = {each["partition"]: each["cursor"] for each in found}
    return "&".join(f"cursor{partition}={cursor}" for partition, cursor in last.items())


def test_a_second_consumer_of_a_name_is_refused(database):
    """Two readers with one name are told apart, and the message says how the name becomes free."""
    feed = served(database)
    feed.save_cursors("it's", 2, {0: "a"}, "one")
    for call in (
        lambda other: feed.save_cursors("it's", 3, {0: "b"}, other),
        lambda other: feed.load_cursors("it's", 2, other),
    ):
        for other in ("two", ""):
            with pytest.raises(Problem, match="bound to consumer 'one'") as refused:
                call(other)
    assert ("cursorset-taken", {0: "a"}) == (
        refused.value.name,
        feed.load_cursors("it's", 2, "one"),
    )
    database.execute(re.search(r"free the name with (DELETE .*;)", refused.value.detail)[1])
    feed.save_cursors("it's", 2, {1: "b"}, "two")
    assert {1: "b"} == feed.load_cursors("it's", 2, "two")


def test_cursors_without_an_identity_are_bound_to_the_first_that_tells_one(database):
    feed = served(database)
    feed.save_cursors("mailer", 2, {0: "a"})
    assert [{0: "a"}] * 2 == [feed.load_cursors("mailer", 2, each) for each in ("", "one")]
    feed.save_cursors("mailer", 2, {1: "b"})
    feed.save_cursors("mailer", 2, {0: "c"}, "one")
    with pytest.raises(Problem, match="a consumer without an identity asks for it"):
        feed.save_cursors("mailer", 2, {1: "d"})
    assert {0: "c", 1: "b"} == feed.load_cursors("mailer", 2, "one")
    other = database.served("data TEXT", table="other")
    other.save_cursors("mailer", 2, {0: "e"})
    found = [feed.load_cursors("mailer", 2, "one"), other.load_cursors("mailer", 2)]
    assert [{0: "c", 1: "b"}, {0: "e"}] == found


def test_one_of_several_that_begin_at_once_has_the_name(database):
    """Two forwarders that are started at the same time are told apart, too."""
    feed, refused = served(database), []

    def keep(number):
        try:
            feed.save_cursors("mailer", 1 + number % 2, {0: str(number)}, str(number))
        except Problem:
            refused.append(number)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(keep, range(6)))
    (kept,) = database.execute("SELECT cursor FROM zeroeventhub_cursors WHERE n > 0")
    assert {*range(6)} - {int(kept[0])} == set(refused)
    assert 5 == len(refused)


def test_a_reader_without_a_database_resumes_where_it_was(database):
    """A forwarder leaves its cursors with the publisher, apart from those of other names and n.
    They outlive the publisher. After one was kept, a connection only reads again.
    """
    feed = served(database)
    written(database, *range(5))
    with serving(feed) as get:
        seen = cursors(get(BOTH))
        get(f"n=2&{seen}&cursorset=it's&store_cursor=1&pagesizehint=0")
        get(f"{BOTH}&cursorset=other")
        get("n=1&cursor0=_first&cursorset=it's")
        written(database, 5, 6)

        assert [5, 6] == events(get("n=2&resume=0,1&cursorset=it's"))
        assert [*range(7)] == events(get("n=2&resume=0,1&cursorset=other"))
        assert [*range(7)] == events(get("n=1&resume=0&cursorset=it's"))
        refused = get("n=2&resume=0&cursorset=nobody")
        assert (400, True) == (refused.status_code, "unknown-cursorset" in refused.text)

    with feed.engine.connect() as connection, pytest.raises(Exception, match=r"read.?only"):
        connection.exec_driver_sql("INSERT INTO outbox (data) VALUES ('1')")
    with serving(database.feed(**MINE)) as get:
        assert [5, 6] == events(get("n=2&resume=0,1&cursorset=it's"))


def test_a_feed_without_the_table_refuses_and_names_the_remedy(database):
    """Reading goes on; the table can be made while the feed is served."""
    feed = database.served("data TEXT, k TEXT", **MINE)
    written(database, 1)
    with serving(feed) as get:
        refused = get(f"{BOTH}&cursorset=mailer")
        assert [1] == events(get(BOTH))
        database.run(feed.ddl(cursorsets=True))
        assert [1] == events(get(f"{BOTH}&cursorset=mailer"))

    assert 400 == refused.status_code
    problem = refused.json()
    assert problem["type"].endswith(":cursorset-unsupported")
    assert "zeh-spark ddl NAME --config FILE --cursorsets" in problem["detail"]
    assert [] == feed.ddl(cursorsets=True)


def test_a_role_may_serve_with_and_without_the_right_to_write(postgresql_database, clerk):
    """`--grant-to` grants it together with `--cursorsets`."""
    database = postgresql_database
    feed = database.served("data TEXT, k TEXT", **MINE)
    database.execute(f"GRANT EXECUTE ON FUNCTION pg_control_system() TO {clerk}")
    database.run(feed.ddl(grant_to=clerk))
    database.run(feed.ddl(cursorsets=True))
    database.execute(f"GRANT SELECT ON zeroeventhub_cursors TO {clerk}")
    written(database, 1)
    with serving(database.feed(role=clerk, **MINE)) as get:
        assert [1] == events(get(BOTH))
        refused = get(f"{BOTH}&cursorset=mailer")
        database.run(feed.ddl(grant_to=clerk))
        assert [1] == events(get(f"{BOTH}&cursorset=mailer"))

    assert 400 == refused.status_code
    assert "the publisher may not write there" in refused.text


def test_cursors_of_an_older_history_are_refused(database):
    """After a restore, a reader that resumes is told to begin again, and then is kept again."""
    feed = served(database)
    written(database, 1, 2)
    with serving(feed) as get:
        get(f"{BOTH}&cursorset=mailer&store_cursor=1")
        seen = cursors(get(BOTH))
        get(f"n=2&{seen}&cursorset=mailer&store_cursor=1&pagesizehint=0")
        database.feed(writes=True, **MINE).new_history()
        old = get("n=2&resume=0,1&cursorset=mailer")
        get(f"{BOTH}&cursorset=mailer")
        assert [1, 2] == events(get("n=2&resume=0,1&cursorset=mailer"))

    assert (409, True) == (old.status_code, "cursor-of-another-history" in old.text)


@pytest.mark.parametrize("settings", [{}, {"isolation_level": "AUTOCOMMIT"}], ids=str)
def test_the_engine_of_a_service_keeps_cursors_and_stays_as_it_was(database, settings):
    """A service mounts the feed with an engine of its own, and goes on writing through it."""
    served(database)
    engine = create_engine(database.url, pool_size=1, max_overflow=0, **settings)
    feed = SqlTableFeed(engine, table="outbox", data="data", **MINE)
    try:
        feed.save_cursors("mailer", 2, {1: "b", 0: "a"})
        with engine.begin() as connection:
            connection.exec_driver_sql("INSERT INTO outbox (data) VALUES ('1')")
        assert {0: "a", 1: "b"} == feed.load_cursors("mailer", 2)
    finally:
        engine.dispose()


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python does not tell SQLite's code")
def test_a_file_that_can_only_be_read_keeps_no_cursors(sqlite_database):
    """It is read as before."""
    served(sqlite_database)
    written(sqlite_database, 1)
    engine = create_engine(f"sqlite:///file:{sqlite_database.file}?mode=ro&uri=true")
    feed = SqlTableFeed(engine, table="outbox", data="data", **MINE)
    try:
        with serving(feed) as get:
            refused = get(f"{BOTH}&cursorset=mailer")
            assert [1] == events(get(BOTH))
    finally:
        engine.dispose()
    assert (400, True) == (refused.status_code, "may not write there" in refused.text)


def test_a_service_that_writes_for_long_keeps_no_reader_out(sqlite_database):
    """Who leaves cursors waits for its lock; who reads, or uses other feeds, does not."""
    feed, store = served(sqlite_database), ScratchStore()
    store.create("other", 2)
    app = create_app(store, {"outbox": feed})
    with (
        running_publisher(store, app) as base,
        ThreadPoolExecutor(12) as pool,
        closing(sqlite_database.connect()) as service,
    ):

        def get(query, name="outbox"):
            return requests.get(f"{base}/{name}?{query}", timeout=60).status_code

        service.execute("BEGIN IMMEDIATE")
        waiting = [pool.submit(get, f"{BOTH}&cursorset=mailer") for _ in range(12)]
        answers = {get(BOTH) for _ in range(20)} | {get(f"{BOTH}&cursorset=mailer", "other")}
        assert not any(each.done() for each in waiting)
        service.rollback()
        assert {200} == {each.result() for each in waiting}
    assert {200} == answers


def test_a_lock_and_a_lost_connection_are_no_errors_of_the_reader(postgresql_database):
    """It is told to come again; a connection that was lost is replaced."""
    feed = served(postgresql_database)
    feed.save_cursors("mailer", 2, {0: "a"})
    with postgresql_database.connect() as other, serving(feed) as get:
        other.execute("LOCK zeroeventhub_cursors")
        answer = get(f"{BOTH}&cursorset=mailer")
    assert (503, "1") == (answer.status_code, answer.headers["Retry-After"])
    postgresql_database.server.disconnect(postgresql_database.name)
    feed.save_cursors("mailer", 2, {0: "b"})
    assert {0: "b"} == feed.load_cursors("mailer", 2)


def test_the_lag_of_a_name_is_that_of_the_reader_that_is_furthest_behind(database):
    """A table keeps its cursors for each `n`. Rows are deleted by what the command says."""
    feed = served(database)
    written(database, *range(5))
    with running_publisher({"outbox": feed}) as base:
        for query in ("n=2&cursor0=_last&cursor1=_last", "n=1&cursor0=_first"):
            requests.get(f"{base}/outbox?{query}&cursorset=mailer", timeout=30).raise_for_status()

        def behind():
            told = fix_cli.call("lag", f"{base}/outbox", "--cursorset", "mailer", "--json")
            return told.returncode == 0 and json.loads(told.stdout)["eventsBehind"]["total"]

        eventually(lambda: 5 == behind())
