"""Commits, receipts and states as any HTTP client sees them: real calls to a real publisher.

Uploads are in test_publish_uploads.py. Names in brackets: rows of research/sinks.md that a
publisher behind HTTP has to keep.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator
from contextlib import closing
from urllib.parse import urlsplit

import pytest

from tests.fix_publish import Caller, Reply, Who, commit_of, events_of, rows
from tests.fix_publisher import Publisher


@pytest.fixture(scope="module")
def quiet_caller(quiet_publisher: Publisher) -> Iterator[Caller]:
    """To a publisher for all tests that publish nothing."""
    with closing(Caller(quiet_publisher.url)) as caller:
        yield caller


def published(caller: Caller, *data: object, **who: object) -> Reply:
    reply = caller.publish(Who().but(**who), *data)
    assert (200, "committed") == reply.short, reply.document
    return reply


# What a commit answers


def test_commit_answers_with_numbers_and_cursors(publisher: Publisher, caller: Caller) -> None:
    """I learn where my events stand, and readers find them (EH-05, BQ-01, ZE-04)."""
    receipt = published(caller, 1, 2, 3).document["receipt"]
    (place,) = receipt["ranges"]
    assert (0, 3) == (receipt["batch"], receipt["events"])
    assert (0, 0, 2) == (place["partition"], place["first"], place["last"])
    assert publisher.get("n=2&cursor0=_first").cursors[0] == place["cursor"]


def test_commit_can_be_repeated(publisher: Publisher, caller: Caller) -> None:
    """The same call again gives the first answer, named as such
    (EH-04, EX-01, EX-02, KA-02, PU-09).
    """
    first = published(caller, 1, 2).document["receipt"]
    again = [caller.commit(Who(), rows(1, 2)) for _ in range(2)]
    assert [(200, "already-committed")] * 2 == [each.short for each in again]
    assert [first] * 2 == [each.document["receipt"] for each in again]
    assert [b"1", b"2"] == events_of(publisher.store)


def test_empty_batch_is_committed_too(publisher: Publisher, caller: Caller) -> None:
    """Batches without rows leave no gap (F19)."""
    receipt = caller.commit(Who()).document["receipt"]
    published(caller, 1, batch=1)
    assert (0, [], None) == (receipt["events"], receipt["ranges"], receipt["positions"])


def test_sequence_numbers_continue_from_batch_to_batch(caller: Caller) -> None:
    """Nothing is missing between my batches, nor between my checkpoints (EH-04, IC-01)."""
    published(caller, 1, 2)
    published(caller, 3, batch=1, run="r2")
    remedy = caller.commit(Who(0, incarnation="b"), rows(4)).remedy
    ranges = published(caller, 4, incarnation="b", overrides=remedy).document["receipt"]["ranges"]
    assert (3, 3) == (ranges[0]["first"], ranges[0]["last"])


def test_numbers_of_json_are_exact(publisher: Publisher, caller: Caller) -> None:
    """Batches count to 2^53 - 1, so that every JSON reader has them right (DS-02)."""
    most = 2**53 - 1
    receipt = published(caller, 1, batch=most, overrides={"acceptGap": f"a@-1:{most}"})
    event = publisher.get("n=2&cursor0=_first&headers=zeh-batch").lines[0]
    assert (most, f"{most}") == (
        receipt.document["receipt"]["batch"],
        event["headers"]["zeh-batch"],
    )


# What a commit refuses: in one order, with both sides' values


def test_reasons_come_in_one_order(publisher: Publisher, caller: Caller) -> None:
    """A call that is wrong in many ways hears first what has to be healed first (DS-01)."""
    published(caller, 1)
    published(caller, 2, batch=1, run="r2")
    caller.publish(Who(producer="gone"), 1)
    publisher.store.delete_producer("orders", "gone")
    right = Who(2, run="r2")
    calls = [
        (right.but(producer="gone", incarnation="b", run="r1", batch=9, n=3), "producer-deleted"),
        (right.but(incarnation="b", run="r1", batch=9, n=3), "incarnation-changed"),
        (right.but(run="r1", batch=9, n=3), "fenced"),
        (right.but(batch=9, n=3), "batch-gap"),
        (right.but(n=3), "layout-changed"),
        (right, "upload-missing"),
    ]
    assert [name for _, name in calls] == [caller.commit(who, rows(3)).short[1] for who, _ in calls]
    caller.upload(right, rows(3))
    assert (422, "content-mismatch") == caller.commit(right, rows(4)).short
    assert (200, "committed") == caller.commit(right, rows(3)).short


@pytest.mark.parametrize(
    ("who", "commit", "status", "name", "members"),
    [
        (Who(0, incarnation="b"), {}, 409, "incarnation-changed",
         {"current": {"incarnation": "a", "lastBatch": 1}, "incarnation": "b",
          "option": {"replaceIncarnation": "a@1:b"}}),
        (Who(1, run="r1"), {}, 403, "fenced",
         {"current": {"run": "r2", "level": 2, "lastBatch": 1}, "run": "r1"}),
        (Who(1, run="r2"), {"digestVersion": 2}, 409, "digest-version",
         {"expected": {"digestVersion": 1}, "given": {"digestVersion": 2}}),
        (Who(4, run="r2"), {}, 409, "batch-gap",
         {"current": {"incarnation": "a", "lastBatch": 1}, "batch": 4,
          "option": {"acceptGap": "a@1:4"}}),
        (Who(7, producer="new"), {}, 409, "batch-gap",
         {"current": {"incarnation": None, "lastBatch": -1}, "option": {"acceptGap": "a@-1:7"}}),
        (Who(2, run="r2", n=3), {}, 409, "layout-changed", {"partitionCount": 2}),
        (Who(2, run="r2"), {}, 409, "upload-missing",
         {"task": 0, "expected": {"uploads": 1, "events": 1},
          "found": {"uploads": 0, "events": 0}}),
    ],
)  # fmt: skip
def test_refusal_shows_both_sides(
    caller: Caller, who: Who, commit: dict[str, object], status: int, name: str,
    members: dict[str, object],
) -> None:  # fmt: skip
    """I see what the publisher has and what I sent, and what to do (EX-09, EH-10, KA-04, PU-13)."""
    published(caller, 1)
    published(caller, 2, batch=1, run="r2")
    reply = caller.commit(who, rows(3), **commit)
    asked = {"producer": who.producer, "batch": who.batch, "run": who.run}
    assert (status, name) == reply.short
    assert {**asked, **members, "status": status}.items() <= reply.document.items()
    assert "application/problem+json" == reply.headers["Content-Type"]
    assert reply.document["detail"].endswith(reply.document["remedy"])


@pytest.mark.parametrize(
    "data",
    [[4, 5, 6], [1, 2], [1, 2, 3, 4], [1, 1, 2, 2, 3]],
    ids=["other", "less", "more", "double"],
)
def test_reused_number_is_refused_with_the_difference(
    publisher: Publisher, caller: Caller, data: list[int]
) -> None:
    """Other rows under a number that is taken are never acknowledged, and old ones with
    new ones neither (EX-03, EX-04, KA-01, PU-05, F9).
    """
    stored = published(caller, 1, 2, 3).document["receipt"]
    reply = caller.commit(Who(run="r2"), rows(*data))
    given = commit_of(rows(*data))
    assert (409, "batch-conflict") == reply.short
    assert (
        {"events": 3, "digest": stored["digest"]},
        {"events": given["events"], "digest": given["digest"]},
    ) == (reply.document["published"], reply.document["given"])
    assert [b"1", b"2", b"3"] == events_of(publisher.store)


def test_content_that_is_not_the_drivers_is_shown(publisher: Publisher, caller: Caller) -> None:
    """A body that was changed on its way is published by no means."""
    caller.upload(Who(), rows(1, 2))
    reply = caller.commit(Who(), rows(1, 3))
    assert (422, "content-mismatch") == reply.short
    assert commit_of(rows(1, 3))["digest"] == reply.document["given"]["digest"]
    assert commit_of(rows(1, 2))["digest"] == reply.document["found"]["digest"]
    assert [] == events_of(publisher.store)
    caller.commit(Who(), rows(1, 2))
    assert [b"1", b"2"] == events_of(publisher.store)


@pytest.mark.parametrize("receipts", [2])
def test_batch_whose_receipt_is_gone_is_no_guess(caller: Caller) -> None:
    """A checkpoint rolled back too far is neither confirmed nor denied (KA-03, F13)."""
    for batch in range(4):
        published(caller, batch, batch=batch)
    replies = [caller.commit(Who(batch), rows(batch)).short for batch in range(4)]
    assert [(410, "batch-expired")] * 2 + [(200, "already-committed")] * 2 == replies
    assert [410, 410, 200, 200, 404] == [caller.receipt(Who(batch)).status for batch in range(5)]


@pytest.mark.parametrize("version", [2, 0, -1, 2**70])
def test_new_batch_of_another_digest_version_is_refused(caller: Caller, version: int) -> None:
    """A client of another version hears of it before its receipts say what was never checked."""
    caller.upload(Who(), rows(1))
    assert (409, "digest-version") == caller.commit(Who(), rows(1), digestVersion=version).short


# Overrides: pasted as printed, they act once


def test_gap_is_accepted_as_printed_and_once(caller: Caller) -> None:
    """I continue where a restore left a hole, and the next hole is named again (F15, F18)."""
    published(caller, 1)
    remedy = caller.commit(Who(5), rows(2)).remedy
    published(caller, 2, batch=5, overrides=remedy)
    assert {"acceptGap": "a@5:9"} == caller.commit(Who(9, overrides=remedy), rows(3)).remedy


def test_incarnation_is_replaced_as_printed_and_once(caller: Caller) -> None:
    """A new checkpoint takes over once; the old one is then the stranger (F12, EH-13)."""
    published(caller, 1)
    remedy = caller.commit(Who(incarnation="b"), rows(2)).remedy
    published(caller, 2, incarnation="b", run="r2", overrides=remedy)
    back = caller.commit(Who(1, overrides=remedy), rows(3))
    assert ((409, "incarnation-changed"), {"replaceIncarnation": "b@0:a"}) == (
        back.short,
        back.remedy,
    )
    lost_again = caller.commit(Who(0, incarnation="c", overrides=remedy), rows(1))
    assert (409, "incarnation-changed") == lost_again.short


def test_first_rows_are_kept_as_printed_and_only_those(
    publisher: Publisher, caller: Caller
) -> None:
    """Where a query is not repeatable I keep what is published, of that batch alone (F9)."""
    first = published(caller, 1).document["receipt"]
    remedy = caller.commit(Who(), rows(2)).remedy
    kept = caller.commit(Who(overrides=remedy), rows(2))
    published(caller, 3, batch=1)
    other = caller.commit(Who(1, overrides=remedy), rows(4))
    assert ((200, "already-committed"), first) == (kept.short, kept.document["receipt"])
    assert (409, "batch-conflict") == other.short
    assert [b"1", b"3"] == events_of(publisher.store)


REFUSED = {"acceptGap": Who(5), "replaceIncarnation": Who(incarnation="b"), "keepFirst": Who()}


@pytest.mark.parametrize(("option", "who"), REFUSED.items())
def test_remedy_that_is_not_quite_the_printed_one_does_nothing(
    publisher: Publisher, caller: Caller, option: str, who: Who
) -> None:
    """A remedy for another state, or with a typing error, is inert, and printed anew."""
    published(caller, 1)
    right = caller.commit(who, rows(2)).remedy[option]
    wrong = [right + "0", " " + right, right[1:], right.upper() + ":", "", "accept", "*"]
    replies = [caller.commit(who.but(overrides={option: each}), rows(2)) for each in wrong]
    assert [{option: right}] * len(wrong) == [each.remedy for each in replies]
    assert [b"1"] == events_of(publisher.store)


# Calls that are no calls


@pytest.mark.parametrize(
    ("who", "extra", "body", "name"),
    [
        (Who(incarnation=None), "", {}, "parameter-missing"),
        (Who(n="two"), "", {}, "bad-parameter"),
        (Who(2**53), "", {}, "bad-parameter"),
        (Who(producer="a b"), "", {}, "bad-producer"),
        (Who(), "&acceptgap=1:2", {}, "unknown-parameter"),
        (Who(), "&incarnation=a", {}, "duplicate-parameter"),
        (Who(), "", {"digest": "X" * 32}, "bad-commit"),
        (Who(), "", {"attempts": commit_of([])["attempts"] * 2}, "bad-commit"),
    ],
)
def test_bad_call_is_named(
    quiet_caller: Caller, who: Who, extra: str, body: dict[str, object], name: str
) -> None:
    """A typing error, in a remedy's name too, is answered by name and changes nothing (EH-03)."""
    query = who.query(run=who.run) + extra
    raw = json.dumps({**commit_of([]), **body})
    assert (400, name) == quiet_caller.call("POST", f"{who.path}/commit", query, raw).short
    assert [] == quiet_caller.call("GET", "/producers").document["producers"]


@pytest.mark.parametrize(
    ("headers", "short"),
    [
        ({"Transfer-Encoding": "chunked"}, (411, "length-required")),
        ({"Content-Length": f"{(16 << 20) + 1}"}, (413, "body-too-large")),
    ],
)
def test_commit_body_has_a_length_and_a_limit(
    quiet_publisher: Publisher, headers: dict[str, str], short: tuple[int, str]
) -> None:
    """What is too much is refused before it is sent."""
    connection = http.client.HTTPConnection(urlsplit(quiet_publisher.base).netloc, timeout=30)
    path = f"/orders{Who().path}/commit?{Who().query(run='r1')}"
    connection.putrequest("POST", path)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    document = json.loads(answer.read())
    connection.close()
    assert short == Reply(answer.status, {}, document).short


# What is known


def test_state_of_a_producer_can_be_asked_for(caller: Caller) -> None:
    """I keep no state of my own: the publisher knows how far I am (EH-12, EX-06, EX-07)."""
    unknown = caller.call("GET", "/producers/p").document
    receipt = published(caller, 1).document["receipt"]
    known = caller.call("GET", "/producers/p").document
    assert (-1, None, 0) == (unknown["lastBatch"], unknown["incarnation"], unknown["receipts"])
    expected = {
        "producer": "p", "incarnation": "a", "lastBatch": 0, "run": "r1", "level": 1,
        "receipts": 1, "chain": receipt["hash"], "time": receipt["time"], "deleted": False,
    }  # fmt: skip
    assert [expected] == caller.call("GET", "/producers").document["producers"]
    numbers = {str(each["partition"]): each["last"] + 1 for each in receipt["ranges"]}
    assert {**expected, "nextSequences": numbers} == known


def test_receipt_is_found_by_incarnation(caller: Caller) -> None:
    """The outcome of a batch can be asked for, of each checkpoint that had one (EX-07, F5)."""
    first = published(caller, 1).document["receipt"]
    overrides = caller.commit(Who(incarnation="b"), rows(2)).remedy
    second = published(caller, 2, incarnation="b", overrides=overrides).document["receipt"]
    found = [caller.receipt(Who(), query).document for query in ("incarnation=a", "")]
    assert [first, second] == found


def test_batch_that_is_not_committed_is_unknown_for_certain(caller: Caller) -> None:
    """404 means that it is not there, with the partition count to publish it by (PU-03, F5)."""
    caller.upload(Who(), rows(1))
    reply = caller.receipt(Who(), "incarnation=a")
    assert (404, "unknown-batch") == reply.short
    assert {"partitionCount": 2, "batch": 0}.items() <= reply.document.items()


def test_receipts_come_newest_first_in_pages(caller: Caller) -> None:
    """I page back through what was published, and each receipt holds the hash of the one before."""
    for batch in range(25):
        caller.commit(Who(batch))

    def page(query: str) -> list[dict[str, object]]:
        return caller.call("GET", "/producers/p/batches", query).document["receipts"]

    newest = page("limit=3")
    older = page(f"limit=2&below={newest[-1]['number']}")
    found = [*newest, *older]
    assert [24, 23, 22, 21, 20] == [each["batch"] for each in found]
    assert [each["previous"] for each in found[:-1]] == [each["hash"] for each in found[1:]]
    assert (20, [], []) == (len(page("")), page("limit=0"), page("below=1"))


def test_named_batch_is_a_producer_of_its_own(publisher: Publisher, caller: Caller) -> None:
    """`P#K` may be published again and again, and is there once (EX-01)."""
    who = Who(producer="till-7#2026-01", incarnation="batch")
    caller.publish(who, 1)
    again = caller.publish(who.but(run="r2"), 1)
    other = caller.publish(who.but(run="r3"), 2)
    state = caller.call("GET", "/producers/till-7%232026-01").document
    assert ((200, "already-committed"), (409, "batch-conflict")) == (again.short, other.short)
    assert ("till-7#2026-01", 0) == (state["producer"], state["lastBatch"])
    assert [b"1"] == events_of(publisher.store)


@pytest.mark.parametrize(
    ("method", "path", "query"),
    [
        ("GET", "/producers", "limit=-1"),
        ("GET", "/producers/p", "x="),
        ("GET", "/producers/p/batches", "below=-1"),
        ("GET", "/producers/p/batches", "limit=many"),
        ("GET", "/producers/p/batches/x", ""),
        ("GET", "/producers/p/batches/0", "run=r1"),
        ("GET", "/producers/%20/batches/0", ""),
        ("DELETE", "/producers/p/batches/0/uploads", ""),
        ("DELETE", "/producers/p/batches/0/uploads", "run=r1&n=2"),
    ],
)
def test_bad_question_is_named(quiet_caller: Caller, method: str, path: str, query: str) -> None:
    """Typing errors get 400, with what is allowed."""
    assert 400 == quiet_caller.call(method, path, query).status


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/producers"),
        ("GET", "/producers/p"),
        ("GET", "/producers/p/batches"),
        ("GET", "/producers/p/batches/0"),
        ("DELETE", "/producers/p/batches/0/uploads?run=r1"),
        ("POST", f"/producers/p/batches/0/commit?{Who().query(run='r1')}"),
        ("PUT", f"/producers/p/batches/0/uploads/r1.0.0.0?{Who().query()}"),
    ],
)
def test_unknown_feed_is_named(
    quiet_publisher: Publisher, call_feed: Callable[[str], Caller], method: str, path: str
) -> None:
    """A wrong address is 404 for each call, not a new feed."""
    path, _, query = path.partition("?")
    caller = call_feed(f"{quiet_publisher.base}/nothing")
    reply = caller.call(method, path, query, json.dumps(commit_of([])))
    assert (404, "unknown-feed") == reply.short
    assert "nothing" in reply.document["detail"]
