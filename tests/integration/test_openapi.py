"""A client of the API's description alone: each answer that is not described is an error."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections import defaultdict
from typing import Any
from urllib.parse import quote

import jsonschema
import pytest
import requests
import xxhash
import zstandard

from tests.fix_publisher import Publisher
from zeh_spark.service.app.openapi import document

DOCUMENT = document()
BATCH = "/{feed}/producers/{producer}/batches/{batch}"
UPLOAD = BATCH + "/uploads/{upload}"
COMMIT = BATCH + "/commit"

Line = tuple[int, dict[str, str], Any]
"""An event: its partition, headers, data."""


class Stranger:
    """Publishes to the feed `orders` as one producer."""

    def __init__(self, publisher: Publisher, run: str = "run-1", incarnation: str = "c1") -> None:
        self.base = publisher.base
        self.run = run
        self.incarnation = incarnation
        self.n = 2

    def call(
        self,
        method: str,
        path: str,
        query: dict[str, object] | None = None,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
        **names: object,
    ) -> tuple[int, Any]:
        """Status and document of an answer that is as described."""
        names = {"feed": "orders", "producer": "shop", **names}
        address = re.sub(r"{(\w+)}", lambda name: quote(str(names[name[1]]), safe=""), path)
        answer = requests.request(
            method, self.base + address, params=query, data=body, headers=headers, timeout=30
        )
        check(path, method, answer)
        return answer.status_code, answer.json()

    def identity(self) -> dict[str, object]:
        return {"incarnation": self.incarnation, "n": self.n}

    def upload(self, batch: int, body: bytes, name: str = "0.0.0") -> tuple[int, Any]:
        digest = base64.b64encode(hashlib.sha256(body).digest()).decode()
        headers = {"Content-Digest": f"sha-256=:{digest}:"}
        upload = f"{self.run}.{name}"
        return self.call("PUT", UPLOAD, self.identity(), body, headers, batch=batch, upload=upload)

    def commit(self, batch: int, lines: list[Line], uploads: int = 1) -> tuple[int, Any]:
        attempt = {"task": 0, "attempt": 0, "uploads": uploads, "events": len(lines)}
        body = {
            "events": len(lines),
            "digest": digest_of(lines),
            "digestVersion": 1,
            "attempts": [attempt],
        }
        query = {**self.identity(), "run": self.run}
        headers = {"Content-Type": "application/json"}
        return self.call("POST", COMMIT, query, json.dumps(body).encode(), headers, batch=batch)

    def publish(self, batch: int, lines: list[Line]) -> tuple[int, Any]:
        """All in one upload, of one chunk a partition."""
        status, answer = self.upload(batch, upload_of(lines))
        if status >= 400:
            return status, answer
        return self.commit(batch, lines)


def test_batches_published_by_the_description_are_read_by_it(publisher: Publisher) -> None:
    """I write a client in any language, without looking into the code."""
    stranger = Stranger(publisher)
    first = [(0, {"b": "2", "a": "ü"}, {"id": 1}), (1, {}, "ä"), (0, {}, [2.50])]
    second = [(1, {}, 0)]
    answers = [stranger.publish(0, first), stranger.publish(1, second)]
    assert [(200, "committed")] * 2 == [(status, each["status"]) for status, each in answers]
    events = read(publisher, "n=2&cursor0=_first&cursor1=_first&headers=a,zeh-batch,zeh-sequence")
    assert events == [
        (0, {"a": "ü", "zeh-batch": "0", "zeh-sequence": "0"}, {"id": 1}),
        (0, {"zeh-batch": "0", "zeh-sequence": "1"}, [2.5]),
        (1, {"zeh-batch": "0", "zeh-sequence": "0"}, "ä"),
        (1, {"zeh-batch": "1", "zeh-sequence": "1"}, 0),
    ]
    ranges = answers[1][1]["receipt"]["ranges"]
    assert [(1, 1, 1)] == [(each["partition"], each["first"], each["last"]) for each in ranges]


def test_first_question_tells_whether_it_is_committed_and_the_partitions(
    publisher: Publisher,
) -> None:
    """I begin without knowing anything of the feed (PU-03)."""
    stranger = Stranger(publisher)
    before = stranger.call("GET", BATCH, {"incarnation": "c1"}, batch=0)
    stranger.publish(0, [])
    after = stranger.call("GET", BATCH, {"incarnation": "c1"}, batch=0)
    assert (404, 2) == (before[0], before[1]["partitionCount"])
    assert (200, 0) == (after[0], after[1]["events"])


def test_batch_that_is_repeated_adds_nothing(publisher: Publisher) -> None:
    """I send all of it again, in another order, and get the first receipt (EH-04, PU-09)."""
    lines: list[Line] = [(0, {}, 1), (1, {}, 2)]
    _, first = Stranger(publisher).publish(0, lines)
    again = Stranger(publisher)
    upload = again.upload(0, upload_of(lines[::-1]))
    commit = again.commit(0, lines[::-1], uploads=0)
    expected = (200, {"status": "already-committed", "receipt": first["receipt"]})
    assert [expected, expected] == [upload, commit]
    assert 2 == len(read(publisher, "n=1&cursor0=_first"))


def test_receipts_prove_each_other(publisher: Publisher) -> None:
    """Nobody can change what was published without my seeing it."""
    stranger = Stranger(publisher)
    for batch in range(5):
        stranger.publish(batch, [(batch % 2, {}, batch)] * batch)
    pages = "/{feed}/producers/{producer}/batches"
    _, newest = stranger.call("GET", pages, {"limit": 2})
    below = newest["receipts"][-1]["number"]
    _, older = stranger.call("GET", pages, {"below": below})
    _, producer = stranger.call("GET", "/{feed}/producers/{producer}")
    expected = producer["chain"]
    for receipt in newest["receipts"] + older["receipts"]:
        text = json.dumps({**receipt, "hash": ""}, sort_keys=True, separators=(",", ":"))
        assert expected == receipt["hash"] == hashlib.sha256(text.encode()).hexdigest()
        expected = receipt["previous"]
    assert ("", 5) == (expected, producer["receipts"])


LINE = b'{"partition":0,"headers":{},"data":1}\n'
LONGEST = int(
    re.search(r"at most ([\d,]+) bytes without its LF", DOCUMENT["tags"][1]["description"])[
        1
    ].replace(",", "")
)
LINES = {  # what is broken in other ways: test_broken_upload_is_named
    "plain": (LINE, "staged"),
    "blanks in the data": (
        LINE.replace(b":1}", b':{ "a" :\t"\xe2\x80\xa8", "a": 1e400 }}'),
        "staged",
    ),
    "escapes": (LINE.replace(b"{}", '{"b":"\\u00e4","a":"ä\\n"}'.encode()), "staged"),
    "longest": (LINE.replace(b"1}", b"1" * (LONGEST - len(LINE) + 2) + b"}"), "staged"),
    "longer": (LINE.replace(b"1}", b"1" * (LONGEST - len(LINE) + 3) + b"}"), "invalid-upload"),
    "blanks before": (LINE.replace(b":1", b": 1"), "invalid-upload"),
    "another order": (b'{"partition":0,"data":1,"headers":{}}\n', "invalid-upload"),
    "no headers": (b'{"partition":0,"data":1}\n', "invalid-upload"),
}


def test_an_upload_is_taken_or_refused_as_described(publisher: Publisher) -> None:
    """The description says what it may be, to the byte, and nothing that it allows is refused."""
    stranger = Stranger(publisher)
    for task, (kind, (line, said)) in enumerate(LINES.items()):
        answer = stranger.upload(0, body_of({0: line}), f"{task}.0.0")
        assert (kind, said) == (kind, outcome(answer)[1])


@pytest.mark.parametrize(
    ("path", "method"),
    [
        (path, method)
        for path, item in DOCUMENT["paths"].items()
        for method, operation in item.items()
        if method != "parameters" and "Publishing" in operation["tags"]
    ],
)
def test_every_parameter_of_a_call_is_described(
    quiet_publisher: Publisher, path: str, method: str
) -> None:
    """An unknown one is refused, naming those that there are: the described ones."""
    upload = "r.0.0.0"
    status, problem = Stranger(quiet_publisher).call(
        method.upper(), path, {"unknown": "1"}, batch=0, upload=upload
    )
    assert (400, "unknown-parameter") == outcome((status, problem))
    operation = DOCUMENT["paths"][path][method]
    parameters = [resolved(each) for each in operation["parameters"]]
    described = sorted(each["name"] for each in parameters if each["in"] == "query")
    assert problem["detail"].endswith(f"known are {', '.join(described)}")


def check(path: str, method: str, answer: requests.Response) -> None:
    """Raises for an answer that the description does not have."""
    responses = DOCUMENT["paths"][path][method.lower()]["responses"]
    described = responses[str(answer.status_code)]
    kind = answer.headers["Content-Type"].partition(";")[0]
    jsonschema.validate(answer.json(), whole(described["content"][kind]["schema"]))


def whole(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema with what it refers to."""
    return {**schema, "components": DOCUMENT["components"]}


def resolved(parameter: dict[str, Any]) -> dict[str, Any]:
    name = parameter.get("$ref", "").rpartition("/")[2]
    found: dict[str, Any] = DOCUMENT["components"]["parameters"].get(name, parameter)
    return found


def outcome(answer: tuple[int, Any]) -> tuple[int, str]:
    """Status, and what it says."""
    status, document = answer
    said = document["status"] if status < 400 else document["type"]
    return status, said.removeprefix("urn:zeroeventhub:problem:")


def read(publisher: Publisher, query: str) -> list[Line]:
    """All events, as (partition, headers, data), by partition."""
    lines = publisher.get(query).lines
    for line in lines:
        jsonschema.validate(line, whole({"$ref": "#/components/schemas/Line"}))
    events = [
        (line["partition"], line.get("headers", {}), line["data"])
        for line in lines
        if "cursor" not in line
    ]
    return sorted(events, key=lambda each: each[0])


def rest_of(line: Line) -> bytes:
    _, headers, data = line
    rendered = [
        json.dumps(each, separators=(",", ":"), ensure_ascii=False)
        for each in (dict(sorted(headers.items())), data)
    ]
    return '"headers":{},"data":{}}}'.format(*rendered).encode()


def digest_of(lines: list[Line]) -> str:
    total = sum(xxhash.xxh3_128_intdigest(rest_of(line)) for line in lines)
    return f"{total % 2**128:032x}"


def upload_of(lines: list[Line]) -> bytes:
    chunks: dict[int, bytes] = defaultdict(bytes)
    for line in lines:
        chunks[line[0]] += b'{"partition":%d,' % line[0] + rest_of(line) + b"\n"
    return body_of(chunks)


def body_of(chunks: dict[int, bytes]) -> bytes:
    """Lines by partition as an upload."""
    frames = {each: zstandard.ZstdCompressor().compress(lines) for each, lines in chunks.items()}
    index = [
        {
            "partition": partition,
            "events": chunks[partition].count(b"\n"),
            "size": len(chunks[partition]),
            "bytes": len(frame),
        }
        for partition, frame in frames.items()
    ]
    return json.dumps(index).encode() + b"\n" + b"".join(frames.values())
