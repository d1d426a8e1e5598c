"""The transports of a process use each other's connections, and nothing else of each other."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing

import pyarrow as pa
import pytest

from tests.fix_middlemen import lost
from tests.fix_publisher import HERE
from tests.fix_raw_server import Answer, RawServer, ok
from zeh_spark.client.http import connections
from zeh_spark.client.http.publish_client import BatchCall, TaskDone
from zeh_spark.client.http.transport import Transport
from zeh_spark.client.options.client_options import ClientOptions
from zeh_spark.client.options.given import parse
from zeh_spark.errors import RowError
from zeh_spark.spark.sink.options import sink_options
from zeh_spark.spark.sink.row_layout import RowLayout
from zeh_spark.spark.sink.writer import StreamWriter, stage

TEXT = RowLayout(("data",), text=True)


def batch(number: int) -> BatchCall:
    return BatchCall("p", "a-query", "a-run", number)


def staged(number: int, task: int, *rows: str, **options: str):
    """What a task stages, as a Python worker of Spark runs it."""
    given = sink_options({"producerId": "p", **options}, streaming=True)
    frame = pa.RecordBatch.from_pydict({"data": list(rows)})
    return stage(given, TEXT, batch(number), TaskDone(task, 0), iter([frame]))


def commit(messages, **options: str) -> None:
    given = sink_options({"producerId": "p", **options}, streaming=True)
    StreamWriter(given, TEXT).commit(messages, messages[0].batch.number)


def used(server: RawServer) -> list[int]:
    """The connections of a server's requests, as numbers from 0."""
    return [each.connection for each in server.requests]


def ask(server: RawServer, **options: str) -> int:
    """Send a request with a transport of its own, and return the connection that it came over."""
    assert b"{}" == Transport(parse(ClientOptions, {"url": server.url, **options})).body("").whole()
    return used(server)[-1]


@pytest.fixture
def quiet(raw_server):
    """A server that answers whatever it is asked."""
    raw_server.script(ok(b"{}"))
    return raw_server


def test_tasks_of_the_sink_share_a_connection(publisher, start_proxy):
    """A worker connects once for many small tasks, and large ones, which send from a thread."""
    proxy = start_proxy(int(publisher.base.rpartition(":")[2]))
    to = {"url": f"{proxy.address}/orders", "uploadBytes": "64k"}

    for number in range(3):
        rows = ['"' + "x" * 1000 * number + '"'] * 200
        commit([staged(number, task, *rows, **to) for task in range(4)], **to)

    assert 1 == proxy.connections
    assert 3 * 4 * 200 == len(publisher.get("n=2&cursor0=_first&cursor1=_first").data)


def test_a_task_that_failed_stops_no_other_one(gateway, impatient):
    """The tasks after it try again as if it had never been."""
    to = {"url": f"{gateway.address}/orders"}
    with pytest.raises(RowError):
        staged(0, 0, "no JSON", **to)
    gateway.script(lost, lost)

    commit([staged(0, 1, "1", **to)], **to)

    assert 4 <= len(gateway.requests)


def test_queries_send_their_own_credentials(quiet):
    """A worker that served another query sends nothing of it."""
    mine = {"token": "token-of-mine", "http.header.X-Mine": "1"}
    theirs = {"token": "token-of-theirs", "http.secret.header.X-Key": "of-theirs"}

    assert [0, 0, 0] == [ask(quiet, **each) for each in (mine, theirs, {})]

    kept = "authorization", "x-mine", "x-key"
    assert [
        {"authorization": "Bearer token-of-mine", "x-mine": "1"},
        {"authorization": "Bearer token-of-theirs", "x-key": "of-theirs"},
        {},
    ] == [{k: v for k, v in each.headers.items() if k in kept} for each in quiet.requests]


def test_what_follows_an_answer_is_no_answer_to_the_next_request(tls):
    """Not even if TLS has it already, where nobody sees it, or a batch would be another's."""
    first, forged = ok(b"{}").pieces[0], ok(b"[]").pieces[0]
    with closing(RawServer(tls.server_context())) as server:
        server.script(Answer((first.ljust(8192, b"x") + forged,)), ok(b"{}"))
        assert [0, 1] == [ask(server, caFile=tls.ca_file) for _ in range(2)]


def test_a_certificate_is_shown_by_the_queries_that_have_it(tls):
    """Also after its file was replaced: the publisher knows each connection by its certificate."""
    mine, theirs = tls.issue("mine", "a@example.org"), tls.issue("theirs", "b@example.org")
    with closing(RawServer(tls.server_context(ask_client=True))) as server:
        server.script(ok(b"{}"))

        def ask_as(pair) -> int:
            files = {"clientCertFile": str(pair.cert), "clientKeyFile": str(pair.key)}
            return ask(server, caFile=tls.ca_file, **files)

        assert [0, 1, 0] == [ask_as(mine), ask_as(theirs), ask_as(mine)]
        tls.issue("mine", "c@example.org")
        assert [2, 1] == [ask_as(mine), ask_as(theirs)]


def test_an_idle_connection_is_not_used_again(quiet, monkeypatch):
    """Load balancers forget it without a word, and a request would wait for its timeout."""
    assert [0, 0] == [ask(quiet), ask(quiet)]
    monkeypatch.setattr(connections, "IDLE_SECONDS", -1.0)

    assert [1, 2] == [ask(quiet), ask(quiet)]


FORKS = """
import os, sys
from zeh_spark.client.http.transport import Transport
from zeh_spark.client.options.client_options import ClientOptions
from zeh_spark.client.options.given import parse

def ask(transport):
    assert b"{}" == transport.body("").whole()

options = parse(ClientOptions, {"url": sys.argv[1]})
transport = Transport(options)
ask(transport)
if child := os.fork():
    os.waitpid(child, 0)
    ask(transport)
else:
    ask(transport)
    ask(Transport(options))
"""


def test_a_forked_process_opens_its_own(quiet):
    """Spark's workers are forked: two of them must not write to one connection."""
    subprocess.run([sys.executable, "-c", FORKS, quiet.url], check=True, timeout=60, cwd=HERE)

    assert [0, 1, 1, 0] == used(quiet)
