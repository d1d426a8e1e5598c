"""Our client behind a network that loses, repeats, delays, reorders and cuts: each batch is there
once, or its error has a name; and what comes late changes nothing.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fix_middlemen import (
    Fate,
    Gateway,
    Proxy,
    answer_cut,
    answer_lost,
    copied,
    held,
    lost,
    passed,
    request_cut,
    twice,
    twice_at_once,
)
from tests.fix_publish import Reply, Who, events_of, publish_batch, rows
from tests.fix_publisher import Publisher
from zeh_spark.client.publish_client import BatchCall, PublishClient, TaskDone
from zeh_spark.errors import OutcomeUnknownError, PublishError, UnavailableError
from zeh_spark.options.client_options import ClientOptions
from zeh_spark.options.given import parse
from zeh_spark.protocol.upload_format import upload_body

BATCH = BatchCall("p", "a", "r1", 0)

FATES: dict[str, Fate] = {
    "lost": lost,
    "answer lost": answer_lost,
    "twice": twice,
    "twice at once": twice_at_once,
    "held": held,
    "copied": copied,
    "cut before its first byte": request_cut(lambda request: 0),
    "cut in its first line": request_cut(lambda request: 9),
    "cut in its headers": request_cut(lambda request: request.head - 9),
    "cut behind its headers": request_cut(lambda request: request.head),
    "cut in its body": request_cut(lambda request: (request.head + len(request.raw)) // 2),
    "cut before its last byte": request_cut(lambda request: len(request.raw) - 1),
    "answer cut in its first line": answer_cut(lambda answer: 9),
    "answer cut behind its first line": answer_cut(lambda answer: answer.index(b"\r\n") + 2),
    "answer cut in its headers": answer_cut(lambda answer: answer.index(b"\r\n\r\n") - 5),
    "answer cut behind its headers": answer_cut(lambda answer: answer.index(b"\r\n\r\n") + 4),
    "answer cut in its body": answer_cut(lambda answer: len(answer) - 20),
    "answer cut before its last byte": answer_cut(lambda answer: len(answer) - 1),
}

CUT_BODIES = [
    "answer cut behind its first line",
    "answer cut in its headers",
    "answer cut behind its headers",
    "answer cut in its body",
    "answer cut before its last byte",
]
names = itertools.count()

pytestmark = pytest.mark.usefixtures("impatient")


def client_of(address: str, patience: str = "20s") -> PublishClient:
    options = {"url": f"{address}/orders", "retryTimeout": patience}
    return PublishClient(parse(ClientOptions, options))


@pytest.fixture
def proxy(publisher: Publisher, start_proxy: Callable[[int], Proxy]) -> Proxy:
    return start_proxy(int(publisher.base.rpartition(":")[2]))


def publish(gateway: Gateway, batch: BatchCall = BATCH, *data: object) -> str:
    """Look up, upload, commit; what the commit answered."""
    return publish_batch(client_of(gateway.address), batch, rows(*data or (1, 2, 3))).status


# What goes wrong with one request


@pytest.mark.parametrize("kind", FATES)
@pytest.mark.parametrize("place", [0, 1, 2], ids=["look up", "upload", "commit"])
def test_batch_is_there_once_whatever_becomes_of_a_request(faulty, kind, place):
    """The network may do what it likes with one of my requests. Half an answer is no answer: I ask
    again (EX-02, F5, DL-02).
    """
    publisher, gateway = faulty
    producer = f"p{next(names)}"
    gateway.held.clear()
    gateway.script(*[passed] * place, FATES[kind])
    publish(gateway, BatchCall(producer, "a", "r1", 0))
    gateway.deliver()
    assert [b"1", b"2", b"3"] == events_of(publisher.store, producer=producer)
    assert 1 == publisher.store.producer("orders", producer).receipts


def test_answer_that_was_lost_is_recognised_as_my_own(gateway):
    """A commit that landed is not taken for somebody else's (DL-02, PU-09, EH-09)."""
    gateway.script(passed, passed, answer_lost)
    assert "already-committed" == publish(gateway)


def test_publisher_that_stays_away_is_an_error_with_a_name(publisher, proxy):
    """If it does not come back in time I am told, and the batch can be published later (F5)."""
    proxy.stop()
    with pytest.raises(UnavailableError, match=r"Is the publisher running\?"):
        client_of(proxy.address, "300ms").commit(BATCH, 2, [])
    proxy.restart()
    client_of(proxy.address).commit(BATCH, 2, [])
    assert 0 == publisher.store.producer("orders", "p").last


def test_who_cannot_repeat_is_told_how_to_find_out(proxy):
    """Publishing it again would double what has no name: I am not told to do so (PU-14)."""
    batch = BatchCall("till", "batch", "r1", 0, repeatable=False)
    proxy.stop()
    with pytest.raises(OutcomeUnknownError) as raised:
        client_of(proxy.address, "300ms").commit(batch, 2, [])
    said = str(raised.value)
    assert "whether 0 events were published is not known" in said
    assert f"zeh-spark producers {proxy.address}/orders 'till'" in said
    assert (batch.run in said, "start again" in said) == (True, False)


@pytest.mark.parametrize("size", [0, 1, 20, 200, 400])
def test_connections_that_break_for_a_while_do_no_harm(publisher, proxy, size):
    """Each connection breaks after some bytes, until the network is well again (F5)."""
    client = client_of(proxy.address)
    upload(client, BATCH, 1)
    proxy.restart()
    proxy.cut_after(size, reset=True)
    with ThreadPoolExecutor(1) as thread:
        committing = thread.submit(commit, client, BATCH, 1)
        while proxy.connections < 4:
            pass
        proxy.restart()
        committing.result(30)
    assert [b"1"] == events_of(publisher.store)


def upload(client: PublishClient, batch: BatchCall, data: object, task: int = 0) -> None:
    """As the only upload of a task of a batch."""
    client.upload(batch, 2, task, 0, 0, upload_body(rows(data)))


def commit(client: PublishClient, batch: BatchCall, data: object) -> None:
    """A batch of one such upload, of task 0."""
    client.commit(batch, 2, [TaskDone(0, 0, 1, rows(data)[0].content)])


# What goes wrong with many


@pytest.mark.slow
@settings(max_examples=max(20, settings().max_examples // 5))
@given(
    fates=st.lists(
        st.sampled_from([kind for kind in FATES if kind not in CUT_BODIES]), max_size=12
    ),
    late=st.randoms(use_true_random=True),  # of a seed: how many wait is not ours to choose
)
def test_batches_are_there_once_with_any_faults(faulty, fates, late):
    """However often and in whatever order things arrive, my feed has each batch once (F17)."""
    publisher, gateway = faulty
    gateway.held.clear()
    gateway.script(*(FATES[kind] for kind in fates))
    producer = f"p{next(names)}"
    for number in range(3):
        publish(gateway, BatchCall(producer, "a", "r1", number), number)
        order = late.sample(range(len(gateway.held)), len(gateway.held))
        if order:
            gateway.deliver(*order)
    assert [b"0", b"1", b"2"] == events_of(publisher.store, producer=producer)


# What comes late (F17)


def later(gateway: Gateway) -> tuple[int, str]:
    """Bring what was held; what it was answered."""
    (answer,) = gateway.deliver()
    head, _, body = answer.partition(b"\r\n\r\n")
    return Reply(int(head.split(b" ")[1]), {}, json.loads(body)).short


def stuck(
    gateway: Gateway, call: Callable[..., object], batch: BatchCall, data: object, **how: int
) -> None:
    """A request that the client gives up, while it is still on its way."""
    gateway.held.clear()
    gateway.fate = held
    with pytest.raises(UnavailableError):
        call(client_of(gateway.address, "1ms"), batch, data, **how)
    del gateway.held[1:]
    gateway.fate = passed


@pytest.mark.parametrize(
    ("data", "short"),
    [([7, 8], (409, "batch-conflict")), ([1], (200, "already-committed"))],
    ids=["others", "the same"],
)
def test_late_commit_of_an_overtaken_run_changes_nothing(publisher, gateway, data, short):
    """A commit of a driver that is gone meets what its successor published (F7, F17). It adds
    nothing, also if it has the same rows (F4).
    """
    upload(client_of(gateway.address), BATCH, 1)
    stuck(gateway, commit, BATCH, 1)
    publish(gateway, BatchCall("p", "a", "r2", 0), *data)
    assert short == later(gateway)
    assert [b"%d" % each for each in data] == events_of(publisher.store)


def test_late_commit_of_a_former_checkpoint_changes_nothing(publisher, gateway, caller):
    """Whoever took over stays, also against the remedy that once let the other one in (F12)."""
    caller.publish(Who(incarnation="x"), 0)
    old = BatchCall("p", "a", "r1", 0, {"replaceIncarnation": "x@0:a"})
    upload(client_of(gateway.address), old, 1)
    stuck(gateway, commit, old, 1)
    publish(gateway, BatchCall("p", "b", "r2", 0, {"replaceIncarnation": "x@0:b"}), 2)
    assert (409, "incarnation-changed") == later(gateway)
    assert [b"0", b"2"] == events_of(publisher.store)


def test_late_upload_of_a_committed_batch_is_not_kept(publisher, gateway):
    """A speculative twin that is still sending hears that all is there (F2)."""
    stuck(gateway, upload, BATCH, 9, task=1)
    publish(gateway)
    assert (200, "already-committed") == later(gateway)
    assert [b"1", b"2", b"3"] == events_of(publisher.store)


def test_late_upload_of_a_given_up_run_is_in_no_batch(publisher, gateway):
    """Rows of an attempt that died do not slip into the one that took its place (F1)."""
    client, again = client_of(gateway.address), BatchCall("p", "a", "r2", 0)
    stuck(gateway, upload, BATCH, 9)
    upload(client, again, 1)
    assert (201, "staged") == later(gateway)
    commit(client, again, 1)
    assert [b"1"] == events_of(publisher.store)


@pytest.mark.parametrize("committed", [False, True])
def test_late_release_of_a_former_run_takes_nothing(publisher, gateway, committed):
    """An abort that comes late neither undoes a commit nor drops another run's rows (F6)."""
    client = client_of(gateway.address)
    upload(client, BATCH, 1)
    gateway.script(held)
    client.release(BATCH)  # whose answer never comes
    by = BATCH if committed else BatchCall("p", "a", "r2", 0)
    upload(client, by, 1)
    if committed:
        commit(client, by, 1)
    gateway.deliver()
    commit(client, by, 1)
    assert [b"1"] == events_of(publisher.store)


def test_late_release_of_the_run_itself_makes_the_commit_fail_by_name(publisher, gateway):
    """Rows that were taken away are missed, and the batch can be published again (F6)."""
    client = client_of(gateway.address)
    gateway.script(held)
    client.release(BATCH)
    upload(client, BATCH, 1)
    gateway.deliver()
    with pytest.raises(PublishError) as refused:
        commit(client, BATCH, 1)
    assert ("upload-missing", 0) == (refused.value.problem, publisher.store.feed("orders").head)
    publish(gateway)
    assert [b"1", b"2", b"3"] == events_of(publisher.store)


def test_commits_that_arrive_in_the_wrong_order_leave_no_gap(publisher, gateway):
    """A later batch that overtakes an earlier one is refused, not published before it (F18)."""
    client, following = client_of(gateway.address), BatchCall("p", "a", "r1", 1)
    upload(client, BATCH, 0)
    stuck(gateway, commit, BATCH, 0)
    with pytest.raises(PublishError) as refused:
        client.commit(following, 2, [])
    assert ("batch-gap", (200, "committed")) == (refused.value.problem, later(gateway))
    client.commit(following, 2, [])
    assert (1, [b"0"]) == (publisher.store.producer("orders", "p").last, events_of(publisher.store))


def test_many_runs_at_once_commit_one_batch_once(publisher, call_feed):
    """Drivers that race with the same rows get one receipt, and all hear the same (F7, PU-10)."""
    callers = [call_feed(publisher.url) for _ in range(8)]
    start = threading.Barrier(8)

    def drive(number: int) -> Reply:
        start.wait()
        return callers[number].publish(Who(run=f"r{number}"), *range(50))

    with ThreadPoolExecutor(8) as threads:
        replies = [*threads.map(drive, range(8))]
    outcomes = sorted(each.short for each in replies)
    assert [(200, "already-committed")] * 7 + [(200, "committed")] == outcomes
    assert 1 == len({each.document["receipt"]["hash"] for each in replies})
    assert 50 == len(events_of(publisher.store))
