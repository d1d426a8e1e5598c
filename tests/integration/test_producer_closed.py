"""A producer that is closed: what was begun ends first, and then nothing is sent any more."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from tests.fix_middlemen import answer_lost, lost, passed
from tests.fix_producer import by_method, published
from tests.fix_publish import events_of
from tests.patience import PATIENCE, Halt, eventually
from zeh_spark.errors import OptionError, OutcomeUnknownError, UnavailableError
from zeh_spark.publish import Producer

pytestmark = pytest.mark.usefixtures("impatient")


def connections(port: int) -> int:
    """The connections of this process to a port."""
    found = psutil.Process(os.getpid()).net_connections("tcp")
    return sum(bool(each.raddr) and each.raddr.port == port for each in found)


def test_a_closed_producer_sends_nothing(publisher, gateway):
    """The end of its block closes it and its connections; what it knows stays (EH-19)."""
    with Producer(f"{gateway.address}/orders", "till-7") as producer:
        published(producer, 1)
        assert not producer.closed and connections(gateway.port)
    asked = len(gateway.requests)
    assert producer.closed and not connections(gateway.port)
    calls = (
        lambda: published(producer, 2),
        lambda: published(producer, 2, name="day"),
        producer.buffered,
        producer.numbers,
        lambda: Producer.last.fget(unused),  # type: ignore[attr-defined]
    )
    unused = Producer(f"{gateway.address}/orders", "till-8")
    unused.close()
    for call in calls:
        with pytest.raises(RuntimeError, match=r"is closed\. Make another one"):
            call()
    producer.close()
    assert (asked, 1) == (len(gateway.requests), producer.last.events)
    assert [b"1"] == events_of(publisher.store)


def test_connections_of_others_stay(publisher, till):
    """Connections belong to the process: another producer's request is not cut off."""
    with Producer(publisher.url, "till-8") as other, till.batch() as batch:
        batch.add(1)
        published(other, 2)
    assert batch.receipt and published(till, 3)


def test_a_batch_that_is_open_ends_first(publisher, till):
    """Closing waits for another thread's batch; my own has to end before."""
    halt = Halt()

    def fill() -> None:
        with till.batch() as batch:
            halt()
            batch.add(1)

    with ThreadPoolExecutor(2) as threads:
        filling = threads.submit(fill)
        assert halt.reached.wait(PATIENCE)
        closing = threads.submit(till.close)
        eventually(lambda: len(till._turn._line) == 2)
        assert not closing.done() and not till.closed
        halt.go.set()
        filling.result(PATIENCE)
        closing.result(PATIENCE)
    assert (True, [b"1"]) == (till.closed, events_of(publisher.store))

    with Producer(publisher.url, "till-8") as producer, producer.batch() as batch:
        batch.add(2)
        with pytest.raises(RuntimeError, match="has an open batch in this thread"):
            producer.close()
        assert not producer.closed
    assert batch.receipt.events == 1


def test_what_became_of_a_commit_can_be_asked_after_the_end(publisher, gateway):
    """An error that leaves the block leaves the question, and it is answered."""
    batch = None
    with pytest.raises(OutcomeUnknownError):
        with Producer(f"{gateway.address}/orders", "till-7", retryTimeout="1ms") as producer:
            batch = producer.batch(keep=True)
            with batch:
                batch.add(1)
                gateway.fate = by_method(POST=answer_lost)
    gateway.fate = passed
    assert batch and (1, True) == (batch.publish_again().events, producer.closed)
    assert [b"1"] == events_of(publisher.store)


def test_the_buffered_producer_is_closed_with_it(publisher, gateway):
    """What it has is published; if there is no time for that, retries end."""
    with Producer(publisher.url, "till-7") as producer:
        for name, value in (("linger", "soon"), ("max_events", 0), ("max_wait", -1)):
            with pytest.raises(OptionError, match=f"{name}=.* must be a number from"):
                producer.buffered(**{name: value})
        events = producer.buffered(linger=3600)
        sent = events.send(1)
        with pytest.raises(RuntimeError, match=r"has a buffered one\. Close that first"):
            producer.buffered()
    assert events.closed and sent.result(0).sequence == 0
    with pytest.raises(RuntimeError, match="the buffered producer of 'till-7' is closed"):
        events.send(2)

    producer = Producer(f"{gateway.address}/orders", "till-8", retryTimeout="1h")
    events = producer.buffered(linger=0)
    events.send(2).result(PATIENCE)
    gateway.fate = lost
    asked = len(gateway.requests)
    sent = events.send(3)
    eventually(lambda: len(gateway.requests) > asked)
    with pytest.raises(TimeoutError, match="the outcome of 1 event is not known"):
        producer.close(0.05)
    with pytest.raises(UnavailableError):
        sent.result(PATIENCE)
    assert producer.closed and [b"1", b"2"] == events_of(publisher.store)
