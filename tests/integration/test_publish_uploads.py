"""Uploads as any HTTP client sends them: what is taken, what is refused, and when.

Names in brackets: see tests/README.md.
"""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.fix_publish import Caller, Reply, Who, events_of, rows
from tests.fix_publisher import Publisher
from zeh_spark.publisher import Store, create_app, open_store
from zeh_spark.service.store.batches import UPLOAD_BYTES
from zeh_spark.testing import running_publisher
from zeh_spark.wire.upload_format import CHUNK_EVENTS, upload_body


class Wire:
    """A connection on which a test sends what it likes."""

    def __init__(self, base: str) -> None:
        address = urlsplit(base)
        self.socket = socket.create_connection((address.hostname, address.port), 30)

    def promise(self, who: Who, length: int, more: str = "") -> None:
        """The head of an upload, whose body is still to come."""
        path = f"/orders{who.path}/uploads/{who.run}.0.0.0?{who.query()}"
        head = f"PUT {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n{more}\r\n"
        self.socket.sendall(head.encode())

    def reply(self) -> Reply:
        answer = http.client.HTTPResponse(self.socket)
        answer.begin()
        return Reply(answer.status, dict(answer.getheaders()), json.loads(answer.read()))

    def close(self) -> None:
        self.socket.close()


@pytest.fixture
def wire(publisher: Publisher) -> Iterator[Wire]:
    with closing(Wire(publisher.base)) as wire:
        yield wire


# What is taken


def test_events_stay_as_they_were_sent(publisher, caller):
    """Not a byte of my data changes, whatever JSON it is (EX-05, ZE-08)."""
    sent = [b'{"a": 1.50}', b"1e999", '"\u2028ä"'.encode(), b"[]", b'"null"', b"-0", b'{"a":null}']
    caller.publish(Who(), *sent)
    assert sent == events_of(publisher.store)


# When it is refused: before its body is read


def test_body_that_is_not_wanted_need_not_be_sent(publisher, caller, wire):
    """A batch that is there, or a refusal, is told first; the connection continues (F2)."""
    receipt = caller.publish(Who(), 1).document["receipt"]
    wire.promise(Who(), 1_000_000)
    reply = wire.reply()
    assert ((200, "already-committed"), receipt) == (reply.short, reply.document["receipt"])
    wire.socket.sendall(bytes(1_000_000))
    wire.promise(Who(9), 5)
    assert (409, "batch-gap") == wire.reply().short
    wire.socket.sendall(b"x" * 5)
    wire.promise(Who(1), 5)
    wire.socket.sendall(b"x" * 5)
    assert (422, "invalid-upload") == wire.reply().short
    wire.promise(Who(1), len(body := upload_body(rows(2))))
    wire.socket.sendall(body)
    assert (201, "staged") == wire.reply().short


def test_too_long_a_body_is_refused_before_it_comes(wire):
    """I am told the limit, and need not send it all."""
    wire.promise(Who(), (64 << 20) + 1)
    reply = wire.reply()
    assert ((413, "body-too-large"), 64 << 20) == (reply.short, reply.document["maximum"])


def test_client_that_stops_in_its_body_is_told(wire, monkeypatch):
    """A slow client is not waited for without end."""
    monkeypatch.setattr("zeh_spark.service.network.bodies.BODY_SECONDS", 0.2)
    wire.promise(Who(), 100)
    wire.socket.sendall(b"x" * 99)
    assert (408, "body-too-slow") == wire.reply().short


@contextmanager
def limited(file: Path, **limits: int) -> Iterator[tuple[Store, str, Caller]]:
    """A publisher with limits of its own: its store, its address, and who calls it."""
    with (
        closing(open_store(f"sqlite:///{file}")) as store,
        running_publisher(store, create_app(store, **limits)) as base,
        closing(Caller(f"{base}/orders")) as caller,
    ):
        yield store, base, caller


def test_too_many_bodies_at_a_time_are_told_to_come_again(store_file, monkeypatch):
    """Where there is no place, I wait a little, hear 429 and when to come again; then it fits."""
    monkeypatch.setattr("zeh_spark.service.app.publish_api.BODIES", 1)
    monkeypatch.setattr("zeh_spark.service.network.bodies.TURN_SECONDS", 0.3)
    with limited(store_file) as (_, base, caller), closing(Wire(base)) as wire:
        wire.promise(Who(), 100, "Expect: 100-continue\r\n")
        assert wire.socket.recv(1000).startswith(b"HTTP/1.1 100 ")  # it has the place
        reply = caller.upload(Who(), rows(1), name="0.0.1")
        wire.socket.sendall(bytes(100))
        assert (422, "invalid-upload") == wire.reply().short
        again = caller.upload(Who(), rows(1), name="0.0.1")
    assert ((429, "busy"), "1") == (reply.short, reply.headers["Retry-After"])
    assert (201, "staged") == again.short


def test_a_batch_of_too_many_chunks_is_refused_before_it_is_committed(store_file):
    """I am told how many it has, how many are allowed, and what to do; smaller ones go on."""
    with limited(store_file, most_chunks=1) as (store, _, caller):
        both, large = [*rows(1), *rows(2, partition=1)], rows(*range(CHUNK_EVENTS))
        caller.upload(Who(), both)
        refused = caller.commit(Who(), both)
        assert [] == events_of(store)
        caller.upload(Who(run="r2"), large)
        taken = caller.commit(Who(run="r2"), large)
    assert (413, "too-many-chunks") == refused.short
    assert {"chunks": 2, "maximum": 1}.items() <= refused.document.items()
    assert "repartition" in refused.document["remedy"]
    assert (200, "committed") == taken.short


def test_upload_beyond_the_quota_is_refused(store_file):
    """I am told what is staged and allowed."""
    size = UPLOAD_BYTES + sum(len(each.frame) for each in rows(0))
    with limited(store_file, staging_quota=size) as (_, _, caller):
        taken, refused = (caller.upload(Who(), rows(1), name=f"{task}.0.0") for task in (0, 1))
    assert [201, 507] == [taken.status, refused.status]
    assert {"quota": size, "staged": size}.items() <= refused.document.items()
