"""A program's commit is not answered: what was published is found out; nothing is done twice."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from tests.fix_middlemen import Fate, Gateway, answer_lost, held, passed
from tests.fix_producer import by_method, large, published, refusal
from tests.fix_publish import events_of
from tests.fix_raw_server import Answer, Request
from zeh_spark.errors import OutcomeUnknownError, UnavailableError
from zeh_spark.publish import OpenBatch, Producer

pytestmark = pytest.mark.usefixtures("impatient")


SIZES = pytest.mark.parametrize("events", [0, 1, 300], ids=["empty", "one upload", "several"])
UNANSWERED = by_method(POST=answer_lost)


def unknown(
    gateway: Gateway, fates: Fate, producer: Producer, *events: str, name: str | None = None
) -> OpenBatch:
    """A batch whose commit was not answered, because of these fates; then all pass."""
    gateway.fate = fates
    with pytest.raises(OutcomeUnknownError) as raised, producer.batch(name) as batch:
        for event in events:
            batch.add(event)
    gateway.fate = passed
    assert (batch.number, producer.run) == (raised.value.batch, raised.value.run)
    assert vars(raised.value) == vars(pickle.loads(pickle.dumps(raised.value)))
    return batch


def once(first: Fate, then: Callable[[], object]) -> Fate:
    """The first request has this fate, and then this happens."""
    left = [first]

    def fate(gateway: Gateway, request: Request) -> Answer:
        if not left:
            return passed(gateway, request)
        given = left.pop()(gateway, request)
        then()
        return given

    return fate


@SIZES
@pytest.mark.parametrize("name", [None, "day"])
def test_not_published_is_said_only_when_it_never_will_be(publisher, gateway, far, events, name):
    """A commit that comes after I was told no changes nothing, nor do late copies of uploads."""
    copies: list[Request] = []

    def remembered(gateway: Gateway, request: Request) -> Answer:
        copies.append(request)
        return passed(gateway, request)

    data = large(events)
    batch = unknown(gateway, by_method(POST=held, PUT=remembered), far, *data, name=name)
    assert None is batch.settle()
    gateway.held[:] = [*copies, *gateway.held]
    assert b"upload-missing" in gateway.deliver()[-1]
    assert ([], 1) == (events_of(publisher.store), len(gateway.held) - len(copies))
    receipt = published(far, *data, name=name)
    assert (0, "committed", events) == (receipt.batch, receipt.status, receipt.events)
    gateway.deliver()
    assert sorted(each.encode() for each in data) == sorted(events_of(publisher.store))


@SIZES
@pytest.mark.parametrize("name", [None, "day"])
def test_published_is_found_out(publisher, gateway, far, events, name):
    """A commit that landed, but whose answer was lost, is found by asking (EX-02, EX-07)."""
    batch = unknown(gateway, UNANSWERED, far, *large(events), name=name)
    receipt = batch.settle()
    assert (events, far.run) == (receipt.events, receipt.run)
    assert receipt == batch.receipt == batch.settle()
    assert events == len(events_of(publisher.store))
    assert ((-1, 0) if name else (0, events)) == (far.last.batch, far.last.events)


def test_nothing_else_is_published_before_it_is_known(publisher, gateway, far):
    """I cannot continue in doubt by mistake; batches with names are apart."""
    gateway.fate = UNANSWERED
    with far.batch() as earlier:
        gateway.fate = passed
    batch = unknown(gateway, UNANSWERED, far, "1")
    assert earlier.settle() == earlier.receipt
    with pytest.raises(OutcomeUnknownError, match=r"Call that batch's settle\(\) first"):
        published(far, 2)
    published(far, 3, name="apart")
    assert batch.settle() and 2 == published(far, 2).batch
    assert [b"1", b"3", b"2"] == events_of(publisher.store)


@pytest.fixture
def interrupts() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, also if the tests run in a shell's background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("fate", [answer_lost, held])
def test_interrupted_commit_can_be_found_out(publisher, gateway, far, fate, interrupts):
    """Ctrl-C at the wrong moment leaves the question open, not the answer wrong (EH-15)."""

    noticed = threading.Event()

    def interrupted(gateway: Gateway, request: Request) -> Answer:
        given = fate(gateway, request)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        assert noticed.wait(60)  # the client waits for its answer meanwhile
        return given

    gateway.fate = by_method(POST=interrupted)
    with pytest.raises(KeyboardInterrupt), far.batch() as batch:
        batch.add(1)
    noticed.set()
    gateway.fate = passed
    with pytest.raises(OutcomeUnknownError):
        published(far, 2)
    there = batch.settle() is not None
    gateway.deliver()
    assert (fate is answer_lost, there) == (there, bool(events_of(publisher.store)))


def test_as_long_as_the_publisher_does_not_tell_it_is_not_known(publisher, gateway, far):
    """Asking can be repeated."""
    batch = unknown(gateway, by_method(POST=held), far, "1")
    gateway.fate = held
    with pytest.raises(OutcomeUnknownError, match="still not known"):
        batch.settle()
    gateway.fate = passed
    assert (None, []) == (batch.settle(), events_of(publisher.store))


def test_before_the_commit_nothing_is_published_for_certain(publisher, gateway, far):
    """If the publisher goes away earlier, the error says so, and I publish again later."""
    gateway.fate = by_method(PUT=held)
    with pytest.raises(UnavailableError, match="nothing of the batch was published"):
        published(far, 1)
    gateway.fate = by_method(PUT=once(held, lambda: None))
    with pytest.raises(UnavailableError), far.batch() as batch:
        for event in large(300):
            try:
                batch.add(event)
            except UnavailableError:
                pass  # by mistake: it does not make the batch whole
    gateway.fate = passed
    gateway.deliver()
    assert (0, [b"2"]) == (published(far, 2).batch, events_of(publisher.store))


@pytest.fixture
def patient(gateway: Gateway) -> Producer:
    return Producer(f"{gateway.address}/orders", "till-7", retryTimeout="20s")


def test_refusal_of_a_second_try_does_not_hide_that_the_first_landed(publisher, gateway, patient):
    """Published, then the producer was deleted, then I ask again: it was published."""
    delete = partial(publisher.store.delete_producer, "orders", "till-7")
    gateway.fate = by_method(POST=once(answer_lost, delete))
    assert (0, [b"1"]) == (published(patient, 1).batch, events_of(publisher.store))
    assert "producer-deleted" == refusal(patient, 2)


def test_refusal_of_a_second_try_is_final(publisher, gateway, patient):
    """The first one is on its way when somebody else takes the number, and stays without effect."""
    other = Producer(publisher.url, "till-7")
    gateway.fate = by_method(POST=once(held, lambda: published(other, 2)))
    assert "number-taken" == refusal(patient, 1)
    gateway.deliver()
    assert [b"2"] == events_of(publisher.store)


@pytest.mark.parametrize("receipts", [2])
def test_receipt_that_is_gone_tells_nothing(publisher, gateway, far):
    """Where the publisher cannot know any more, I am not told a guess (KA-03)."""
    batch = unknown(gateway, UNANSWERED, far, "1")
    other = Producer(publisher.url, "till-7")
    for number in range(3):
        published(other, number)
    with pytest.raises(OutcomeUnknownError, match="neither confirmed nor denied"):
        batch.settle()


@pytest.mark.parametrize(
    ("fate", "code", "said"), [(answer_lost, 0, "Published 1 event as batch 0"), (held, 1, "Abort")]
)
def test_the_command_finds_out_what_it_was_interrupted_in(publisher, gateway, fate, code, said):
    """Ctrl-C while the commit is under way: I am told what is published, and publish it once."""
    command = [sys.executable, "-m", "zeh_spark", "publish", f"{gateway.address}/orders"]
    found_out = threading.Event()

    def interrupted(gateway: Gateway, request: Request) -> Answer:
        given = fate(gateway, request)
        process.send_signal(signal.SIGINT)
        assert found_out.wait(60)  # the command waits for its answer meanwhile
        return given

    def other(gateway: Gateway, request: Request) -> Answer:
        if any(each.method == "POST" for each in gateway.requests):
            found_out.set()
        return passed(gateway, request)

    gateway.fate = by_method(POST=interrupted, PUT=other, GET=other, DELETE=other)
    with subprocess.Popen(
        [*command, "--producer", "till"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    ) as process:  # fmt: skip
        shown, _ = process.communicate('{"id":1}\n', 60)

    gateway.deliver()
    assert (process.returncode, said in shown) == (code, True), shown
    assert len(events_of(publisher.store)) == (code == 0)
