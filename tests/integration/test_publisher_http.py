"""The read API as clients see it: real requests to a real server."""

from __future__ import annotations

import gzip
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.fix_publisher import Answer, Publisher
from tests.integration.test_openapi import check
from tests.store_contract import writers
from zeh_spark.publisher import Block, Feed, create_app, open_store
from zeh_spark.testing import publish, running_publisher
from zeh_spark.wire.upload_format import Chunker

FIRST = "n=2&cursor0=_first"
BOTH = "n=2&cursor0=_first&cursor1=_first"


def test_events_come_with_a_checkpoint_after_each_chunk(publisher: Publisher) -> None:
    """I read a feed from its beginning, as NDJSON in UTF-8."""
    publisher.publish({"id": 1}, {"id": 2})
    answer = publisher.get(BOTH)
    expected = (200, "application/x-ndjson; charset=utf-8")
    assert expected == (answer.status, answer.headers["Content-Type"])
    kinds = [(line["partition"], line.get("data")) for line in answer.lines]
    assert [(0, {"id": 1}), (0, None), (1, {"id": 2}), (1, None)] == kinds


class Bare(Feed):
    """A feed that does not say how many partitions it has."""

    def page(self, *_: Any, **__: Any) -> Iterator[Block]:
        return iter(())

    def version(self) -> object:
        return 0


@pytest.mark.parametrize(
    ("feeds", "why"),
    [
        ({"mine": object()}, "'mine' has the type object, which does not derive from .*Feed"),
        ({"mine": Bare()}, "feed 'mine' has None partitions"),
        (Bare(), "feed '' has None partitions"),
        ("sqlite:///feeds.db", "neither a store nor a Feed: open_store opens a store"),
    ],
)
def test_what_is_no_feed_is_refused_before_it_is_served(feeds: Any, why: str) -> None:
    """I hear it when I make the app, not from readers."""
    with pytest.raises(TypeError, match=why):
        create_app(feeds)


def test_a_partition_that_a_feed_has_not_is_named(publisher: Publisher) -> None:
    """A test of my own with a wrong number says so before it publishes."""
    with pytest.raises(ValueError, match="partition is 9, and 'orders' has 0 to 1"):
        publish(publisher.store, "orders", [{"id": 1}], partition=9)


@pytest.mark.parametrize("cursor", ["_first", "_last"])
@pytest.mark.parametrize("before", [[], [1]], ids=["empty", "not empty"])
def test_checkpoint_is_where_the_next_page_begins(
    publisher: Publisher, cursor: str, before: list[int]
) -> None:
    """I continue where I stopped, begin with what comes next, and miss nothing."""
    for event in before:
        publisher.publish(event, partition=0)
    checkpoint = publisher.get(f"n=2&cursor0={cursor}").cursors[0]
    publisher.publish(2, partition=0)
    assert [2] == publisher.get(f"n=2&cursor0={checkpoint}").data


def test_reader_chooses_its_number_of_partitions(publisher: Publisher) -> None:
    """Each event is in one of as many partitions as I like, under my number (ZE-05)."""
    publisher.publish(0, 1, 2, 3)
    for expected in [[0, 1, 2, 3]], [[0, 2], [1, 3]], [[0, 2], [1, 3], [], []]:
        n = len(expected)
        answers = [publisher.get(f"n={n}&cursor{v}=_first") for v in range(n)]
        assert expected == [sorted(each.data) for each in answers]
        assert [{v} for v in range(n)] == [{x["partition"] for x in each.lines} for each in answers]


def test_headers_are_those_asked_for(publisher: Publisher) -> None:
    """Middleware gets its headers, others do not pay for them (ZE-08)."""
    publish_with_headers(publisher, {"ce_id": "1", "a": "ä", "zeh-time": "forged"})
    expected = {
        "": None,
        "&headers=": None,
        "&headers=other": None,
        "&headers=ce_id,": {"ce_id": "1"},
        "&headers=ce_id,other": {"ce_id": "1"},
        "&headers=a,ce_id": {"a": "ä", "ce_id": "1"},
    }
    events = {asked: publisher.get(FIRST + asked).lines[0] for asked in expected}
    assert expected == {asked: event.get("headers") for asked, event in events.items()}
    assert [{"x": 1}] * 6 == [event["data"] for event in events.values()]


@pytest.mark.parametrize("headers", [{}, {"ce_id": "1"}])
def test_all_headers_include_the_stamps(publisher: Publisher, headers: dict[str, str]) -> None:
    """I can tell where and when an event was stored, whatever n I use; nobody can forge it."""
    publish_with_headers(publisher, {**headers, "zeh-time": "forged"}, partition=1)
    before = time.time() * 1000 - 60_000
    found, named = (
        publisher.get(f"n=1&cursor0=_first&headers={each}").lines[0]
        for each in ("_all", "zeh-partition")
    )
    assert float(found["headers"].pop("zeh-time")) > before
    stamps = {"producer": "test", "batch": "0", "partition": "1", "sequence": "0"}
    expected = {**headers, **{f"zeh-{name}": value for name, value in stamps.items()}}
    assert (0, expected) == (found["partition"], found["headers"])
    assert (0, {"zeh-partition": "1"}) == (named["partition"], named["headers"])


@pytest.mark.parametrize("headers", ["", "_all", "zeh-time"])
def test_data_is_served_as_it_was_written(publisher: Publisher, headers: str) -> None:
    """Not a byte of my data changes, even if it looks like the envelope."""
    data = (
        b'{"n": 1.50, "t": "\\n{\\"partition\\":0,\\"headers\\":{}", "headers":{}, "partition":0}'
    )
    publish_with_headers(publisher, {}, data)
    body = requests.get(f"{publisher.url}?n=1&cursor0=_first&headers={headers}", timeout=30).content
    assert data == body.split(b'"data":', 1)[1].split(b"\n")[0][:-1]


def test_cursorset_remembers_and_resume_continues(publisher: Publisher) -> None:
    """A forwarder without a database leaves its cursors with the publisher."""
    publisher.publish(1, 2)
    seen = publisher.get(BOTH).cursors
    publisher.publish(3, 4)
    cursors = "&".join(f"cursor{v}={cursor}" for v, cursor in seen.items())
    publisher.get(f"n=2&{cursors}&cursorset=mailer&store_cursor=1&pagesizehint=0")
    resumed = publisher.get("n=2&resume=0,1&cursorset=mailer")
    assert [3, 4] == resumed.data
    # `_last` is kept as the position that it meant, or events would be skipped
    publisher.get("n=2&cursor0=_last&cursorset=other")
    publisher.publish(5, partition=0)
    assert [5] == publisher.get("n=2&resume=0&cursorset=other").data


def test_second_consumer_of_a_cursorset_is_refused(publisher: Publisher) -> None:
    """Two readers with one name are told apart: nobody resumes where the other one was."""
    publisher.publish(1, 2)

    def get(query: str, consumer: str | None, method: str = "GET") -> Answer:
        headers = {"ZEH-Consumer": consumer} if consumer else {}
        return publisher.get(f"{query}&cursorset=mailer", method=method, headers=headers)

    keep, resume = f"{BOTH}&pagesizehint=0", "n=2&resume=0,1"
    assert [200, 200] == [get(keep, "a").status, get(resume, "a").status]
    refused = [get(query, each) for query in (keep, resume) for each in ("b", None)]
    assert [(409, "urn:zeroeventhub:problem:cursorset-taken")] * 4 == [
        (each.status, each.problem["type"]) for each in refused
    ]
    assert {"cursorset": "mailer", "consumer": "a", "given": "b"}.items() <= (
        refused[0].problem.items()
    )
    assert [200, 409] == [get(keep, each, "HEAD").status for each in ("a", "b")]
    assert [1, 2] == sorted(get(resume, "a").data)


@pytest.mark.parametrize("identity", ["", "x" * 101, "a b", "a, b", "\xe4"])
def test_bad_identity_of_a_consumer_is_refused(quiet_publisher: Publisher, identity: str) -> None:
    """A mistake in it does not make another reader of me."""
    answer = quiet_publisher.get(FIRST, headers={"ZEH-Consumer": identity.encode("latin-1")})
    assert (400, "urn:zeroeventhub:problem:bad-consumer") == (
        answer.status,
        answer.problem["type"],
    )
    assert "ZEH-Consumer" in answer.problem["detail"]


def test_gzip_only_when_asked_for(publisher: Publisher) -> None:
    """Slow networks get less."""
    publisher.publish(*range(2000))
    url = f"{publisher.url}?{BOTH}"
    plain, packed = (
        requests.get(url, timeout=30, stream=True, headers={"Accept-Encoding": each}).raw.read()
        for each in ("gzip;q=0.0, br", "br, gzip")
    )
    assert plain == gzip.decompress(packed)


def test_head_has_the_headers_only(publisher: Publisher) -> None:
    """A HEAD tells whether the feed is there, and keeps nothing."""
    answer = publisher.get(f"{FIRST}&cursorset=x&wait=20", method="HEAD")
    assert (200, [], {}) == (
        answer.status,
        answer.lines,
        publisher.store.load_cursors("orders", "x", 2),
    )


PROBLEMS = [
    ("", "partition-count-missing", {"partitionCount": 2}),
    ("n=two&cursor0=_first", "bad-partition-count", {"partitionCount": 2}),
    ("n=0&cursor0=_first", "bad-partition-count", {"partitionCount": 2}),
    ("n=65537&cursor0=_first", "bad-partition-count", {"maximum": 65536}),
    ("n=%2B2&cursor0=_first", "bad-partition-count", {}),
    ("n=2", "cursors-missing", {}),
    ("n=2&cursor2=_first", "partition-out-of-range", {"partition": 2, "n": 2}),
    ("n=2&cursor0=_first&cursor7=_first", "partition-out-of-range", {"partition": 7}),
    ("n=2&cursor0=", "malformed-cursor", {"partition": 0}),
    ("n=2&cursor0=%C3%A4", "malformed-cursor", {"cursor": "ä"}),
    ("n=2&cursor0=17", "malformed-cursor", {"cursor": "17"}),
    ("n=2&cursor0=_first&cursor0=_last", "duplicate-parameter", {"parameter": "cursor0"}),
    ("n=2&n=2&cursor0=_first", "duplicate-parameter", {"parameter": "n"}),
    (f"{FIRST}&pagesizehint=", "bad-page-size-hint", {}),
    (f"{FIRST}&pagesizehint=-1", "bad-page-size-hint", {}),
    (f"{FIRST}&wait=soon", "bad-wait", {}),
    (f"{FIRST}&cursorset=", "bad-cursorset", {}),
    (f"{FIRST}&cursorset={'x' * 51}", "bad-cursorset", {}),
    (
        "n=2000&cursorset=x&" + "&".join(f"cursor{each}=_first" for each in range(1025)),
        "too-many-cursors",
        {"maximum": 1024},
    ),
    (f"{FIRST}&store_cursor=1", "cursorset-missing", {}),
    (f"{FIRST}&cursorset=x&store_cursor=yes", "bad-store-cursor", {}),
    ("n=2&resume=0", "cursorset-missing", {}),
    ("n=2&resume=0&cursorset=nobody", "unknown-cursorset", {"cursorset": "nobody"}),
    ("n=2&resume=0,0&cursorset=x", "bad-resume", {}),
    ("n=2&resume=2&cursorset=x", "bad-resume", {"n": 2}),
    ("n=2&resume=&cursorset=x", "bad-resume", {}),
    (f"{FIRST}&resume=0&cursorset=x", "resume-with-cursors", {}),
    (f"{FIRST}&headers={','.join(map(str, range(257)))}", "bad-headers", {}),
    (f"{FIRST}&headers={'h' * 257}", "bad-headers", {}),
    (f"{FIRST}&wait=1e3", "bad-wait", {}),
    (f"{FIRST}&cursorset=taken", "cursorset-taken", {"status": 409}),
    (
        "n=2&cursor0=1.00000000",  # after a restore, or with a wrong URL, no events are skipped
        "cursor-of-another-history",
        {"status": 409, "cursor": "1.00000000"},
    ),
]


@pytest.mark.parametrize(("query", "name", "members"), PROBLEMS)
def test_bad_parameter_gets_a_problem_document(
    quiet_publisher: Publisher, query: str, name: str, members: dict[str, object]
) -> None:
    """I am told what came, what is allowed, and a program can read it: all of it is described."""
    quiet_publisher.store.save_cursors("orders", "taken", 2, {0: "_first"}, "somebody")
    answer = requests.get(f"{quiet_publisher.url}?{query}", timeout=30)
    check("/{feed}", "GET", answer)
    problem = answer.json()
    expected = {"type": f"urn:zeroeventhub:problem:{name}", "status": 400, **members}
    assert expected.items() <= problem.items()
    assert (problem["status"], "application/problem+json") == (
        answer.status_code,
        answer.headers["Content-Type"],
    )
    assert {"title", "detail"} <= problem.keys()


def test_other_parameters_are_ignored(publisher: Publisher) -> None:
    """Extensions of other publishers do no harm here."""
    assert 200 == publisher.get(f"{FIRST}&stream=1&stream=2&cursorx=1").status


@pytest.mark.parametrize(
    ("path", "method", "status", "name"),
    [
        ("/nothing", "GET", 404, "unknown-feed"),
        ("/orders", "POST", 405, "method-not-allowed"),
    ],
)
def test_wrong_address_or_method_is_a_problem_document(
    publisher: Publisher, path: str, method: str, status: int, name: str
) -> None:
    """Typing errors are answered in the same form."""
    answer = publisher.get(FIRST, path=path, method=method)
    assert (status, f"urn:zeroeventhub:problem:{name}") == (answer.status, answer.problem["type"])


def test_locked_store_asks_to_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy database is no error of mine: I try again."""
    monkeypatch.setattr("zeh_spark.service.sqlite.store.BUSY_MS", 50)
    store = open_store(f"sqlite:///{tmp_path / 'feeds.db'}")
    store.create("orders", 1)
    with (
        running_publisher(store) as base,
        closing(sqlite3.connect(tmp_path / "feeds.db", isolation_level=None)) as other,
    ):
        other.execute("BEGIN IMMEDIATE")
        answer = requests.get(f"{base}/orders?n=1&cursor0=_first&cursorset=x", timeout=30)
    store.close()
    assert (503, "1") == (answer.status_code, answer.headers["Retry-After"])


def publish_with_headers(
    publisher: Publisher, headers: dict[str, str], data: bytes = b'{"x":1}', partition: int = 0
) -> None:
    chunker = Chunker()
    chunks = [*chunker.add(partition, headers, data), *chunker.close()]
    writers.publish(publisher.store, *chunks, feed="orders")
