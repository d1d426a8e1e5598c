"""Where a program's events are, batches that wait in line, and batches that are published again."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.fix_audit import whole
from tests.fix_middlemen import answer_lost, lost, passed
from tests.fix_producer import by_method, large, published, served
from tests.fix_publish import events_of
from tests.fix_raw_server import RawServer, ok
from tests.patience import eventually
from zeh_spark.client.http.publish_client import PublishClient
from zeh_spark.client.options.client_options import ClientOptions
from zeh_spark.client.options.given import parse
from zeh_spark.errors import (
    OptionError,
    OutcomeUnknownError,
    PublisherError,
    PublishError,
    UnavailableError,
)
from zeh_spark.publish import AddedEvent, Producer, PublishedNumbers
from zeh_spark.service.retention.rules import prune
from zeh_spark.service.store.interface import Retention
from zeh_spark.wire.partitioning import partition_of

pytestmark = pytest.mark.usefixtures("impatient")


def places(added: dict[str, AddedEvent]) -> dict[str, tuple[int, int]]:
    return {data: (event.partition, event.sequence) for data, event in added.items()}


# Where events are


def test_each_event_tells_its_partition_and_number(publisher, till):
    """I keep the numbers of my events beside my own records (EH: numbers after a send)."""
    with till.batch() as batch:
        before = {"0": batch.add('"0"')}
    with till.batch() as batch:
        added = {f"e{n}": batch.add(f'"e{n}"', key=n % 7) for n in range(3_000)}
        added |= {f"f{n}": batch.add(f'"f{n}"') for n in range(2_500)}
        with pytest.raises(RuntimeError, match="not known to be published"):
            added["e0"].sequence  # noqa: B018
    assert places(before | added) == served(publisher)


def test_events_of_a_batch_that_was_published_before_do_not_tell(publisher, till):
    """They may have another order there, so the receipt has to do."""
    with till.batch("day") as first:
        one = {data: first.add(f'"{data}"', partition=0) for data in "ab"}
    with till.batch("day") as again:
        other = [again.add(f'"{data}"', partition=0) for data in "ba"]
    assert {"a": (0, 0), "b": (0, 1)} == places(one) == served(publisher)
    for each in other:
        with pytest.raises(RuntimeError, match="'day' was published before"):
            each.sequence  # noqa: B018
    assert again.receipt.ranges == first.receipt.ranges


def test_event_of_a_commit_whose_answer_was_lost_tells_once_it_is_found_out(
    publisher, gateway, far
):
    gateway.fate = by_method(POST=answer_lost)
    with pytest.raises(OutcomeUnknownError), far.batch() as batch:
        event = batch.add('"a"')
    gateway.fate = passed
    assert batch.settle()
    assert places({"a": event}) == served(publisher)


# Publishing again


@pytest.mark.parametrize("name", [None, "day"])
def test_batch_that_was_not_published_is_published_again(publisher, gateway, far, name):
    """The publisher was away for a while; I need not make the events again (EH: send again)."""
    if name:
        published(far, '"0"', name="other")  # the partition count is known
    before = served(publisher)
    gateway.fate = lost
    with pytest.raises(UnavailableError), far.batch(name, keep=True) as batch:
        added = {"a": batch.add('"a"', key="k"), "b": batch.add('"b"')}
    with pytest.raises(UnavailableError):
        batch.publish_again()
    gateway.fate = passed
    receipt = batch.publish_again()
    assert receipt == batch.publish_again() == batch.receipt
    assert ("committed", 2) == (receipt.status, receipt.events)
    assert before | places(added) == served(publisher)
    assert 2 + bool(name) == len(events_of(publisher.store))


@pytest.mark.parametrize("name", [None, "day"])
def test_batch_that_was_published_is_not_published_again(publisher, gateway, far, name):
    """Its answer was lost: that is found out first."""
    gateway.fate = by_method(POST=answer_lost)
    with pytest.raises(OutcomeUnknownError), far.batch(name, keep=True) as batch:
        batch.add('"a"')
    gateway.fate = lost
    with pytest.raises(OutcomeUnknownError):
        batch.publish_again()
    gateway.fate = passed
    assert 1 == batch.publish_again().events
    assert [b'"a"'] == events_of(publisher.store)
    published(far, 1)


def test_only_whole_batches_that_keep_their_events_are_published_again(publisher, till):
    with till.batch() as plain:
        plain.add(1)
    with pytest.raises(ZeroDivisionError), till.batch(keep=True) as torn:
        torn.add(2)
        torn.add(1 / 0)
    for batch in (plain, torn):
        with pytest.raises(RuntimeError, match=r"producer.batch\(keep=True\)"):
            batch.publish_again()
    assert [b"1"] == events_of(publisher.store)


def test_events_keep_their_places_if_the_number_was_taken_meanwhile(publisher, gateway):
    """An event for any partition is told where it is, not where the first attempt had put it."""
    begins = {partition_of(f"till-{n}/0", 2) != partition_of(f"till-{n}/1", 2): n for n in range(9)}
    producer = Producer(f"{gateway.address}/orders", f"till-{begins[True]}", retryTimeout="1ms")
    assert producer.last.batch == -1
    gateway.fate = lost
    with pytest.raises(UnavailableError), producer.batch(keep=True) as batch:
        added = {f"e{n}": batch.add(f'"e{n}"') for n in range(3)}
    gateway.fate = passed
    with producer.batch() as between:
        added["between"] = between.add('"between"')
    assert 1 == batch.publish_again().batch
    assert places(added) == served(publisher)


def test_batch_whose_add_failed_is_not_published_again(publisher, gateway, far):
    """The event that was being added may be missing, whatever the block does about the error."""
    published(far, 0, name="other")
    gateway.fate = lost
    with pytest.raises(UnavailableError), far.batch(keep=True) as batch:
        with pytest.raises(UnavailableError):
            for event in large(400):
                batch.add(event)
    gateway.fate = passed
    with pytest.raises(RuntimeError, match="cannot be published again"):
        batch.publish_again()
    assert [b"0"] == events_of(publisher.store)


def test_refused_batch_is_refused_again(publisher, till):
    """Other events under a name stay refused, and nothing is left open."""
    published(till, 1, name="day")
    with pytest.raises(PublishError), till.batch("day", keep=True) as batch:
        batch.add(2)
    with pytest.raises(PublishError) as raised:
        batch.publish_again()
    assert ("batch-conflict", [b"1"]) == (raised.value.problem, events_of(publisher.store))
    published(till, 3)


# In line


def test_batches_of_threads_wait_in_line(publisher, till):
    """Threads share a producer; their batches come one after the other (EH-07)."""
    order: list[int] = []

    def later(number: int) -> None:
        with till.batch() as batch:
            order.append(number)
            batch.add(number)

    with ThreadPoolExecutor(5) as threads, till.batch() as batch:
        batch.add(0)
        for number in range(1, 6):
            threads.submit(later, number)
            eventually(lambda number=number: len(till._turn._line) > number)
        assert [] == order
    assert [1, 2, 3, 4, 5] == order
    assert [b"0", b"1", b"2", b"3", b"4", b"5"] == events_of(publisher.store)


def test_wait_for_another_batch_ends(publisher):
    """Nothing of the batch is published, and the producer continues."""
    till = Producer(publisher.url, "till-7", max_wait=0.05)
    with till.batch() as batch, ThreadPoolExecutor(1) as thread:
        batch.add(1)
        second = thread.submit(published, till, 2)
        with pytest.raises(TimeoutError, match=r"other batches were open for 0\.05 s"):
            second.result(60)
    published(till, 3)
    assert [b"1", b"3"] == events_of(publisher.store)


# A peer that is no publisher


def client_of(server: RawServer) -> PublishClient:
    return PublishClient(parse(ClientOptions, {"url": f"{server.url}/orders"}))


@pytest.mark.parametrize("answer", [b"{}", b'{"producers": 7, "receipts": [1], "lastBatch": "x"}'])
def test_answer_of_another_form_is_a_named_error(raw_server, answer):
    """A wrong address is an error that says so, not a KeyError (EH-03)."""
    raw_server.respond = lambda request: ok(answer)
    client = client_of(raw_server)
    for call in (
        lambda: client.producer("p"),
        lambda: list(client.producers()),
        lambda: client.receipts("p", 5),
        lambda: Producer(f"{raw_server.url}/orders", "p").last,
    ):
        with pytest.raises(PublisherError, match="Check that this is the address of a publisher"):
            call()


def test_list_of_producers_that_never_ends_is_an_error(raw_server):
    """A publisher that gives the same page again does not keep a command for ever."""
    state = {"producer": "p", "lastBatch": 0, "receipts": 1, "deleted": False, "incarnation": None}
    body = json.dumps({"producers": [{**state, "time": None}]}).encode()
    raw_server.respond = lambda request: ok(body) if len(raw_server.requests) < 9 else ok(b"{}")
    with pytest.raises(PublisherError, match=r"after producer 'p' the list .* does not end"):
        list(client_of(raw_server).producers())


def test_a_name_that_has_expired_is_refused_by_name(publisher, till):
    """A batch of last year is not published twice; I hear that it is there. [PU-08]"""
    published(till, b"7", name="invoice-7")
    publisher.store.expire_names("orders", publisher.store.now() + 1, 9)
    with pytest.raises(PublishError) as refused:
        published(till, b"7", name="invoice-7")
    said = str(refused.value)
    assert "batch-expired" == refused.value.problem
    assert "a batch 'invoice-7' of producer" in said and "do not publish it again" in said
    assert [b"7"] == events_of(publisher.store)


# Starting numbers


def test_a_producer_continues_the_numbers_of_another_system(publisher):
    """In the partitions that I name; the same program may be started again (EH-13)."""
    for start in range(2):
        producer = Producer(publisher.url, "moved", starting_sequence={0: 1000})
        assert start * 3 == producer.last.events
        with producer.batch() as batch:
            added = [batch.add(f'"{start}{n}"', partition=n % 2) for n in range(3)]
        assert [1000 + 2 * start, start, 1001 + 2 * start] == [each.sequence for each in added]

    assert {0: PublishedNumbers(1000, 1003), 1: PublishedNumbers(0, 1)} == producer.numbers()
    first = {"00": (0, 1000), "01": (1, 0), "02": (0, 1001)}
    assert first.items() <= served(publisher).items()
    assert 6 == whole(publisher.url).events
    other = Producer(publisher.url, "moved", starting_sequence={0: 0})
    with pytest.raises(PublishError, match="it began with 1000 there") as told:
        published(other, "1")
    assert "starting-sequence" == told.value.problem
    absent = Producer(publisher.url, "new", starting_sequence={2: 5})
    with pytest.raises(PublishError, match="startingSequence is '2'"):
        published(absent, "1")


def test_named_batches_and_removed_beginnings_pass_an_audit_with_starting_numbers(publisher):
    producer = Producer(publisher.url, "moved", starting_sequence={0: 7, 1: 9})
    for number in range(4):
        with producer.batch() as batch:
            batch.add(f"{number}", partition=number % 2)
    with producer.batch("named") as batch:
        batch.add("5", partition=0)
    assert 5 == whole(publisher.url).events
    prune(publisher.store, "orders", Retention(bytes=1))
    whole(publisher.url)


@pytest.mark.parametrize("given", [{0: -1}, {-1: 0}, {0: 1.0}, {0: True}, {"0": 1}, {0: 2**53}])
def test_starting_numbers_that_make_no_sense_are_named(publisher, given):
    with pytest.raises(OptionError, match="starting_sequence="):
        Producer(publisher.url, "moved", starting_sequence=given)  # type: ignore[arg-type]
