"""The calls of the publish API, from text to values: what is taken, and how the rest is named."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import each_case
from tests.store_contract.writers import refusal
from zeh_spark.service.app import publish_requests
from zeh_spark.service.network import bodies
from zeh_spark.service.store.batches import Call, Declared, Overrides, TaskAttempt
from zeh_spark.service.store.problems import Problem
from zeh_spark.wire.upload_format import Content

RIGHT = "incarnation=a&n=2&run=r1"
ATTEMPT = {"task": 0, "attempt": 3, "uploads": 1, "events": 2}
COMMIT = {"events": 2, "digest": f"{7:032x}", "digestVersion": 1, "attempts": [ATTEMPT]}


def refused(call: Callable[..., object], *given: object) -> Problem:
    with pytest.raises(Problem) as info:
        call(*given)
    return info.value


def test_call_is_read_from_path_and_query() -> None:
    """All that identifies a batch, and what the operator allows."""
    query = f"{RIGHT}&acceptGap=a%403%3A7&replaceIncarnation=a%401%3Ab&keepFirst=a:0:abcdef01"
    overrides = Overrides("a@3:7", "a@1:b", "a:0:abcdef01")
    assert Call("P#K", "a", "r1", 7, 2, overrides) == publish_requests.parse_call(query, "P#K", "7")


def test_run_of_an_upload_is_in_its_name_alone() -> None:
    """What the path says is not said twice."""
    assert "r9" == publish_requests.parse_call("incarnation=a&n=2", "p", "0", run="r9").run
    with pytest.raises(Problem, match="unknown parameter 'run'"):
        publish_requests.parse_call(RIGHT, "p", "0", run="r9")


@each_case(
    ("query", "name", "said"),
    [
        ("n=2&run=r1", "parameter-missing", "incarnation is missing"),
        ("incarnation=a&run=r1", "parameter-missing", "n is missing"),
        ("incarnation=a&n=2", "parameter-missing", "run is missing"),
        ("", "parameter-missing", "incarnation is missing"),
        ("incarnation=&n=2&run=r1", "bad-parameter", "incarnation is ''"),
        ("incarnation=a+b&n=2&run=r1", "bad-parameter", "'a b'; allowed are 1 to 100"),
        (f"incarnation={'x' * 101}&n=2&run=r1", "bad-parameter", "allowed are 1 to 100"),
        ("incarnation=%C3%A4&n=2&run=r1", "bad-parameter", "'ä'"),
        ("incarnation=%FF&n=2&run=r1", "bad-parameter", "incarnation is"),
        ("incarnation=a&n=2&run=r.1", "bad-parameter", "run is 'r.1'"),
        ("incarnation=a&n=two&run=r1", "bad-parameter", "n is 'two'; allowed are whole"),
        ("incarnation=a&n=-1&run=r1", "bad-parameter", "n is '-1'"),
        ("incarnation=a&n=1025&run=r1", "bad-parameter", "to 1024"),
        ("incarnation=a&n=%C2%B2&run=r1", "bad-parameter", "n is '²'"),
        (f"incarnation=a&n={'1' * 5000}&run=r1", "bad-parameter", "n is"),
        (f"{RIGHT}&acceptgap=1:2", "unknown-parameter", "known are acceptGap"),
        (f"{RIGHT}&x", "unknown-parameter", "'x'"),
        (f"{RIGHT}&run=r1", "duplicate-parameter", "run is given twice"),
    ],
)
def test_bad_query_is_named(query: str, name: str, said: str) -> None:
    """I see which parameter, what came, and what is allowed."""
    problem = refused(publish_requests.parse_call, query, "p", "0")
    assert (name, 400) == (problem.name, problem.status)
    assert said in problem.detail


@each_case("batch", ["", "-1", "+1", "1.5", "1e3", " 1", "²", "x", f"{2**53}"])
def test_bad_batch_number_is_named(batch: str) -> None:
    """Batches are whole numbers that JSON holds exactly (DS-02)."""
    assert "bad-parameter" == refused(publish_requests.parse_call, RIGHT, "p", batch).name


@given(st.integers(0, publish_requests.MAX_NUMBER))
def test_batch_numbers_are_read_as_they_are_written(batch: int) -> None:
    assert batch == publish_requests.batch_number(f"{batch}")


@each_case("name", ["", " ", "a b", "a/b", "#", "p#", "#k", "p#k#l", "ä", "x" * 101, "a\n"])
def test_bad_producers_name_is_refused(name: str) -> None:
    """What is trouble in a URL or a log. Spark's names, addresses and named batches are fine."""
    good = ["p", "a.b_c:d@e=f-g", "x" * 100, "p#k", f"{'x' * 100}#{'y' * 100}"]
    assert good == [publish_requests.producer_name(each) for each in good]
    problem = refused(publish_requests.producer_name, name)
    assert ("bad-producer", name) == (problem.name, problem.members["producer"])


@given(
    st.from_regex(r"[A-Za-z0-9_-]{1,100}", fullmatch=True),
    st.integers(0, 2**31 - 1),
    st.integers(0, publish_requests.MAX_NUMBER),
    st.integers(0, 2**31 - 1),
)
def test_names_of_uploads_are_read_as_they_are_written(run, task, attempt, number):
    """Any run, task, attempt and number that Spark may have."""
    name = f"{run}.{task}.{attempt}.{number}"
    assert (run, task, attempt, number) == publish_requests.upload_name(name)


@each_case(
    "name",
    ["", "r1", "r1.0.0", ".0.0.0", "r.1.0.0.0", "r1.0.0.", "r1.-1.0.0", f"r1.{2**31}.0.0"],
)  # fmt: skip
def test_bad_name_of_an_upload_is_refused(name: str) -> None:
    assert 400 == refused(publish_requests.upload_name, name).status


def test_commit_names_attempts_and_content() -> None:
    declared = Declared(Content(2, 7), (TaskAttempt(0, 3, 1, 2),), 1)
    assert declared == publish_requests.parse_commit(json.dumps(COMMIT).encode())


@each_case(
    ("body", "said"),
    [
        (b"", "no commit"),
        (b"[]", "no commit"),
        (b"{", "no commit"),
        (b"\xff", "no commit"),
        (b'{"events":"\xff"}', "no commit"),
        (b"[" * 100_000, "no commit"),
        (b'{"events":1}', "missing required field `digest`"),
        ({"more": 1}, "unknown field `more`"),
        ({"events": "1"}, r"$.events"),
        ({"events": 1.5}, r"$.events"),
        ({"events": None}, r"$.events"),
        ({"events": -1}, "-1 is not between"),
        ({"events": 2**53}, "is not between"),
        ({"digest": "0" * 31}, "32 lower-case hex"),
        ({"digest": "X" * 32}, "32 lower-case hex"),
        ({"digest": "0" * 32 + "\n"}, "32 lower-case hex"),
        ({"attempts": {}}, r"$.attempts"),
        ({"attempts": [{"task": 0, "attempt": 0, "uploads": 1}]}, "`events`"),
        ({"attempts": [{**ATTEMPT, "more": 1}]}, "`more`"),
        ({"attempts": [ATTEMPT, {**ATTEMPT, "attempt": 4}]}, "a task is named twice"),
        ({"attempts": [{**ATTEMPT, "uploads": -1}]}, "-1 is not between"),
        ({"attempts": [{**ATTEMPT, "task": 2**70}]}, "is not between"),
    ],
)
def test_bad_commit_is_named(body: object, said: str) -> None:
    raw = body if isinstance(body, bytes) else json.dumps({**COMMIT, **body}).encode()
    problem = refused(publish_requests.parse_commit, raw)
    assert ("bad-commit", 400) == (problem.name, problem.status)
    assert said in problem.detail


def test_too_many_attempts_are_refused() -> None:
    """A commit is bounded, whatever fits into its body."""
    attempts = [{**ATTEMPT, "task": task} for task in range(publish_requests.MAX_ATTEMPTS + 1)]
    body = json.dumps({**COMMIT, "attempts": attempts}).encode()
    problem = refused(publish_requests.parse_commit, body)
    assert "at most 100,000" in problem.detail


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_commit_body_is_read_or_named(body: bytes) -> None:
    """No bytes make the publisher fail."""
    assert 400 == refused(publish_requests.parse_commit, body).status


@given(st.text(max_size=60))
def test_any_query_is_read_or_named(query: str) -> None:
    """No query makes the publisher fail."""
    assert 400 == refused(publish_requests.parse_call, query, "p", "0").status


@each_case(
    ("length", "status"), [(None, 411), ("", 411), ("x", 411), ("-1", 411), ("²", 411), ("11", 413)]
)
def test_length_of_a_body_is_asked_for(length: str | None, status: int) -> None:
    """A body of unknown length, or more than the limit, is not read."""
    assert status == refused(bodies.check_length, length, 10).status
    assert [0, 7, 10, 10] == [bodies.check_length(each, 10) for each in ("0", "7", "010", "10")]


@each_case(
    ("header", "right"),
    [
        (None, True),
        ("", True),
        ("sha-512=:{wrong}:", True),
        ("sha-256=:{right}:", True),
        ("sha-512=:{wrong}:, sha-256=:{right}:", True),
        ("sha-256=:{wrong}:", False),
        ("sha-512=:{right}:,sha-256=:{wrong}:", False),
        ("sha-256=:!:", True),
        ("sha-256=:AAA:", False),
        ("sha-256=:====:", False),
    ],
)
def test_digest_of_a_body_is_compared(header: str | None, right: bool) -> None:
    """What a proxy changed is noticed; other algorithms are ignored."""
    good, bad = (base64.b64encode(hashlib.sha256(each).digest()).decode() for each in (b"x", b"y"))
    header = header and header.format(right=good, wrong=bad)
    if right:
        publish_requests.check_digest(header, b"x")
    else:
        problem = refused(publish_requests.check_digest, header, b"x")
        assert ("digest-mismatch", 422) == refusal(problem)
