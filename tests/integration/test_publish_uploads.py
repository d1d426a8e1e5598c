"""Uploads as any HTTP client sends them: what is taken, what is refused, and when.

Names in brackets: see tests/README.md.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pytest
import requests
import zstandard

from tests.fix_publish import Caller, Reply, Who, events_of, rows
from tests.fix_publisher import Publisher
from zeh_spark.chunks import CHUNK_EVENTS, LINE_BYTES, Chunker, upload_body
from zeh_spark.decode import Decoder
from zeh_spark.publisher import create_app, open_store
from zeh_spark.testing import running_publisher
from zeh_spark.wire import MAX_DEPTH

PROMISE = "PUT {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n{more}\r\n"


class Wire:
    """A connection on which a test sends what it likes."""

    def __init__(self, base: str) -> None:
        address = urlsplit(base)
        assert address.hostname
        assert address.port
        self.socket = socket.create_connection((address.hostname, address.port), 30)

    def promise(self, who: Who, length: int, more: str = "") -> None:
        """The head of an upload, whose body is still to come."""
        path = f"/orders{who.path}/uploads/{who.run}.0.0.0?{who.query()}"
        self.socket.sendall(PROMISE.format(path=path, length=length, more=more).encode())

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


@pytest.fixture(scope="module")
def quiet_caller(quiet_publisher: Publisher) -> Iterator[Caller]:
    """To a publisher that takes nothing of what it is sent."""
    with closing(Caller(quiet_publisher.url)) as caller:
        yield caller


# What is taken


def test_upload_can_be_repeated(publisher: Publisher, caller: Caller) -> None:
    """I may send an upload again whose answer was lost; nobody sees it yet (EX-02, BQ-01)."""
    replies = [caller.upload(Who(), rows(1)).short for _ in range(3)]
    assert [(201, "staged"), (200, "staged"), (200, "staged")] == replies
    assert [] == publisher.get("n=2&cursor0=_first").data
    caller.commit(Who(), rows(1))
    assert [b"1"] == events_of(publisher.store)


def test_name_of_an_upload_stands_for_one_content(caller: Caller) -> None:
    """Two attempts that take each other's name do not mix (F1)."""
    caller.upload(Who(), rows(1))
    reply = caller.upload(Who(), rows(2))
    assert (409, "upload-conflict") == reply.short
    assert "r1.0.0.0" in reply.document["detail"]
    assert (201, "staged") == caller.upload(Who(), rows(2), name="0.1.0").short


def test_events_stay_as_they_were_sent(publisher: Publisher, caller: Caller) -> None:
    """Not a byte of my data changes, whatever JSON it is (EX-05, ZE-08)."""
    sent = [b'{"a": 1.50}', b"1e999", '"\u2028ä"'.encode(), b"[]", b'"null"', b"-0", b'{"a":null}']
    caller.publish(Who(), *sent)
    assert sent == events_of(publisher.store)


def test_largest_upload_is_taken(publisher: Publisher, caller: Caller) -> None:
    """Lines as long as allowed, chunks as full as allowed."""
    longest = b'"' + b"x" * (LINE_BYTES - len('{"partition":0,"headers":{},"data":""}')) + b'"'
    chunks = rows(longest, *range(CHUNK_EVENTS - 1))
    caller.upload(Who(), chunks)
    assert (200, "committed") == caller.commit(Who(), chunks).short
    assert CHUNK_EVENTS == len(events_of(publisher.store))


def test_several_uploads_of_a_batch_come_in_any_order(publisher: Publisher, caller: Caller) -> None:
    """Tasks send in parallel; the feed has them by task and number (EH-07, EH-08, PU-06)."""
    parts = {"1.0.0": rows(4), "0.0.1": rows(3), "0.0.0": rows(1, 2)}
    for name, chunks in parts.items():
        caller.upload(Who(), chunks, name=name)
    tasks = [
        {"task": 0, "attempt": 0, "uploads": 2, "events": 3},
        {"task": 1, "attempt": 0, "uploads": 1, "events": 1},
    ]
    caller.commit(Who(), rows(1, 2, 3, 4), attempts=tasks)
    assert [b"1", b"2", b"3", b"4"] == events_of(publisher.store)


# When it is refused: before its body is read


def test_reasons_come_in_one_order(publisher: Publisher, caller: Caller) -> None:
    """An upload that is wrong in many ways hears first what has to be healed first (DS-01)."""
    caller.publish(Who(0), 1)
    caller.publish(Who(1, run="r2"), 2)
    caller.publish(Who(producer="gone"), 1)
    publisher.store.delete_producer("orders", "gone")
    right, broken = Who(2, run="r2"), b"no upload"
    calls = [
        (right.but(producer="gone", incarnation="b", run="r1", batch=9, n=3), "producer-deleted"),
        (right.but(incarnation="b", run="r1", batch=9, n=3), "incarnation-changed"),
        (right.but(run="r1", batch=9, n=3), "fenced"),
        (right.but(batch=1, n=3), "already-committed"),
        (right.but(batch=9, n=3), "batch-gap"),
        (right.but(n=3), "layout-changed"),
        (right, "invalid-upload"),
    ]
    replies = [caller.upload(who, broken).short[1] for who, _ in calls]
    assert [name for _, name in calls] == replies


def test_body_that_is_not_wanted_need_not_be_sent(
    publisher: Publisher, caller: Caller, wire: Wire
) -> None:
    """A batch that is there is named before I send its rows, and the connection goes on (F2)."""
    receipt = caller.publish(Who(), 1).document["receipt"]
    wire.promise(Who(), 1_000_000)
    reply = wire.reply()
    assert ((200, "already-committed"), receipt) == (reply.short, reply.document["receipt"])
    wire.socket.sendall(bytes(1_000_000))
    wire.promise(Who(1), len(body := upload_body(rows(2))))
    wire.socket.sendall(body)
    assert (201, "staged") == wire.reply().short


def test_refusal_leaves_the_connection_usable(wire: Wire) -> None:
    """A refused call does not break what I send behind it."""
    wire.promise(Who(9), 5)
    assert (409, "batch-gap") == wire.reply().short
    wire.socket.sendall(b"x" * 5)
    wire.promise(Who(), 5)
    wire.socket.sendall(b"x" * 5)
    assert (422, "invalid-upload") == wire.reply().short


def test_length_is_asked_for(caller: Caller) -> None:
    """A body of unknown length is refused before it is read."""
    path = f"{Who().path}/uploads/r1.0.0.0"
    assert (411, "length-required") == caller.call("PUT", path, Who().query(), iter([b"x"])).short


def test_too_long_a_body_is_refused_before_it_comes(wire: Wire) -> None:
    """I am told the limit, and need not send it all."""
    wire.promise(Who(), (64 << 20) + 1)
    reply = wire.reply()
    assert ((413, "body-too-large"), 64 << 20) == (reply.short, reply.document["maximum"])


def test_client_that_stops_in_its_body_is_told(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow client is not waited for without end."""
    monkeypatch.setattr("zeh_spark.publisher.publishing.BODY_SECONDS", 0.2)
    wire.promise(Who(), 100)
    wire.socket.sendall(b"x" * 99)
    assert (408, "body-too-slow") == wire.reply().short


def test_slow_client_keeps_nobody_waiting(
    caller: Caller, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much it says that it will send: it has a place, and no room that others need."""
    monkeypatch.setattr("zeh_spark.publisher.publishing.TURN_SECONDS", 0.5)
    wire.promise(Who(), 64 << 20, "Expect: 100-continue\r\n")
    assert wire.socket.recv(1000).startswith(b"HTTP/1.1 100 ")  # it is being read
    wire.socket.sendall(bytes(1 << 20))
    assert (201, "staged") == caller.upload(Who(), rows(1), name="0.0.1").short


def test_too_many_bodies_at_a_time_are_told_to_come_again(
    tmp_path: Path, call_feed: Callable[[str], Caller], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is no place, I wait a little, hear 429 and when to come again; then it fits."""
    monkeypatch.setattr("zeh_spark.publisher.publishing.BODIES", 1)
    monkeypatch.setattr("zeh_spark.publisher.publishing.TURN_SECONDS", 0.3)
    with closing(open_store(f"sqlite:///{tmp_path / 'feeds.db'}")) as store:
        store.create("orders", 2)
        with running_publisher(store) as base, closing(Wire(base)) as wire:
            caller = call_feed(f"{base}/orders")
            wire.promise(Who(), 100, "Expect: 100-continue\r\n")
            assert wire.socket.recv(1000).startswith(b"HTTP/1.1 100 ")  # it has the place
            reply = caller.upload(Who(), rows(1), name="0.0.1")
            wire.socket.sendall(bytes(100))
            assert (422, "invalid-upload") == wire.reply().short
            again = caller.upload(Who(), rows(1), name="0.0.1")
    assert ((429, "busy"), "1") == (reply.short, reply.headers["Retry-After"])
    assert (201, "staged") == again.short


def test_room_is_made_before_an_upload_is_refused(
    tmp_path: Path, call_feed: Callable[[str], Caller]
) -> None:
    """A full quota first drops what nobody needs, then tells what is staged and allowed."""
    with closing(open_store(f"sqlite:///{tmp_path / 'feeds.db'}")) as store:
        store.create("orders", 2)
        size = sum(len(each.frame) for each in rows(0))
        with running_publisher(store, create_app(store, staging_quota=2 * size)) as base:
            caller = call_feed(f"{base}/orders")
            caller.publish(Who(0), 0)
            given_up = Who(2, run="r1", remedies={"acceptGap": "a@0:2"})
            assert 201 == caller.upload(given_up, rows(1)).status
            caller.publish(Who(1, run="r2"), 2)
            replies = [
                caller.upload(Who(2, run="r2"), rows(each), name=f"{each}.0.0") for each in range(3)
            ]
    assert [201, 201, 507] == [each.status for each in replies]
    quota = {"quota": 2 * size, "staged": 2 * size}
    assert quota.items() <= replies[2].document.items()


# Bodies that are no uploads


def frame(lines: bytes, *, size: bool = True) -> bytes:
    return zstandard.ZstdCompressor(write_content_size=size).compress(lines)


def one(lines: bytes, packed: bytes | None = None, **entry: int) -> bytes:
    """An upload of one chunk, whose entry is right unless told otherwise."""
    packed = frame(lines) if packed is None else packed
    events = lines.count(b"\n")
    right = {"partition": 0, "events": events, "size": len(lines), "bytes": len(packed)}
    return msgspec.json.encode([{**right, **entry}]) + b"\n" + packed


def line(headers: bytes = b"{}", data: bytes = b"1", partition: int = 0) -> bytes:
    return b'{"partition":%d,"headers":%b,"data":%b}\n' % (partition, headers, data)


def lying(size: int) -> bytes:
    """A frame of a megabyte and more, whose header promises less."""
    packed = bytearray(frame(line() * 60_000))
    at = packed.index((60_000 * len(line())).to_bytes(4, "little"))
    packed[at : at + 4] = size.to_bytes(4, "little")
    return bytes(packed)


def padded(lines: bytes) -> bytes:
    """A frame with a thousand empty blocks before the one that holds the lines, unpacked."""
    head = b"\x28\xb5\x2f\xfd\xa0" + len(lines).to_bytes(4, "little")  # one segment, size in 4
    return head + bytes(3) * 1000 + (len(lines) << 3 | 1).to_bytes(3, "little") + lines


GOOD = line()
DEEP = b"%b" + b"[" * 500 + b"]" * 500 + b"%b"
BODIES = {
    "nothing": (b"", "no upload"),
    "no index": (b"{}\n", "no list of chunks"),
    "index without newline": (b"[]", "its first line has no end"),
    "index without end": (b"[%b" % (b" " * (1 << 20)), "longer than 1,048,576 bytes"),
    "index in Latin-1": (b'[{"partition\xe4":0}]\n', "no list of chunks"),
    "unknown member": (one(GOOD, more=1), "unknown field"),
    "nested index": (b"[" * 100_000 + b"\n", "no list of chunks"),
    "body too short": (one(GOOD)[:-1], "but the body has"),
    "body too long": (one(GOOD) + b"x", "but the body has"),
    "negative bytes": (one(GOOD, b"", bytes=-1)[:-1], "no upload|but the body has"),
    "too many chunks": (b"[%b]\n" % b",".join([one(GOOD, b"")[1:-2]] * 10_001), "at most 10,000"),
    "too much": (one(GOOD, size=(64 << 20) + 1), "67,108,865"),
    "partition of another feed": (one(line(partition=2), partition=2), "the feed has 0 to 1"),
    "negative partition": (one(GOOD, partition=-1), "the feed has 0 to 1"),
    "no frame": (one(GOOD, b"x" * 20), "not one zstd frame"),
    "empty frame": (one(b"", frame(b""), events=0), "from 1 to"),
    "cut frame": (one(GOOD, frame(GOOD)[:-1]), "not one zstd frame"),
    "broken frame": (one(GOOD, frame(GOOD)[:-4] + b"\0\0\0\0"), "chunk 0"),
    "two frames": (one(GOOD, frame(GOOD) + frame(GOOD)), "not one zstd frame"),
    "bytes behind the frame": (one(GOOD, frame(GOOD) + b"x"), "not one zstd frame"),
    "frame of unknown size": (one(GOOD, frame(GOOD, size=False)), "an unknown number of"),
    "padded frame": (one(GOOD, padded(GOOD)), "a frame of 3,050 bytes for 38"),
    "too large a frame": (one(line() * 60_000), "1,048,576 are allowed"),
    "bomb": (one(GOOD, lying(1000), size=1000), "not one zstd frame"),
    "bomb that says what it is": (one(b"\0" * (64 << 20)), "67,108,864"),
    "wrong size": (one(GOOD, size=len(GOOD) + 1), "its entry says"),
    "wrong count": (one(GOOD * 2, events=3), "has 2 lines, its entry says 3"),
    "too many events": (one(GOOD * (CHUNK_EVENTS + 1)), "at most 1000"),
    "no newline at the end": (one(GOOD[:-1], events=1), "no newline"),
    "empty line": (one(GOOD + b"\n"), "line 1"),
    "wrong prefix": (one(line(partition=1)), "line 0.*has to begin"),
    "order of members": (one(b'{"headers":{},"partition":0,"data":1}\n'), "has to begin"),
    "blank in the envelope": (one(b'{"partition":0,"headers":{} ,"data":1}\n'), "blanks"),
    "blank in the headers": (one(line(b'{"a": "1"}')), "blanks"),
    "blank behind": (one(GOOD[:-1] + b" \n"), "blanks"),
    "carriage return": (one(GOOD[:-1] + b"\r\n"), "line 0"),
    "carriage return in the data": (one(line(data=b"[\r]")), "line 0"),
    "data is null": (one(line(data=b"null")), "data is null"),
    "no data": (one(b'{"partition":0,"headers":{}}\n'), "data"),
    "data twice": (one(b'{"partition":0,"headers":{},"data":1,"data":2}\n'), "twice"),
    "partition twice": (one(b'{"partition":0,"headers":{},"data":1,"partition":1}\n'), "twice"),
    "unknown envelope member": (one(b'{"partition":0,"headers":{},"data":1,"x":1}\n'), "`x`"),
    "cursor": (one(b'{"partition":0,"headers":{},"data":1,"cursor":"1"}\n'), "`cursor`"),
    "reserved header": (one(line(b'{"zeh-time":"1"}')), "'zeh-time' is reserved"),
    "hidden reserved header": (one(line(b'{"\\u007aeh-x":"1"}')), "'zeh-x' is reserved"),
    "header twice": (one(line(b'{"a":"1","a":"2"}')), "a name twice"),
    "header is a number": (one(line(b'{"a":1}')), "line 0"),
    "header is null": (one(line(b'{"a":null}')), "line 0"),
    "half a character": (one(line(b'{"a":"\\ud800"}')), "surrogate"),
    "not UTF-8": (one(line(data=b'"\xff"')), "not UTF-8"),
    "byte order mark": (one(b"\xef\xbb\xbf" + GOOD), "has to begin"),
    "not JSON": (one(line(data=b"{")), "line 0"),
    "NaN": (one(line(data=b"NaN")), "NaN is not JSON"),
    "too long a line": (one(line(data=b'"%b"' % (b"x" * LINE_BYTES))), "at most 65,"),
    "nested too deeply": (one(line(data=b"[" * 30_000 + b"]" * 30_000)), "nested too deeply"),
    "nested more deeply than some follow": (one(line(data=DEEP % (b"[", b"]"))), "501 deep"),
    "bad third line": (one(GOOD * 2 + line(data=b"nul")), "chunk 0, line 2"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BODIES)
def test_broken_upload_is_named(quiet_caller: Caller, kind: str) -> None:
    """What readers could not read is refused at the door, with chunk, line and reason."""
    body, said = BODIES[kind]
    replies = [quiet_caller.upload(Who(), body) for _ in range(2)]
    assert [(422, "invalid-upload")] * 2 == [each.short for each in replies]
    assert replies[0].document == replies[1].document
    assert re.search(said, replies[0].document["detail"], re.DOTALL)


@pytest.mark.parametrize("headers", ["_all", "a", ""])
def test_deepest_event_is_served_to_everybody(
    publisher: Publisher, caller: Caller, headers: str
) -> None:
    """What was taken can be read, whatever I ask for, and also where answers are packed."""
    data = b"[" * MAX_DEPTH + b"]" * MAX_DEPTH
    chunker = Chunker()
    chunks = [*chunker.add(0, {"a": "b"}, data), *chunker.close()]
    caller.upload(Who(), chunks)
    caller.commit(Who(), chunks)
    query = f"cursor0=_first&n=2&headers={headers}"
    answer = requests.get(f"{publisher.base}/orders?{query}", timeout=30)
    (line, _) = answer.content.splitlines()
    (batch,) = Decoder(("data",), "", permissive=False).batches(line + b"\n", 0)
    assert [data.decode()] == batch.column(0).to_pylist()


def test_broken_chunk_is_named_among_right_ones(quiet_caller: Caller) -> None:
    """Chunk and line are also members, for programs."""
    frames = [frame(GOOD), frame(GOOD * 3), frame(GOOD + line(data=b"null"))]
    index = [
        {"partition": 0, "events": events, "size": events * len(GOOD) + more, "bytes": len(packed)}
        for events, more, packed in zip((1, 3, 2), (0, 0, 3), frames, strict=True)
    ]
    body = msgspec.json.encode(index) + b"\n" + b"".join(frames)
    document = quiet_caller.upload(Who(), body).document
    assert (2, 1) == (document["chunk"], document["line"])


def test_broken_upload_leaves_nothing(publisher: Publisher, caller: Caller) -> None:
    """A batch with a chunk that was refused cannot be committed without it (EH-06)."""
    caller.upload(Who(), one(line(data=b"null")))
    assert (409, "upload-missing") == caller.commit(Who(), rows(1)).short
    assert (201, "staged") == caller.upload(Who(), rows(1)).short


@pytest.mark.parametrize(
    ("digest", "status"),
    [
        ("sha-256=:{right}:", 201),
        ("sha-512=:AAAA:, sha-256=:{right}:", 201),
        ("sha-512=:AAAA:", 201),
        ("sha-256=:{wrong}:", 422),
        ("sha-256=:!:", 201),
        ("sha-256=:AAA:", 422),
    ],
)
def test_changed_body_is_noticed_by_its_digest(caller: Caller, digest: str, status: int) -> None:
    """A proxy that changes bytes is found out at once (RFC 9530)."""
    body = upload_body(rows(1))
    right, wrong = (
        base64.b64encode(hashlib.sha256(each).digest()).decode() for each in (body, b"")
    )
    reply = caller.upload(Who(), body, Content_Digest=digest.format(right=right, wrong=wrong))
    assert (status, status == 422) == (reply.status, reply.short[1] == "digest-mismatch")


@pytest.mark.parametrize(
    "name", ["r1.0.0", "r1.0.0.0.0.x", "r1.-1.0.0", "r1.0.0.2147483648", ".0.0.0", "r 1.0.0.0"]
)
def test_bad_name_of_an_upload_is_named(quiet_caller: Caller, name: str) -> None:
    """A typing error says what is allowed."""
    reply = quiet_caller.call("PUT", f"{Who().path}/uploads/{name}", Who().query(), b"")
    assert 400 == reply.status
