"""Parts of a deployment at work: the health check of the image, and a role that owns nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from psycopg import errors

from tests import postgresql
from tests.fix_cli import call
from tests.fix_publisher import new_feed, served
from tests.fix_tls import TlsFolder
from tests.patience import eventually
from tests.ports import free_port
from zeh_spark.publish import Producer
from zeh_spark.publisher import Actor, Via, open_store
from zeh_spark.service.store.interface import Retention
from zeh_spark.testing import publish

CONF = Path(__file__).parents[2] / "conf"
RUNTIME = "zeh_publisher"


def is_healthy(base: str, **variables: str) -> bool:
    port = base.rpartition(":")[2]
    command = [sys.executable, str(CONF / "docker" / "healthy.py")]
    env = {**os.environ, "ZEH_PORT": port, **variables}
    return subprocess.run(command, env=env, check=False).returncode == 0


def test_the_health_check_sees_whether_the_publisher_answers(tmp_path: Path) -> None:
    """A container whose publisher hangs is restarted, and no other."""
    with served(new_feed(tmp_path / "feeds.db")) as (base, _):
        assert is_healthy(base)
    assert not is_healthy(f"http://127.0.0.1:{free_port()}")


def test_the_health_check_speaks_tls(tmp_path: Path, tls: TlsFolder) -> None:
    """Mutual TLS, too."""
    pair = tls.issue("server", "feeds.example")
    words = ["--tls-cert", str(pair.cert), "--tls-key", str(pair.key), "--tls-client-ca"]
    with served(new_feed(tmp_path / "feeds.db"), *words, str(tls.ca)) as (base, _):
        variables = {"ZEH_TLS_CERT": str(pair.cert), "ZEH_TLS_CLIENT_CA": str(tls.ca)}
        assert is_healthy(base, **variables)
        assert not is_healthy(base)  # without TLS it gets no answer


@pytest.fixture
def owned(postgresql_server: postgresql.Server) -> str:
    """The name of a database with a store whose feed `orders` has one partition."""
    name = postgresql_server.create_database()
    new_feed(postgresql_server.url(name))
    return name


def give_role(server: postgresql.Server, name: str, *words: str) -> None:
    command = [postgresql.program("psql"), "-q", "-h", "127.0.0.1", "-p", str(server.port)]
    command += ["-U", postgresql.USER, "-d", name, "-v", f"runtime={RUNTIME}", *words]
    script = (CONF / "postgresql-roles.sql").read_text(encoding="utf-8")
    subprocess.run([*command, "-f", "-"], input=script, text=True, check=True, capture_output=True)


@pytest.fixture
def runtime(postgresql_server: postgresql.Server, owned: str) -> str:
    """The URL of the store for a role that may only run a publisher."""
    give_role(postgresql_server, owned)
    give_role(postgresql_server, owned)  # after an upgrade, say
    return postgresql_server.url(owned).replace(f"{postgresql.USER}@", f"{RUNTIME}@")


def test_a_role_without_rights_on_tables_runs_a_publisher(
    postgresql_server: postgresql.Server, owned: str, runtime: str
) -> None:
    """It takes uploads, keeps positions, serves and prunes."""
    with closing(open_store(postgresql_server.url(owned))) as store:
        publish(store, "orders", range(3))
        store.set_retention("orders", replace(store.retention("orders"), bytes=1))
        with served(runtime) as (base, _):
            eventually(lambda: next(each.events for each in store.feeds()) == 0)
            store.set_retention("orders", replace(store.retention("orders"), bytes=None))
            with Producer(f"{base}/orders", "till-7").batch() as batch:
                batch.add({"order": 17})
            with Producer(f"{base}/orders", "till-7").batch("2026-11") as named:
                named.add({"order": 18})
            tail = call("tail", f"{base}/orders", "--from", "first", "--no-follow")
            kept = call("producers", f"{base}/orders")
    assert (0, 2) == (tail.returncode, len(tail.stdout.splitlines()))
    assert "till-7" in kept.stdout


def test_that_role_can_change_neither_tables_nor_tokens(
    postgresql_server: postgresql.Server, owned: str, runtime: str
) -> None:
    """Whoever breaks into my publisher gets no further."""
    with psycopg.connect(
        host="127.0.0.1", port=postgresql_server.port, user=RUNTIME, dbname=owned, autocommit=True
    ) as connection:
        for statement in (
            "CREATE TABLE zeroeventhub.more (id integer)",
            "CREATE TABLE public.more (id integer)",
            "ALTER TABLE zeroeventhub.feeds ADD COLUMN more integer",
            "DROP TABLE zeroeventhub.recent_chunks",
            "TRUNCATE zeroeventhub.recent_chunks",
            "UPDATE zeroeventhub.store SET version = 1",
            "INSERT INTO zeroeventhub.tokens SELECT * FROM zeroeventhub.tokens",
            "UPDATE zeroeventhub.acts SET actor = 'nobody'",
            "DELETE FROM zeroeventhub.acts",
            "TRUNCATE zeroeventhub.acts",
        ):
            with pytest.raises(errors.InsufficientPrivilege):
                connection.execute(statement)


def test_a_command_that_needs_the_owner_says_so(runtime: str) -> None:
    """I learn that the publisher's role is the wrong one, and which one makes tokens."""
    done = call("token", "create", "warehouse", "--read", "orders", "--store", runtime)

    assert 1 == done.returncode
    assert "permission denied for table tokens. Use the role that owns the tables" in done.stderr
    assert "explain permission-denied" in done.stderr


def test_that_role_adds_to_the_log_of_acts(runtime: str) -> None:
    """What is done through a publisher is in the log, too."""
    with closing(open_store(runtime)) as store:
        store.set_retention("orders", Retention(bytes=1), by=Actor("ops", Via.HTTP))
        act = store.acts(limit=1)[0]
    assert ("http", "ops", "set-retention") == (act.via, act.actor, act.action)


def test_the_password_of_the_role_is_read_from_a_file(
    postgresql_server: postgresql.Server, owned: str, tmp_path: Path
) -> None:
    """It is in no command line."""
    file = tmp_path / "password"
    file.write_text("it's secret\n")
    give_role(postgresql_server, owned, "-v", f"password_file={file}")
    query = f"SELECT rolpassword LIKE 'SCRAM%' FROM pg_authid WHERE rolname = '{RUNTIME}'"
    assert [(True,)] == postgresql_server.execute(query)
