"""A service's table as a feed, by the command line alone."""

from __future__ import annotations

import json
import sqlite3
import subprocess
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
import requests
from sqlalchemy import create_engine

from tests import postgresql
from tests.fix_cli import Run, call
from tests.fix_publisher import served_tables
from tests.fix_shop import Shop
from zeh_spark.publisher import open_store
from zeh_spark.service.outbox.feed import SqlTableFeed

HERE = Path(__file__).parents[2]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Without the address of a store in the environment."""
    return partial(call, folder=tmp_path)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Settings, with an address that the test fills in."""
    return tmp_path / "publisher.toml"


@pytest.fixture
def sqlite_outbox(file: Path) -> Path:
    """A database with a table that is ready to be a feed, and has an event; with settings."""
    found = file.with_name("shop.db")
    with closing(sqlite3.connect(found)) as database:
        database.execute("CREATE TABLE outbox (id INTEGER PRIMARY KEY AUTOINCREMENT, data JSON)")
        database.executescript(call("ddl", "outbox", "--url", f"sqlite:///{found}").stdout)
        database.execute("INSERT INTO outbox (data) VALUES ('{\"order\":1}')")
        database.commit()
    file.write_text(f'[feeds.orders]\nurl = "sqlite:///{found}"\ntable = "outbox"\n')
    return found


def settings(file: Path, url: str) -> None:
    file.write_text(
        f'[feeds.orders]\nurl = "{url}"\ntable = "outbox"\ndata = "body"\n'
        f'headers = ["type"]\npartition_by = "order_id"\npartitions = 4\n'
    )


def test_the_guides_example_in_postgresql(
    run: Run, file: Path, postgresql_server: postgresql.Server
) -> None:
    """A table, a file, and three commands later there is a feed."""
    server = postgresql_server
    database = server.create_database()
    guide = (HERE / "docs/guides/outbox.md").read_text()
    [statement] = [line for line in guide.splitlines() if line.startswith("CREATE TABLE outbox (")]
    server.execute(statement, database)
    insert = "INSERT INTO outbox (order_id, type, body) VALUES (1, 'placed', '{\"order\": 1}')"
    server.execute(insert, database)
    settings(file, server.url(database))
    refused = run("serve", "--config", str(file), "--port", "0")
    printed = run("ddl", "orders", "--config", str(file), "--grant-to", postgresql.USER)
    ddl = file.with_name("ddl.sql")
    ddl.write_text(printed.stdout)
    ddl.chmod(0o644)
    server.own(ddl)
    subprocess.run(
        [postgresql.program("psql"), "-v", "ON_ERROR_STOP=1", "-h", "127.0.0.1", "-p",
         str(server.port), "-U", postgresql.USER, "-d", database, "-f", str(ddl)],
        check=True, capture_output=True,
    )  # fmt: skip
    server.execute(insert.replace("1", "2"), database)
    with served_tables(file) as (base, _):
        answer = requests.get(f"{base}/orders?n=1&cursor0=_first&headers=_all", timeout=30)
    shown = run("feeds", "--config", str(file))
    found = [json.loads(line) for line in answer.text.splitlines() if '"data"' in line]
    assert (1, "there is no column tx" in refused.stderr) == (refused.returncode, True)
    assert [{"order": 1}, {"order": 2}] == [event["data"] for event in found]
    assert {"type": "placed"} == found[0]["headers"]
    assert ["orders", "outbox", "4"] == shown.stdout.splitlines()[1].split()[:3]


def test_options_that_the_configuration_has_are_refused(run: Run, file: Path) -> None:
    """Nothing that I give is left unused without a word."""
    settings(file, "sqlite:///nowhere.db")
    done = run("ddl", "orders", "--config", str(file), "--data", "body", "--id", "id")
    assert (2, True) == (done.returncode, "leave --id, --data out" in done.stderr), done.stderr


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("port = 'x'", "port = 'x' is not allowed: expected `int`, got `str`"),
        ("hots = '::1'", "there is no key 'hots'; did you mean 'host'? Known: host, port, "),
        ("log_format = 'xml'", "log_format = 'xml' is not allowed: it must be console or json"),
        ("feeds = 1", "[feeds.NAME]"),
        ("[feeds]\norders = 1", "feeds.orders has to be a section: [feeds.orders]"),
        ("x = [", "is not TOML"),
        ("grace = 'soon'", "publisher.toml: grace = 'soon'"),
        ("staging_quota = 0", "staging_quota = 0"),
        ('segments = "s3://ID:secret@bucket/x"', "segments: it must not hold credentials"),
        ("tls_key = 'a.key'", "tls_key is set, and tls_cert is not"),
        ("forwarded_allow_ips = ['proxy']", "forwarded_allow_ips = 'proxy'"),
        (
            "[feeds.a]\nurl = 'sqlite:///nowhere.db'\ntable = 'a'\ndata = 'b'",
            "no database nowhere.db",
        ),
        ("[feeds.a]\nurl = 'mysql://x'\ntable = 'a'\ndata = 'b'", "is not understood"),
        ("[feeds.a]\nurl = 'sqlite:///x'", "[feeds.a] table is missing. Set it; known keys are "),
        (
            "[feeds.a]\nurl = 'sqlite:///x'\ntabel = 'a'",
            "[feeds.a] there is no key 'tabel'; did you mean 'table'? Known: url, table, data, ",
        ),
        (
            "[feeds.a]\nurl = 'sqlite:///x'\ntable = 'a'\npartitions = 'four'",
            "[feeds.a] partitions = 'four' is not allowed: expected `int`, got `str`",
        ),
        (
            "[feeds.a]\nurl = 'postgresql://u:secret@h/d'\ntable = 'a'\nstatement_timeout = 'soon'",
            "[feeds.a] statement_timeout = 'soon': it must be a duration",
        ),
        (
            "[feeds.a]\nurl = 'postgresql://u:secret@h/d'\ntable = 'a'\ndata = 'b'\npartitions = 0",
            "[feeds.a] partitions is 0; it must be a number of 1 to 64",
        ),
    ],
)
def test_wrong_settings_are_named(run: Run, file: Path, more: str, said: str) -> None:
    """I find the mistake in my file."""
    file.write_text(more)
    done = run("serve", "--config", str(file), "--port", "0")
    assert (True, said in done.stderr) == (done.returncode > 0, True), done.stderr
    assert "secret" not in done.stderr and "Traceback" not in done.stderr


def test_table_in_sqlite(run: Run, file: Path, sqlite_outbox: Path) -> None:
    """The same on a laptop, without a database server. Data is in the column `data` unless I say
    otherwise, in the file of settings, for `ddl`, and in Python.
    """
    with served_tables(file) as (base, _):
        answer = requests.get(f"{base}/orders?n=1&cursor0=_first", timeout=30)
        history = run("new-history", "orders", "--config", str(file), "--yes").stdout
        cursor = json.loads(answer.text.splitlines()[-1])["cursor"]
        refused = requests.get(f"{base}/orders?n=1&cursor0={cursor}", timeout=30)
    ddl = run("ddl", "outbox", "--url", f"sqlite:///{sqlite_outbox}").stdout
    engine = create_engine(f"sqlite:///{sqlite_outbox}")
    with closing(SqlTableFeed(engine, table="outbox")) as feed:
        (block,) = feed.page({0: "_first"}, 1, 1, ())
    engine.dispose()
    assert 1 == answer.text.count('"data":{"order":1}') == block.lines.count(b'"data":{"order":1}')
    assert (409, True) == (refused.status_code, "has the new history" in history)
    assert "-- outbox has all that it needs\n" == ddl


def test_commands_say_that_a_table_takes_no_batches(
    run: Run, file: Path, sqlite_outbox: Path
) -> None:
    """They do not advise to make the feed, which is there."""
    with served_tables(file) as (base, _):
        url = f"{base}/orders"
        said = [
            run("publish", url, "--producer", "till-7", stdin="1\n"),
            run("producers", url),
            run("producers", url, "till-7"),
            run("audit", url),
            run("replay-dead", url, stdin="1\n"),
        ]
    for each in said:
        assert (1, "") == (each.returncode, each.stdout)
        assert "[ZEH_TABLE_FEED]" in each.stderr and "explain table-feed" in each.stderr
        assert "'orders' is a table feed: its events are the rows of a table" in each.stderr
        assert "takes no batches, and has no producers and no receipts" in each.stderr
        assert "zeh-spark create" not in each.stderr and "audited" not in each.stderr


def test_name_of_a_table_and_of_a_stored_feed_is_refused(
    run: Run, shop: Shop, file: Path, tmp_path: Path
) -> None:
    """I would not know which of them is served."""
    with closing(open_store(f"sqlite:///{tmp_path}/feeds.db")) as store:
        store.create("orders", 1)
    url = shop.server.url(shop.database)
    file.write_text(
        f'store = "sqlite:///{tmp_path}/feeds.db"\n[feeds.orders]\nurl = "{url}"\n'
        f'table = "outbox"\ndata = "version"\n'
    )
    done = run("serve", "--config", str(file), "--port", "0")
    assert "Both the store and a table have a feed 'orders'" in done.stderr
