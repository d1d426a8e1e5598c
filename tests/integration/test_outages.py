"""What the publisher's log says of outages and of floods: one line, not one for each request."""

import random
import resource
import socket
import tempfile
from contextlib import ExitStack, closing
from functools import partial

import psutil
import pytest
import requests

from tests.fix_log_texts import check_documented
from tests.fix_publish import Caller, Who, rows
from tests.fix_publisher import change_file, connected, limited, open_feeds
from tests.patience import eventually
from tests.scratch_store import ScratchStore
from zeh_spark.publisher import Feed, create_app, open_store
from zeh_spark.service.network import http_protocol
from zeh_spark.service.retention.pruner import Pruner
from zeh_spark.service.store.interface import Retention
from zeh_spark.testing import publish, running_publisher
from zeh_spark.wire.upload_format import upload_body


def lines(caplog, logger="zeh_spark.publisher"):
    return [each.getMessage() for each in caplog.records if each.name.startswith(logger)]


@pytest.fixture
def base(file):
    """A publisher over a SQLite file."""
    with open_feeds(file, orders=1) as store:
        publish(store, "orders", range(3))
        with running_publisher(store) as base:
            yield base


def status(base, path="orders?n=1&cursor0=_first"):
    return requests.get(f"{base}/{path}", timeout=60).status_code


def begin_and_end(caplog):
    """The two lines of an outage, which are written after the answer."""
    eventually(lambda: len(lines(caplog)) == 2)
    return lines(caplog)


def test_an_outage_has_a_line_when_it_begins_and_one_when_it_ends(base, file, caplog):
    """Whatever number of requests it fails."""
    change_file(file, "ALTER TABLE feeds RENAME TO others")
    failed = [status(base) for _ in range(20)]
    change_file(file, "ALTER TABLE others RENAME TO feeds")
    works = [status(base) for _ in range(5)]

    assert ([500] * 20, [200] * 5) == (failed, works)
    begins, ends = begin_and_end(caplog)
    check_documented(caplog.records, "reading the store")
    check_documented(caplog.records, "… works again, after")
    assert begins.startswith("reading the store fails: the SQLite database cannot do it now")
    assert ends.startswith("reading the store works again, after ")
    assert ends.endswith("s and 20 failures")


def test_what_retention_cannot_remove_is_logged(base, file, caplog):
    """Old events fill the disk: I learn it before it is full."""
    with closing(open_store(f"sqlite:///{file}")) as store:
        store.set_retention("orders", Retention(bytes=1))
        change_file(
            file,
            "CREATE TRIGGER no BEFORE DELETE ON recent_chunks BEGIN SELECT RAISE(ABORT, 'no'); END",
        )
        with Pruner(store, every_seconds=0.01):
            eventually(lambda: lines(caplog))
    check_documented(caplog.records, "old events stay")


def test_writes_that_fail_do_not_seem_to_work_because_reads_do(base, file, caplog):
    """A full disk is such an outage."""
    caller = Caller(f"{base}/orders")
    who = Who(n=1)
    change_file(file, "ALTER TABLE uploads RENAME TO others")
    first = caller.upload(who, rows(1)).status
    status(base)
    second = caller.upload(who, rows(1)).status
    change_file(file, "ALTER TABLE others RENAME TO uploads")
    third = caller.upload(who, rows(1)).status

    assert (500, 500, 201) == (first, second, third)
    _, ends = begin_and_end(caplog)
    check_documented(caplog.records, "writing to the store")
    assert ends.endswith("and 2 failures")


def test_a_readiness_probe_notices_the_end_without_other_requests(base, file, caplog):
    change_file(file, "ALTER TABLE feeds RENAME TO others")
    eventually(lambda: status(base, "readyz") == 503)
    change_file(file, "ALTER TABLE others RENAME TO feeds")
    eventually(lambda: status(base, "readyz") == 200)

    begins, ends = begin_and_end(caplog)
    assert begins.startswith("reading the store fails: ")
    assert ends.startswith("reading the store works again")


@pytest.mark.slow
def test_a_database_that_is_down_has_two_lines(own_server, caplog):
    """PostgreSQL is stopped and started again under a publisher."""
    with open_feeds(own_server.url("postgres"), orders=1) as store:
        with running_publisher(store) as base:
            own_server.stop()
            failed = {status(base) for _ in range(5)}
            own_server.start()
            eventually(lambda: status(base) == 200)

    assert {503} == failed
    mine = [each for each in lines(caplog) if "reading the store" in each]
    assert ["reading the store fails", "reading the store works again"] == [
        each.partition(":")[0].partition(",")[0] for each in mine
    ]


def test_clients_learn_nothing_of_the_database_that_is_away(postgresql_server, caplog):
    """Its address, its user and its name are in my log alone, also if the client has a token."""
    database = postgresql_server.create_database()
    with open_feeds(postgresql_server.url(database), orders=1) as store:
        with running_publisher(store) as base:
            postgresql_server.execute(f"ALTER DATABASE {database} ALLOW_CONNECTIONS false")
            postgresql_server.disconnect(database)
            url = f"{base}/orders/producers/till-1"
            eventually(lambda: "does not answer" in requests.get(url, timeout=60).text)
            told = requests.get(url, timeout=60).text
            eventually(lambda: str(postgresql_server.port) in caplog.text)

    assert not [each for each in ("127.0.0.1", str(postgresql_server.port), database)
                if each in told]  # fmt: skip


def large_upload():
    """An upload that does not stay in memory while it arrives."""
    generator = random.Random(1)
    text = [f"{generator.getrandbits(8 * 30_000):x}" for _ in range(20)]
    body = upload_body(rows(*text))
    assert len(body) > 500_000
    return body


def test_a_full_temporary_directory_is_a_problem_and_no_reset(base, caplog):
    """A producer learns what is wrong, and tries again."""
    caller, body, who = Caller(f"{base}/orders"), large_upload(), Who(n=1)
    with limited(resource.RLIMIT_FSIZE, 300_000):  # writes fail as on a full disk
        refused = [caller.upload(who, body) for _ in range(3)]
    taken = caller.upload(who, body)

    assert [(507, "no-room-for-bodies")] * 3 == [each.short for each in refused]
    assert "cannot keep the body while it arrives: File too large" in refused[0].document["detail"]
    assert (201, "staged") == taken.short
    _, ends = begin_and_end(caplog)
    check_documented(caplog.records, "receiving bodies")
    assert ends.endswith("and 3 failures")
    assert not lines(caplog, "uvicorn")


def test_a_temporary_directory_that_is_gone_is_a_problem_too(base, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    refused = Caller(f"{base}/orders").upload(Who(n=1), large_upload())

    assert (507, "no-room-for-bodies") == refused.short


def test_slow_clients_are_dropped_with_one_line_and_no_traceback(caplog, monkeypatch):
    """They keep no memory of mine for ever, and never see a whole answer."""
    monkeypatch.setattr(http_protocol, "STALLED_SECONDS", 5.0)  # until what was sent is dropped
    store = ScratchStore(orders=1)
    for _ in range(20):
        publish(store, "orders", ["x" * 50_000] * 20)
    app = create_app(store, send_timeout=0.2)
    head = b"GET /orders?n=1&cursor0=_first&pagesizehint=1000 HTTP/1.1\r\nHost: x\r\n\r\n"
    with running_publisher(store, app) as base, ExitStack() as stack:
        clients = [stack.enter_context(connected(base)) for _ in range(5)]
        for each in clients:
            each.sendall(head)
            each.recv(1, socket.MSG_PEEK)  # its answer has begun
        eventually(lambda: not served_at(int(base.rpartition(":")[2])))
        got = [b"".join(iter(partial(each.recv, 1 << 20), b"")) for each in clients]

    assert not any(each.endswith(b"\r\n0\r\n\r\n") for each in got)
    assert ["a client took nothing for 0.2 s and is dropped"] == lines(caplog)
    check_documented(caplog.records, "a client took nothing")
    assert [] == [each for each in caplog.records if each.exc_info]


def served_at(port):
    """The connections that the publisher, in this process, has open."""
    found = psutil.Process().net_connections("tcp")
    return [each for each in found if each.laddr.port == port and each.raddr]


def test_a_bug_has_its_traceback_once(caplog):
    """Not for each request that meets it."""

    class Broken(Feed):
        partitions = 1

        def page(self, *given):
            raise RuntimeError("a bug")

        def version(self):
            return 0

    with running_publisher({"orders": Broken()}) as base:
        statuses = {status(base) for _ in range(5)}

    assert {500} == statuses
    assert 1 == len([each for each in caplog.records if each.exc_info])
