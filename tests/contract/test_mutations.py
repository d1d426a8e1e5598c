"""Each check of the commit decision, and each guard of a store, is needed: without it a short
history goes wrong in silence; with it somebody is told by name. And the faults are strong enough:
plain append doubles under the same ones.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from tests.contract.mutants import CHECKS, REAL, any_layout, any_uploads, lose_an_upload
from tests.store_contract.writers import (
    FEED,
    call,
    chunk,
    commit,
    declared,
    everything,
    refusal,
    refused,
    upload,
)
from zeh_spark.publisher import Problem
from zeh_spark.service.sql import uploads as sql_uploads
from zeh_spark.service.store import commit_decision
from zeh_spark.service.store.batches import Call, CommitFacts, Declared
from zeh_spark.wire.partitioning import partition_of
from zeh_spark.wire.upload_format import Content

few_receipts = pytest.mark.parametrize("receipts", [2])
checks = pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)


@checks
@few_receipts
def test_history_is_refused_by_name(world, check):
    """I am told what is wrong, and nothing on the feed is (EX-09)."""
    check.scenario(world)
    assert (check.refusal, []) == (world.refusals[-1], world.anomalies())


@checks
@few_receipts
def test_without_the_check_the_same_history_goes_wrong(world, check, monkeypatch):
    """No check is there for nothing. [Tidying up may take a zombie's uploads before it commits.]"""
    monkeypatch.setattr(sql_uploads, "tidy", lambda *_: False)
    monkeypatch.setattr(commit_decision, "decide", check.mutant)
    check.scenario(world)
    assert [check.anomaly] == list({each.split(":")[0]: 1 for each in world.anomalies()})[:1]
    assert check.refusal not in world.refusals[-1:] or "both sides" in check.name


# Checks whose absence a later one still catches, under a name that misleads


def test_missing_upload_is_not_blamed_on_the_network(world, monkeypatch):
    """8: "publish the events again" is the right advice; "something changes bodies" is not."""
    world.honest.add("content-mismatch")
    lose_an_upload(world)
    monkeypatch.setattr(commit_decision, "decide", any_uploads)
    world.restart()
    lose_an_upload(world)
    assert ["upload-missing", "content-mismatch"] == world.refusals


def test_other_digest_version_is_not_called_a_conflict(store, monkeypatch):
    """4b: after an upgrade nobody is told to look for a query that is not repeatable (A10)."""
    commit(store, call(), upload(chunk(0, b"1")))
    later = Declared(Content(1, 99), (), digest_version=2)
    assert ("digest-version", 409) == refusal(refused(store.commit, FEED, call(), later))
    monkeypatch.setattr(commit_decision, "decide", any_digest_version)
    assert "batch-conflict" == refused(store.commit, FEED, call(), later).name


def any_digest_version(
    known: CommitFacts, call: Call, given: Declared | None = None, *rest: Any
) -> commit_decision.Decision:
    return REAL(known, call, given and replace(given, digest_version=1), *rest)


def test_digest_version_of_the_future_is_not_taken(store, monkeypatch):
    """7: a receipt that nothing can be compared with would make every replay a conflict."""
    later = replace(sent := declared(one := upload(chunk(0, b"1"))), digest_version=2)
    store.stage(FEED, call(), one)
    with pytest.raises(Problem, match="digest version 1, this call has version 2"):
        store.commit(FEED, call(), later)
    with monkeypatch.context() as patch:
        patch.setattr(commit_decision, "decide", any_digest_version)
        store.commit(FEED, call(), later)
    with pytest.raises(Problem, match="digest version 2, this call has version 1"):
        store.commit(FEED, call(run="r2"), sent)


def test_lost_answer_is_heard_although_somebody_published_since(store, monkeypatch):
    """3: I am not told that nothing was published, and do not publish it again (EX-02)."""
    alone = {"producer": "till", "incarnation": "plain"}
    receipt, _ = commit(store, call(0, run="r1", **alone), one := upload(chunk(0, b"1")))
    commit(store, call(1, run="r2", **alone), upload(chunk(0, b"2")))
    again = declared(one)
    assert (receipt, False) == store.commit(FEED, call(0, run="r1", **alone), again)

    def mutant(known: CommitFacts, *given: Any) -> commit_decision.Decision:
        receipt = known.receipt and msgspec.structs.replace(known.receipt, run="")
        return REAL(replace(known, receipt=receipt), *given)

    monkeypatch.setattr(commit_decision, "decide", mutant)
    with pytest.raises(Problem, match="overtaken"):
        store.commit(FEED, call(0, run="r1", **alone), again)


def test_batch_routed_for_other_partitions_would_tear_a_key_apart(store, monkeypatch):
    """6: a key's events stay in one partition (F11)."""
    key = next(str(each) for each in range(99) if partition_of(str(each), 2) == 1)
    commit(store, call(0), upload(chunk(partition_of(key, 2), b"1")))
    one = upload(chunk(partition_of(key, 1), b"2"))
    with pytest.raises(Problem, match="made for 1 partition, the feed has 2"):
        commit(store, call(1, partitions=1), one)
    monkeypatch.setattr(commit_decision, "decide", any_layout)
    commit(store, call(1, partitions=1), one)
    assert [1, 0] == [each.partition for each in everything(store)]
