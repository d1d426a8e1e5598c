"""Commits, receipts and states as any HTTP client sees them: real calls to a real publisher.

Refusals are in test_publish_refusals.py, uploads in test_publish_uploads.py. tests/README.md says
where the ids in brackets come from.
"""

from __future__ import annotations

import json
from contextlib import closing

import pytest

from tests.fix_publish import Caller, Who, commit_of, published, rows

# What a commit answers


def test_commit_answers_with_numbers_and_cursors(publisher, caller):
    """I learn where my events stand, and readers find them (EH-05, BQ-01, ZE-04, F19)."""
    receipt = published(caller, 1, 2, 3).document["receipt"]
    empty = caller.commit(Who(1)).document["receipt"]
    (place,) = receipt["ranges"]
    assert (0, 3) == (receipt["batch"], receipt["events"])
    assert (0, 0, 2) == (place["partition"], place["first"], place["last"])
    assert publisher.get("n=2&cursor0=_first").cursors[0] == place["cursor"]
    assert (0, [], None) == (empty["events"], empty["ranges"], empty["positions"])
    published(caller, 4, batch=2)


def test_sequence_numbers_continue_from_batch_to_batch(caller):
    """Nothing is missing between my batches, nor between my checkpoints (EH-04, IC-01); the outcome
    of a batch can be asked for, of each checkpoint that had one (EX-07, F5).
    """
    first = published(caller, 1, 2).document["receipt"]
    published(caller, 3, batch=1, run="r2")
    remedy = caller.commit(Who(0, incarnation="b"), rows(4)).remedy
    second = published(caller, 4, incarnation="b", overrides=remedy).document["receipt"]
    assert (3, 3) == (second["ranges"][0]["first"], second["ranges"][0]["last"])
    found = [caller.receipt(Who(), query).document for query in ("incarnation=a", "")]
    assert [first, second] == found


def test_numbers_of_json_are_exact(publisher, caller):
    """Batches count to 2^53 - 1, so that every JSON reader has them right (DS-02)."""
    most = 2**53 - 1
    reply = published(caller, 1, batch=most, overrides={"acceptGap": f"a@-1:{most}"})
    event = publisher.get("n=2&cursor0=_first&headers=zeh-batch").lines[0]
    assert most == reply.document["receipt"]["batch"]
    assert f"{most}" == event["headers"]["zeh-batch"]


# Calls that are no calls


def test_commit_of_unknown_length_is_refused(quiet_caller):
    """It comes in chunks, and could be of any size."""
    where = f"{Who().path}/commit", Who().query(run="r1")
    reply = quiet_caller.call("POST", *where, iter([b"{}"]))
    assert (411, "length-required") == reply.short


# What is known


def test_state_of_a_producer_can_be_asked_for(caller):
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


def test_list_of_producers_can_have_receipts(caller):
    """One request tells of many what I would ask of each. An answer is never too long: I go on
    after its last name until there are no more (PU-08).
    """
    for each in ("p", "q", "r"):
        for batch in range(3):
            caller.commit(Who(batch, each))
    found = caller.call("GET", "/producers", "receipts=2").document["producers"]
    for each in found:
        path = f"/producers/{each['producer']}"
        newest = caller.call("GET", f"{path}/batches", "limit=2").document["receipts"]
        assert {**caller.call("GET", path).document, "newestReceipts": newest} == each
    assert [2, 2, 2] == [len(each["newestReceipts"]) for each in found]
    rest = caller.call("GET", "/producers", "receipts=1&after=p&limit=1").document["producers"]
    assert ["q"] == [each["producer"] for each in rest]


def test_receipts_come_newest_first_in_pages(caller):
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


@pytest.mark.parametrize(
    ("method", "path", "query"),
    [
        ("POST", f"{Who().path}/commit", "n=2&run=r1"),
        ("PUT", f"{Who().path}/uploads/r1.0.0.0", "incarnation=a&n=two"),
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
def test_bad_question_is_named(quiet_caller, method, path, query):
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
def test_unknown_feed_is_named(quiet_publisher, method, path):
    """A wrong address is 404 for each call, not a new feed."""
    path, _, query = path.partition("?")
    with closing(Caller(f"{quiet_publisher.base}/nothing")) as caller:
        reply = caller.call(method, path, query, json.dumps(commit_of([])))
    assert (404, "unknown-feed") == reply.short
    assert "nothing" in reply.document["detail"]
