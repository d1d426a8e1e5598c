"""The read API as clients see it: real requests to a real server."""

from __future__ import annotations

import gzip
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest
import requests

from tests.fix_publisher import Answer, Publisher
from tests.store_contract import writers
from zeh_spark.protocol.upload_format import Chunker
from zeh_spark.publisher import open_store
from zeh_spark.testing import running_publisher

FIRST = "n=2&cursor0=_first"
BOTH = "n=2&cursor0=_first&cursor1=_first"


def test_events_come_with_a_checkpoint_after_each_chunk(publisher: Publisher) -> None:
    """I read a feed from its beginning."""
    publisher.publish({"id": 1}, {"id": 2})
    lines = publisher.get(BOTH).lines
    kinds = [(line["partition"], line.get("data")) for line in lines]
    assert [(0, {"id": 1}), (0, None), (1, {"id": 2}), (1, None)] == kinds


def test_answer_is_ndjson_in_utf8(publisher: Publisher) -> None:
    """Any client knows what it gets."""
    answer = publisher.get(FIRST)
    assert (200, "application/x-ndjson; charset=utf-8") == (
        answer.status,
        answer.headers["Content-Type"],
    )


def test_checkpoint_is_where_the_next_page_begins(publisher: Publisher) -> None:
    """I continue where I stopped."""
    publisher.publish(1, partition=0)
    cursor = publisher.get(FIRST).cursors[0]
    publisher.publish(2, partition=0)
    assert [2] == publisher.get(f"n=2&cursor0={cursor}").data


@pytest.mark.parametrize(
    ("n", "expected"), [(1, [[0, 1, 2, 3]]), (2, [[0, 2], [1, 3]]), (4, [[0, 2], [1, 3], [], []])]
)
def test_reader_chooses_its_number_of_partitions(
    publisher: Publisher, n: int, expected: list[list[int]]
) -> None:
    """I work with as many partitions as I like; each event is in one of them, under my number
    (ZE-05).
    """
    publisher.publish(0, 1, 2, 3)
    answers = [publisher.get(f"n={n}&cursor{v}=_first") for v in range(n)]
    partitions = [{line["partition"] for line in answer.lines} for answer in answers]
    assert (expected, [{v} for v in range(n)]) == ([sorted(a.data) for a in answers], partitions)


@pytest.mark.parametrize(
    ("hint", "expected"), [("0", []), ("1", [1]), ("2", [1, 2]), ("9", [1, 2])]
)
def test_page_is_as_long_as_asked_for(publisher: Publisher, hint: str, expected: list[int]) -> None:
    """I decide how much I take at a time; 0 is only checkpoints."""
    publisher.publish(1, partition=0)
    publisher.publish(2, partition=0)
    answer = publisher.get(f"{FIRST}&pagesizehint={hint}")
    assert (expected, [0]) == (answer.data, list(answer.cursors))


@pytest.mark.parametrize("cursor", ["_first", "_last"])
def test_empty_feed_answers_with_a_real_cursor(publisher: Publisher, cursor: str) -> None:
    """I can begin before the first event, and miss none."""
    cursors = publisher.get(f"n=2&cursor0={cursor}&cursor1={cursor}").cursors
    publisher.publish(1, 2)
    later = publisher.get("n=2&" + "&".join(f"cursor{v}={c}" for v, c in cursors.items()))
    assert [1, 2] == later.data


def test_last_skips_what_is_there(publisher: Publisher) -> None:
    """I begin with what comes next."""
    publisher.publish(1, partition=0)
    cursor = publisher.get("n=2&cursor0=_last").cursors[0]
    publisher.publish(2, partition=0)
    assert [2] == publisher.get(f"n=2&cursor0={cursor}").data


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("", None),
        ("&headers=", None),
        ("&headers=other", None),
        ("&headers=ce_id,", {"ce_id": "1"}),
        ("&headers=ce_id,other", {"ce_id": "1"}),
        ("&headers=a,ce_id", {"a": "ä", "ce_id": "1"}),
    ],
)
def test_headers_are_those_asked_for(
    publisher: Publisher, asked: str, expected: dict[str, str] | None
) -> None:
    """Middleware gets its headers, others do not pay for them (ZE-08)."""
    publish_with_headers(publisher, {"ce_id": "1", "a": "ä", "zeh-time": "forged"})
    event, _ = publisher.get(FIRST + asked).lines
    assert (expected, {"x": 1}) == (event.get("headers"), event["data"])


@pytest.mark.parametrize("headers", [{}, {"ce_id": "1"}])
def test_all_headers_include_the_stamps(publisher: Publisher, headers: dict[str, str]) -> None:
    """I can tell where and when an event was stored; nobody can forge it."""
    publish_with_headers(publisher, {**headers, "zeh-time": "forged"})
    before = time.time() * 1000 - 60_000
    found = publisher.get("n=1&cursor0=_first&headers=_all").lines[0]["headers"]
    assert float(found.pop("zeh-time")) > before
    stamps = {"producer": "test", "batch": "0", "partition": "0", "sequence": "0"}
    assert {**headers, **{f"zeh-{name}": value for name, value in stamps.items()}} == found


def test_stamp_can_be_asked_for_by_name(publisher: Publisher) -> None:
    """The stored partition is known whatever n I use."""
    publisher.publish(1, partition=1)
    event, _ = publisher.get("n=1&cursor0=_first&headers=zeh-partition").lines
    assert (0, {"zeh-partition": "1"}) == (event["partition"], event["headers"])


@pytest.mark.parametrize("headers", ["", "_all", "zeh-time"])
def test_data_is_served_as_it_was_written(publisher: Publisher, headers: str) -> None:
    """Not a byte of my data changes, even if it looks like the envelope."""
    data = (
        b'{"n": 1.50, "t": "\\n{\\"partition\\":0,\\"headers\\":{}", "headers":{}, "partition":0}'
    )
    publish_line(publisher, {}, data)
    body = requests.get(f"{publisher.url}?n=1&cursor0=_first&headers={headers}", timeout=30).content
    assert data == body.split(b'"data":', 1)[1].split(b"\n")[0][:-1]


def test_same_request_brings_the_same_bytes(publisher: Publisher) -> None:
    """Checkpoints are stable, so a batch can be read again exactly."""
    publisher.publish(*range(3000))
    url = f"{publisher.url}?{BOTH}&pagesizehint=100000&headers=_all"
    assert requests.get(url, timeout=30).content == requests.get(url, timeout=30).content


def test_cursorset_remembers_and_resume_continues(publisher: Publisher) -> None:
    """A forwarder without a database leaves its cursors with the publisher."""
    publisher.publish(1, 2)
    seen = publisher.get(BOTH).cursors
    publisher.publish(3, 4)
    cursors = "&".join(f"cursor{v}={cursor}" for v, cursor in seen.items())
    publisher.get(f"n=2&{cursors}&cursorset=mailer&store_cursor=1&pagesizehint=0")
    resumed = publisher.get("n=2&resume=0,1&cursorset=mailer")
    assert [3, 4] == resumed.data


def test_resumed_last_is_where_it_was_then(publisher: Publisher) -> None:
    """`_last` under a name is kept as the position it meant, or events would be skipped."""
    publisher.get("n=2&cursor0=_last&cursorset=mailer")
    publisher.publish(1, partition=0)
    assert [1] == publisher.get("n=2&resume=0&cursorset=mailer").data


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
]


@pytest.mark.parametrize(("query", "name", "members"), PROBLEMS)
def test_bad_parameter_gets_a_problem_document(
    quiet_publisher: Publisher, query: str, name: str, members: dict[str, object]
) -> None:
    """I am told what came, what is allowed, and a program can read it."""
    answer = quiet_publisher.get(query)
    problem = answer.problem
    assert (400, "application/problem+json") == (answer.status, answer.headers["Content-Type"])
    assert {
        "type": f"urn:zeroeventhub:problem:{name}",
        "status": 400,
        **members,
    }.items() <= problem.items()
    assert {"title", "detail"} <= problem.keys()


def test_other_parameters_are_ignored(publisher: Publisher) -> None:
    """Extensions of other publishers do no harm here."""
    assert 200 == publisher.get(f"{FIRST}&stream=1&stream=2&cursorx=1").status


def test_cursor_of_another_feed_is_a_conflict(publisher: Publisher) -> None:
    """After a restore, or with a wrong URL, I do not skip events in silence."""
    publisher.store.create("other", 2)
    publisher.publish(1, partition=0)
    cursor = publisher.get(FIRST).cursors[0]
    answer = publisher.get(f"n=2&cursor0={cursor}", path="/other")
    expected = (409, "urn:zeroeventhub:problem:cursor-of-another-history", cursor)
    assert expected == (answer.status, answer.problem["type"], answer.problem["cursor"])


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
    monkeypatch.setattr("zeh_spark.sqlite_store.store.BUSY_MS", 50)
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


def publish_with_headers(publisher: Publisher, headers: dict[str, str]) -> None:
    publish_line(publisher, headers, b'{"x":1}')


def publish_line(publisher: Publisher, headers: dict[str, str], data: bytes) -> None:
    chunker = Chunker()
    chunks = [*chunker.add(0, headers, data), *chunker.close()]
    writers.publish(publisher.store, *chunks, feed="orders")
