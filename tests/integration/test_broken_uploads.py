"""Uploads that are none: each is refused at the door by what is wrong with it."""

from __future__ import annotations

import base64
import hashlib
import re

import msgspec
import requests
import zstandard

from tests.cases import each_case
from tests.fix_publish import Who, rows
from zeh_spark.client.decoding.lines import Decoder
from zeh_spark.wire.upload_format import CHUNK_EVENTS, LINE_BYTES, Chunker, upload_body
from zeh_spark.wire.wire import MAX_DEPTH


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
SIZED = b'{"partition":0,"events":1,"size":1,"bytes":%d}'
DEEP = b"%b" + b"[" * 500 + b"]" * 500 + b"%b"
BODIES = {
    "nothing": (b"", "no upload"),
    "no index": (b"{}\n", "no list of chunks"),
    "index without newline": (b"[]", "its first line has no end"),
    "index without end": (b"[%b" % (b" " * (1 << 20)), "longer than 1,048,576 bytes"),
    "index in Latin-1": (b'[{"partition\xe4":0}]\n', "no list of chunks"),
    "unknown member": (one(GOOD, more=1), "unknown field"),
    "missing member": (b'[{"partition":0}]\n', "no list of chunks"),
    "half a partition": (b'[{"partition":0.5,"events":1,"size":1,"bytes":1}]\nx', "no list of ch"),
    "sizes that cancel out": (b"[%b,%b]\nx" % (SIZED % -1, SIZED % 2), "but the body has"),
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


@each_case("kind", BODIES)
def test_broken_upload_is_named(quiet_caller, kind):
    """What readers could not read is refused at the door, with chunk, line and reason."""
    body, said = BODIES[kind]
    replies = [quiet_caller.upload(Who(), body) for _ in range(2)]
    assert [(422, "invalid-upload")] * 2 == [each.short for each in replies]
    one, again = ({**each.document, "requestId": None} for each in replies)
    assert one == again
    assert re.search(said, one["detail"], re.DOTALL)


def test_deepest_event_is_served_to_everybody(publisher, caller):
    """What was taken can be read, whatever I ask for, and also where answers are packed."""
    data = b"[" * MAX_DEPTH + b"]" * MAX_DEPTH
    chunker = Chunker()
    chunks = [*chunker.add(0, {"a": "b"}, data), *chunker.close()]
    caller.upload(Who(), chunks)
    caller.commit(Who(), chunks)
    for headers in ("_all", "a", ""):
        query = f"cursor0=_first&n=2&headers={headers}"
        answer = requests.get(f"{publisher.base}/orders?{query}", timeout=30)
        (line, _) = answer.content.splitlines()
        (batch,) = Decoder(("data",), "", permissive=False).batches(line + b"\n", 0)
        assert [data.decode()] == batch.column(0).to_pylist()


def test_broken_chunk_is_named_among_right_ones(quiet_caller):
    """Chunk and line are also members, for programs."""
    texts = [GOOD, GOOD * 3, GOOD + line(data=b"null")]
    frames = [frame(each) for each in texts]
    index = [
        {"partition": 0, "events": text.count(b"\n"), "size": len(text), "bytes": len(packed)}
        for text, packed in zip(texts, frames, strict=True)
    ]
    body = msgspec.json.encode(index) + b"\n" + b"".join(frames)
    document = quiet_caller.upload(Who(), body).document
    assert (2, 1) == (document["chunk"], document["line"])


def test_broken_upload_leaves_nothing(publisher, caller):
    """A batch with a chunk that was refused cannot be committed without it, and
    uses no number (EH-06).
    """
    caller.upload(Who(), one(line(data=b"null")))
    assert (409, "upload-missing") == caller.commit(Who(), rows(1)).short
    assert (201, "staged") == caller.upload(Who(), rows(1)).short
    (place,) = caller.commit(Who(), rows(1)).document["receipt"]["ranges"]
    assert (0, 0) == (place["first"], place["last"])


def test_changed_body_is_noticed_by_its_digest(caller):
    """A proxy that changes bytes is found out at once (RFC 9530)."""
    body = upload_body(rows(1))
    digest = base64.b64encode(hashlib.sha256(body).digest()).decode()
    replies = [caller.upload(Who(), each, Content_Digest=f"sha-256=:{digest}:")
               for each in (upload_body(rows(2)), body)]  # fmt: skip
    assert [(422, "digest-mismatch"), (201, "staged")] == [each.short for each in replies]
