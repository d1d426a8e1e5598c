"""What a commit refuses, as any HTTP client sees it, and how a remedy is used as printed.

tests/README.md says where the ids in brackets come from.
"""

import pytest

from tests.fix_publish import Who, published, rows


def test_reasons_come_in_one_order(publisher, caller):
    """Of much that is wrong I hear first what has to be healed first (DS-01)."""
    published(caller, 1)
    published(caller, 2, batch=1, run="r2")
    caller.publish(Who(producer="gone"), 1)
    publisher.store.delete_producer("orders", "gone")
    right = Who(2, run="r2")
    wrong = {
        "producer-deleted": right.but(producer="gone", incarnation="b", run="r1", batch=9, n=3),
        "incarnation-changed": right.but(incarnation="b", run="r1", batch=9, n=3),
        "fenced": right.but(run="r1", batch=9, n=3),
        "batch-gap": right.but(batch=9, n=3),
        "layout-changed": right.but(n=3),
    }
    commits = {"upload-missing": right, **wrong}
    uploads = {"already-committed": right.but(batch=1, n=3), "invalid-upload": right, **wrong}
    assert [*commits] == [caller.commit(who, rows(3)).short[1] for who in commits.values()]
    assert [*uploads] == [caller.upload(who, b"no upload").short[1] for who in uploads.values()]
    caller.upload(right, rows(3))
    assert (422, "content-mismatch") == caller.commit(right, rows(4)).short
    assert (200, "committed") == caller.commit(right, rows(3)).short


@pytest.mark.parametrize(
    ("who", "name", "members"),
    [
        (Who(4, run="r2"), "batch-gap",
         {"current": {"incarnation": "a", "lastBatch": 1}, "option": {"acceptGap": "a@1:4"}}),
        (Who(7, producer="new"), "batch-gap",
         {"current": {"incarnation": None, "lastBatch": -1}, "option": {"acceptGap": "a@-1:7"}}),
        (Who(2, run="r2"), "upload-missing",
         {"task": 0, "expected": {"uploads": 1, "events": 1},
          "found": {"uploads": 0, "events": 0}}),
    ],
)  # fmt: skip
def test_refusal_shows_both_sides(caller, who, name, members):
    """I see what the publisher has and what I sent, and what to do (EX-09, EH-10, KA-04, PU-13)."""
    published(caller, 1)
    published(caller, 2, batch=1, run="r2")
    reply = caller.commit(who, rows(3))
    asked = {"producer": who.producer, "batch": who.batch, "run": who.run}
    assert (409, name) == reply.short
    assert {**asked, **members, "status": 409}.items() <= reply.document.items()
    assert "application/problem+json" == reply.headers["Content-Type"]
    assert reply.document["detail"].endswith(reply.document["remedy"])
