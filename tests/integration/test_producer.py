"""Publishing without Spark: each batch whole and once, and a clear word about each."""

from __future__ import annotations

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.fix_producer import large, published, refusal
from tests.fix_publish import Who, events_of
from zeh_spark.errors import OptionError, PublishError, RowError
from zeh_spark.publish import Producer
from zeh_spark.wire import partitioning

pytestmark = pytest.mark.usefixtures("impatient")


# What is published


def test_batch_is_there_with_its_receipt_when_the_block_ends(publisher, till):
    """I add events as I have them, and learn where they stand."""
    with till.batch() as batch:
        batch.add({"order": 17}, key="c-4", headers={"type": "placed", "zeh-x": "dropped"})
        batch.add('{"order" :  18}', partition=1)
        batch.add(b"[19]", partition=1)
        assert [] == events_of(publisher.store)
    lines = publisher.get("n=2&cursor0=_first&cursor1=_first&headers=_all").lines
    events = [each for each in lines if "data" in each]
    own = [
        {name: value for name, value in each["headers"].items() if not name.startswith("zeh-")}
        for each in events
    ]
    found = [(e["partition"], e["data"], headers) for e, headers in zip(events, own, strict=True)]
    of_key = partitioning.partition_of("c-4", 2)
    expected = [(of_key, {"order": 17}, {"type": "placed"}), (1, {"order": 18}, {}), (1, [19], {})]
    assert sorted(expected, key=str) == sorted(found, key=str)
    receipt = batch.receipt
    assert ("committed", 0, 3) == (receipt.status, receipt.batch, receipt.events)
    assert 3 == sum(each.last - each.first + 1 for each in receipt.ranges)
    assert receipt == pickle.loads(pickle.dumps(receipt))


def test_nothing_is_published_if_the_block_raises(publisher, gateway):
    """My program's own errors leave nothing behind, not even uploads."""
    producer = Producer(f"{gateway.address}/orders", "till-7")
    with pytest.raises(ZeroDivisionError), producer.batch() as batch:
        for event in large(200):
            batch.add(event)
        raise ZeroDivisionError
    methods = [each.method for each in gateway.requests]
    assert (True, "DELETE") == ("PUT" in methods, methods[-1])
    assert 0 == publisher.store.release("orders", "till-7", 0, producer.run)
    assert ([], 0) == (events_of(publisher.store), published(producer, 1).batch)


def test_uploads_go_out_while_events_are_added(gateway):
    """The memory of my service does not grow with a batch."""
    producer = Producer(f"{gateway.address}/orders", "till-7")
    with producer.batch() as batch:
        for event in large(800):
            batch.add(event)
        sent = [len(each.raw) for each in gateway.requests if each.method == "PUT"]
    assert len(sent) >= 3 and max(sent) < 6 << 20
    assert 800 == batch.receipt.events


def test_events_that_may_go_anywhere_reach_all_partitions(publisher, till):
    """They fill chunks one after the other, and small batches begin with different partitions."""
    partitions = {each.partition for number in range(20) for each in published(till, number).ranges}
    large = published(till, *range(3000))
    assert ({0, 1}, {0, 1}) == (partitions, {each.partition for each in large.ranges})


@pytest.mark.parametrize(
    ("data", "place", "reason"),
    [
        (None, {}, "null cannot be an event's data"),
        ("placed", {}, "not JSON"),
        ({"price": float("nan")}, {}, "cannot be rendered as JSON"),
        ('"%s"' % ("x" * 70_000), {}, "at most 65,183 are allowed"),
        ("[" * 600 + "]" * 600, {}, "nested 600 deep"),
        (1, {"key": "a", "partition": 1}, "'partition' and 'key' exclude each other"),
        (1, {"partition": 2}, "there is no partition 2"),
        (1, {"headers": {"a": 1}}, "names and values are text"),
        (1, {"headers": {"a": "\ud800"}}, "surrogates not allowed"),
    ],
)  # fmt: skip
def test_event_that_cannot_be_published_is_named(publisher, till, data, place, reason):
    """I see which one, and why, and nothing of the batch is published."""
    with pytest.raises(RowError, match=reason) as raised, till.batch() as batch:
        batch.add(1)
        batch.add(data, **place)
    assert isinstance(raised.value, ValueError)
    assert ("event 1 of the batch", 1) == (raised.value.what[:20], raised.value.row)
    assert [] == events_of(publisher.store)
    with pytest.raises(RuntimeError, match="not known to be published"):
        _ = batch.receipt


def test_who_catches_the_error_continues_without_that_event(publisher, till):
    """I may count bad events instead, inside the block."""
    with till.batch() as batch:
        for data in (1, None, 3):
            try:
                batch.add(data)
            except RowError as exc:
                bad = exc.row
    assert (1, 2, [b"1", b"3"]) == (bad, batch.receipt.events, events_of(publisher.store))


# Going on


def test_publisher_knows_how_far_a_producer_is(publisher, till):
    """I keep no state: after a crash a new start asks, and continues (EX-06, EX-07, EH-12)."""
    assert (-1, 0, None) == (till.last.batch, till.last.events, till.last.receipt)
    published(till, 1, 2)
    receipt = published(till, 3)
    again = Producer(publisher.url, "till-7")
    known = again.last
    assert (1, 3) == (known.batch, known.events) == (till.last.batch, till.last.events)
    for name in ("time", "run", "ranges"):
        assert getattr(receipt, name) == getattr(known.receipt, name)
    assert known == pickle.loads(pickle.dumps(known))
    assert 2 == published(again, 4).batch


def test_named_batch_adds_nothing_when_it_is_repeated(publisher, till):
    """I may publish a day again when in doubt; other events are refused (EH-01, EX-01, EX-03)."""
    first = published(till, 1, 2, name="2026-11-20")
    again = published(Producer(publisher.url, "till-7"), 2, 1, name="2026-11-20")
    assert ("committed", "already-committed") == (first.status, again.status)
    assert "batch-conflict" == refusal(till, 1, 3, name="2026-11-20")
    assert (first.run, [b"1", b"2"]) == (again.run, events_of(publisher.store))
    assert (0, -1) == (published(till, 4).batch, Producer(publisher.url, "till-8").last.batch)


def test_name_of_a_spark_query_is_refused(caller, till):
    """Its numbers are its own."""
    caller.publish(Who(producer="till-7"), 1)
    assert "incarnation-changed" == refusal(till, 2)


@pytest.mark.parametrize("name", ["a b", "", "a#b", ".."])
def test_names_are_plain(publisher, till, name):
    """A name that nobody can type again is refused at once."""
    for work in (lambda: Producer(publisher.url, name), lambda: till.batch(name)):
        with pytest.raises(OptionError):
            work()


def test_mistake_in_an_option_is_named(publisher):
    """As for Spark."""
    with pytest.raises(OptionError, match="did you mean 'retryTimeout'"):
        Producer(publisher.url, "till-7", retryTimeOuts="30s")


# Two at once


@pytest.mark.parametrize("event", [1, 2], ids=["the same event", "another"])
def test_second_of_two_that_begin_together_is_refused(publisher, event):
    """One is told that it did not publish, also if both mean the same event (PU-10, EH-11)."""
    one, two = (Producer(publisher.url, "till-7") for _ in range(2))
    assert -1 == one.last.batch == two.last.batch
    published(one, 1)
    assert ["number-taken"] * 2 == [refusal(two, event), refusal(two, 3)]
    assert [b"1"] == events_of(publisher.store)
    assert 1 == published(Producer(publisher.url, "till-7"), 4).batch


@pytest.mark.parametrize("event", [1, 2], ids=["the same event", "another"])
def test_producer_that_was_overtaken_is_fenced(publisher, event):
    """Who had published and is overtaken publishes no more until it has read its state (EH-11)."""
    old = Producer(publisher.url, "till-7")
    published(old, 0)
    published(Producer(publisher.url, "till-7"), 1)
    with pytest.raises(PublishError, match="another program publishes under this name") as raised:
        published(old, event)
    assert ("fenced", "fenced") == (raised.value.problem, refusal(old, event))
    assert ([b"0", b"1"], 0) == (events_of(publisher.store), old.last.batch)
    assert published(old, event, name="apart")


def test_one_batch_at_a_time(publisher, till):
    """A second open batch of one producer is an error at once, and the first continues (EH-14)."""
    with till.batch() as batch:
        batch.add(1)
        with pytest.raises(RuntimeError, match="'till-7' has an open batch"), till.batch():
            raise AssertionError
    with pytest.raises(RuntimeError, match="can be begun once"), batch:
        raise AssertionError
    with pytest.raises(RuntimeError, match="inside the batch's with block"):
        batch.add(2)
    assert (batch.receipt, [b"1"]) == (till.last.receipt, events_of(publisher.store))


def test_threads_may_fill_one_batch(publisher, till):
    """Their events are all there, each whole."""
    with till.batch() as batch, ThreadPoolExecutor(4) as threads:
        for begin in range(0, 2000, 500):
            threads.submit(lambda begin=begin: [batch.add(begin + n, key=n) for n in range(500)])
    assert list(range(2000)) == sorted(map(int, events_of(publisher.store)))


def test_producer_does_not_go_along_into_a_forked_process(till, monkeypatch):
    """Two processes with one identity would take each other's batches for their own; of a batch
    that was open at a fork the parent would hear that it was not published.
    """
    with till.batch() as batch:
        batch.add(1)
        with monkeypatch.context() as forked:
            forked.setattr("os.getpid", lambda: -1)
            with pytest.raises(RuntimeError, match="Make one after the fork"):
                batch.add(2)
    assert 1 == batch.receipt.events
    with monkeypatch.context() as forked:
        forked.setattr("os.getpid", lambda: -1)
        with pytest.raises(RuntimeError, match="Make one after the fork"):
            published(till, 1)
    assert 1 == published(till, 3).batch


def test_two_at_once_publish_what_they_were_told(publisher):
    """Fifty times both publish at the same moment: nothing is lost or doubled unnoticed (F7)."""
    rounds = threading.Barrier(2)

    def fifty(which: int) -> list[str]:
        told, producer = [], Producer(publisher.url, "till-7")
        for number in range(50):
            event = f"{number}" if number % 2 else f'"{which} {number}"'
            assert producer.last.batch >= -1
            rounds.wait(60)
            try:
                published(producer, event)
                told.append(event)
            except PublishError as exc:
                assert exc.problem in {"number-taken", "fenced"}
                producer = Producer(publisher.url, "till-7")
        return told

    with ThreadPoolExecutor(2) as threads:
        told = [*threads.map(fifty, range(2))]
    believed = sorted(told[0] + told[1])
    assert believed == sorted(each.decode() for each in events_of(publisher.store))
    assert all(told) and len(believed) >= 50
