"""Uploads that a publisher acknowledged and lost again, as a crash of its database loses them: what
the program still has is uploaded again, and nothing is published twice.
"""

from __future__ import annotations

from contextlib import closing

import psutil
import pytest

from tests.fix_middlemen import Fate, Gateway, answer_lost, lost, passed
from tests.fix_producer import large, published, refusal
from tests.fix_publish import events_of
from tests.fix_raw_server import Answer, Request
from zeh_spark.client.http import batch_attempt
from zeh_spark.errors import PublishError
from zeh_spark.publish import Producer
from zeh_spark.publisher import open_store
from zeh_spark.service.store.interface import Store
from zeh_spark.testing import running_publisher

pytestmark = pytest.mark.usefixtures("impatient")

NAMES = pytest.mark.parametrize("name", [None, "day"])

LARGE = large(150)


@pytest.fixture
def far(gateway: Gateway) -> Producer:
    return Producer(f"{gateway.address}/orders", "till-7")


def losing(store: Store, producer: Producer, name: str | None, *fates: Fate) -> Fate:
    """The uploads are gone when a commit arrives; one fate for each of the first commits."""
    left = list(fates)
    whose = f"{producer.name}#{name}" if name else producer.name

    def fate(gateway: Gateway, request: Request) -> Answer:
        if request.method != "POST" or not left:
            return passed(gateway, request)
        store.release("orders", whose, 0, producer.run)
        return left.pop(0)(gateway, request)

    return fate


def commits(gateway: Gateway) -> int:
    return sum(each.method == "POST" for each in gateway.requests)


@NAMES
@pytest.mark.parametrize(
    ("fates", "events"),
    [
        ([passed], ["1"]),
        ([lost, passed], LARGE),
        ([answer_lost], ["1"]),
        ([passed, lost, passed], ["1"]),
    ],
    ids=["first", "repeated", "unanswered", "again"],
)
def test_lost_uploads_are_sent_again(publisher, gateway, far, fates, events, name):
    """I notice nothing, whether the refused commit was the first one or repeated (EX-02)."""
    gateway.fate = losing(publisher.store, far, name, *fates)

    receipt = published(far, *events, name=name)

    assert ("committed", 0, len(events)) == (receipt.status, receipt.batch, receipt.events)
    assert sorted(each.encode() for each in events) == sorted(events_of(publisher.store))
    assert (0 if name else 1) == published(far, "9").batch
    while publisher.store.tidy():
        pass
    assert {} == dict(publisher.store.staged())


def test_uploads_that_are_sent_again_may_get_no_answer(publisher, gateway, far):
    """The network fails after the crash, as before it: I wait, and then go on (EX-02)."""
    losses = losing(publisher.store, far, None, lost, passed)

    def fate(gateway: Gateway, request: Request) -> Answer:
        tries = [each for each in gateway.requests if each.target == request.target]
        again = request.method == "PUT" and commits(gateway) == 2 and len(tries) == 1
        return (lost if again else losses)(gateway, request)

    gateway.fate = fate

    assert 0 == published(far, "1").batch
    assert [b"1"] == events_of(publisher.store)


def test_a_commit_that_arrives_late_adds_nothing(publisher, gateway, far):
    """It is of uploads that were lost, or of a batch that is published (EX-07)."""
    gateway.fate = losing(publisher.store, far, None, lost, passed)
    with far.batch() as batch:
        event = batch.add("1", partition=1)
    gateway.held[:] = [each for each in gateway.requests if each.method in ("PUT", "POST")]

    gateway.deliver()

    assert [b"1"] == events_of(publisher.store)
    assert (1, 0) == (event.partition, event.sequence)


@NAMES
def test_it_is_tried_a_few_times(publisher, gateway, far, name):
    """A publisher that always loses them does not keep a program for ever."""
    gateway.fate = losing(publisher.store, far, name, *[passed] * 9)

    with pytest.raises(PublishError, match="publish the events again") as refused:
        published(far, "1", name=name)

    assert ("upload-missing", batch_attempt.STAGINGS) == (refused.value.problem, commits(gateway))
    assert ([], {}) == (events_of(publisher.store), dict(publisher.store.staged()))
    gateway.fate = passed
    assert "committed" == published(far, "1", name=name).status


def test_what_is_not_kept_is_refused(publisher, gateway, far, monkeypatch):
    """A batch that is larger than the memory for it; with keep=True all of it is kept."""
    monkeypatch.setattr(batch_attempt, "KEPT_BYTES", 1)
    gateway.fate = losing(publisher.store, far, None, passed)
    assert "upload-missing" == refusal(far, "1")
    assert [] == events_of(publisher.store)

    gateway.fate = losing(publisher.store, far, None, passed)
    with far.batch(keep=True) as batch:
        batch.add("1")

    assert [b"1"] == events_of(publisher.store)


@pytest.mark.kill
@NAMES
def test_crash_of_the_database_between_uploads_and_commit(own_server, name):
    """What a real PostgreSQL has acknowledged and not written is not missing in my feed (PU-04)."""

    def crash_once(gateway: Gateway, request: Request) -> Answer:
        if request.method == "POST" and commits(gateway) == 1:
            own_server.kill()
            own_server.start()
            # Something else may have made them durable just before the crash.
            own_server.execute("DELETE FROM zeroeventhub.uploads", database)
        return passed(gateway, request)

    database = own_server.create_database()
    with (
        closing(open_store(own_server.url(database))) as store,
        running_publisher((store.create("orders", 2), store)[1]) as base,
        closing(Gateway(int(base.rpartition(":")[2]))) as gateway,
    ):
        producer = Producer(f"{gateway.address}/orders", "till-7")
        published(producer, "0")
        # Nothing is written any more before a transaction that has to be durable.
        walwriter = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'"
        psutil.Process(own_server.execute(walwriter)[0][0]).suspend()
        gateway.fate, gateway.requests[:] = crash_once, []
        published(producer, "1", "2", name=name)
        assert commits(gateway) > 1
        assert [b"0", b"1", b"2"] == sorted(events_of(store))
