"""What a commit refuses, as any HTTP client sees it, and how a remedy is used as printed.

tests/README.md says where the ids in brackets come from.
"""

from __future__ import annotations

import pytest

from tests.fix_publish import Who, commit_of, events_of, published, rows


def test_reasons_come_in_one_order(publisher, caller):
    """A commit or an upload that is wrong in many ways hears first what has to be healed first
    (DS-01).
    """
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
def test_refusal_shows_both_sides(caller, who, commit, status, name, members):
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
def test_reused_number_is_refused_with_the_difference(publisher, caller, data):
    """Other rows under a number that is taken are never acknowledged, and old ones with
    new ones neither (EX-03, EX-04, KA-01, PU-05, F9).
    """
    stored = published(caller, 1, 2, 3).document["receipt"]
    reply = caller.commit(Who(run="r2"), rows(*data))
    assert (409, "batch-conflict") == reply.short
    for sent, told in ((stored, "published"), (commit_of(rows(*data)), "given")):
        assert {name: sent[name] for name in ("events", "digest")} == reply.document[told]
    assert [b"1", b"2", b"3"] == events_of(publisher.store)


def test_content_that_is_not_the_drivers_is_shown(publisher, caller):
    """A body that was changed on its way is published by no means."""
    caller.upload(Who(), rows(1, 2))
    reply = caller.commit(Who(), rows(1, 3))
    digests = [reply.document[each]["digest"] for each in ("given", "found")]
    assert (422, "content-mismatch") == reply.short
    assert [commit_of(rows(*each))["digest"] for each in ((1, 3), (1, 2))] == digests
    assert [] == events_of(publisher.store)
    caller.commit(Who(), rows(1, 2))
    assert [b"1", b"2"] == events_of(publisher.store)


REFUSED = {"acceptGap": Who(5), "replaceIncarnation": Who(incarnation="b"), "keepFirst": Who()}


@pytest.mark.parametrize(("option", "who"), REFUSED.items())
def test_remedy_that_is_not_quite_the_printed_one_does_nothing(publisher, caller, option, who):
    """A remedy for another state, or with a typing error, is inert, and printed anew."""
    published(caller, 1)
    right = caller.commit(who, rows(2)).remedy[option]
    wrong = [right + "0", " " + right, right[1:], right.upper() + ":", "", "accept", "*"]
    replies = [caller.commit(who.but(overrides={option: each}), rows(2)) for each in wrong]
    assert [{option: right}] * len(wrong) == [each.remedy for each in replies]
    assert [b"1"] == events_of(publisher.store)
