"""Single events of a service go out in batches: in order, once, and each future tells the truth."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait

import pytest

from tests.fix_audit import whole
from tests.fix_middlemen import Fate, Gateway, answer_lost, held, lost, passed
from tests.fix_producer import large, published, served
from tests.fix_publish import events_of
from tests.fix_raw_server import Answer, Request
from tests.integration.test_publish_faults import FATES
from tests.patience import PATIENCE, Halt, eventually
from zeh_spark.errors import OutcomeUnknownError, PublishError, RowError, UnavailableError
from zeh_spark.publish import BufferedProducer, Producer, PublishedEvent

pytestmark = pytest.mark.usefixtures("impatient")


@pytest.fixture
def events(far: Producer) -> Iterator[BufferedProducer]:
    """Publishes through the gateway, without retries of a request, and at once."""
    with far.buffered(linger=0) as made:
        yield made


def results(sent: list[Future[PublishedEvent]]) -> list[PublishedEvent]:
    assert not wait(sent, PATIENCE).not_done
    return [each.result() for each in sent]


def posts(gateway: Gateway) -> int:
    return sum(each.method == "POST" for each in gateway.requests)


def slowed(halt: Halt) -> Fate:
    """The first commit takes until the halt is over."""

    def fate(gateway: Gateway, request: Request) -> Answer:
        if request.method == "POST":
            halt()
        return passed(gateway, request)

    return fate


# What is published


def test_single_events_are_published_in_the_order_in_which_they_were_sent(publisher):
    """I send events as they happen, from two threads, and learn where each of them is (EH-18)."""
    with Producer(publisher.url, "till-7") as producer, producer.buffered(linger=0.01) as events:

        def send(name: str) -> dict[str, Future[PublishedEvent]]:
            return {f"{name}{n}": events.send(f'"{name}{n}"', key=name) for n in range(3_000)}

        with ThreadPoolExecutor(2) as threads:
            first, second = threads.map(send, "ab")
        anywhere = {f"c{n}": events.send(f'"c{n}"') for n in range(1_200)}
    sent = {name: future.result(0) for name, future in (first | second | anywhere).items()}

    assert served(publisher) == {name: (e.partition, e.sequence) for name, e in sent.items()}
    for each in (first, second):
        numbers = [sent[name].sequence for name in each]
        assert numbers == sorted(numbers)
    batches = Counter(each.receipt.batch for each in sent.values())
    receipts = {each.receipt.batch: each.receipt for each in sent.values()}
    assert batches == {number: receipts[number].events for number in batches}
    assert producer.last.events == 7_200 == whole(publisher.url).events
    assert len(batches) < 720


@pytest.mark.parametrize(
    ("data", "place", "reason"),
    [
        (None, {}, "null cannot be an event's data"),
        ("placed", {}, "not JSON"),
        ('"%s"' % ("x" * 70_000), {}, "at most 65,183 are allowed"),
        (1, {"partition": 2}, "there is no partition 2"),
        (1, {"headers": {"a": 1}}, "names and values are text"),
    ],
)  # fmt: skip
def test_event_that_cannot_be_published_is_refused_at_once(publisher, events, data, place, reason):
    """I see why, it was not taken, and the others are not touched."""
    before = events.send(1, partition=0)
    with pytest.raises(RowError, match=f"the event cannot be published: .*{reason}") as raised:
        events.send(data, **place)
    after = events.send(2, partition=0)
    assert [0, 1] == [each.sequence for each in results([before, after])]
    assert (None, [b"1", b"2"]) == (raised.value.row, events_of(publisher.store))


def test_event_that_was_added_or_sent_is_not_added_again(publisher, till):
    """What stands for an event is no data: it would be another event, and an empty one (EH-14)."""
    with till.batch() as batch:
        added = batch.add(1)
        with pytest.raises(RowError, match=r"was added before\. Give the event's data"):
            batch.add(added)
    with till.buffered(linger=0) as events:
        sent = events.send(2)
        for each in (added, sent.result(PATIENCE)):
            with pytest.raises(RowError, match=r"was added before\. Give the event's data"):
                events.send(each)
        with pytest.raises(RowError, match="cannot be rendered as JSON"):
            events.send(sent)
    assert [b"1", b"2"] == events_of(publisher.store)


def test_an_event_waits_for_others_until_it_is_flushed(publisher, gateway, far):
    """`linger` makes larger batches; `flush` and the end of the block do not wait for it."""
    with far.buffered(linger=3600) as events:
        first = [events.send(number) for number in range(3)]
        assert posts(gateway) == 0
        events.flush(PATIENCE)
        assert [True] * 3 == [each.done() for each in first]
        last = [events.send(3)]
        published(Producer(publisher.url, "till-8"), 9)  # time to publish it, if it did not wait
        last.append(events.send(4))
    assert (2, {0, 1}) == (posts(gateway), {e.receipt.batch for e in results(first + last)})
    numbers = [b"0", b"1", b"2", b"3", b"4"]
    assert numbers == events_of(publisher.store, producer="till-7")


def test_cancelling_changes_nothing(publisher, gateway, events):
    """An event that was taken is published, whatever becomes of the future (EH-15)."""
    halt = Halt()
    gateway.fate = slowed(halt)
    first = events.send(1)
    assert halt.reached.wait(PATIENCE)
    queued = events.send(2)
    assert (False, False) == (first.cancel(), queued.cancel())
    halt.go.set()
    assert [0, 1] == [each.receipt.batch for each in results([first, queued])]
    assert [b"1", b"2"] == events_of(publisher.store)


# Answers are lost, and the publisher is away


@pytest.mark.parametrize("seed", range(4))
def test_each_event_is_there_once_whatever_is_lost(publisher, gateway, far, seed):
    """Requests and answers are lost, held back and repeated: no future fails, and none lies."""
    chance = random.Random(seed)
    lock = threading.Lock()
    left = 60

    def fate(gateway: Gateway, request: Request) -> Answer:
        nonlocal left
        with lock:
            left -= 1
            chosen = chance.choice([passed, passed, *FATES.values()]) if left > 0 else passed
        return chosen(gateway, request)

    gateway.fate = fate
    with far.buffered(linger=0, max_events=10) as events:

        def send(name: str) -> dict[str, Future[PublishedEvent]]:
            return {f"{name}{n}": events.send(f'"{name}{n}"', key=name) for n in range(150)}

        with ThreadPoolExecutor(2) as threads:
            sent = [*threads.map(send, "ab")]
        if gateway.held:
            gateway.deliver()
    gateway.deliver()
    found = served(publisher)
    for each in sent:
        where = {name: future.result(0) for name, future in each.items()}
        assert {
            name: (e.partition, e.sequence) for name, e in where.items()
        }.items() <= found.items()
        assert sorted(e.sequence for e in where.values()) == [e.sequence for e in where.values()]
    assert 300 == len(found) == whole(publisher.url).events


@pytest.mark.parametrize("fate", [answer_lost, held])
def test_a_future_is_pending_until_it_is_known(publisher, gateway, events, fate):
    """The future stays pending, and so do those of later events (EX-02)."""

    def away(gateway: Gateway, request: Request) -> Answer:
        if not posts(gateway):
            return passed(gateway, request)
        first_commit = request.method == "POST" and posts(gateway) == 1
        return (fate if first_commit else lost)(gateway, request)

    gateway.fate = away
    first = events.send(1)
    eventually(lambda: posts(gateway) and len(gateway.requests) > 12)  # it asks, in vain
    second = events.send(2)
    assert (False, False) == (first.done(), second.done())
    gateway.fate = passed
    assert [0, 1] == [each.receipt.batch for each in results([first, second])]
    gateway.deliver()
    assert [b"1", b"2"] == events_of(publisher.store)


def test_what_was_never_sent_goes_again_under_its_number(publisher, gateway, events):
    """The publisher was away for a while, and I did nothing."""
    gateway.fate = lost
    sent = [events.send(number) for number in range(3)]
    eventually(lambda: len(gateway.requests) > 10)
    assert not any(each.done() for each in sent)
    gateway.fate = passed
    assert {0} <= {each.receipt.batch for each in results(sent)} <= {0, 1}
    assert [b"0", b"1", b"2"] == events_of(publisher.store)


# Refusals


def test_a_refusal_ends_it_and_fails_all_that_waits(publisher, gateway, far, caplog):
    """Another program took the name: each later call raises the refusal."""
    halt = Halt()
    gateway.fate = slowed(halt)
    with pytest.raises(PublishError) as closed:
        with far.buffered(linger=0) as events:
            first = events.send(1)
            assert halt.reached.wait(PATIENCE)
            queued = [events.send(number) for number in (2, 3)]
            published(Producer(publisher.url, "till-7"), 9)
            halt.go.set()
            for call in (lambda: events.flush(PATIENCE), lambda: events.send(4)):
                with pytest.raises(PublishError):
                    call()
    for each in [first, *queued]:
        with pytest.raises(PublishError) as raised:
            each.result(0)
        assert "number-taken" == raised.value.problem == closed.value.problem
    assert "producer till-7 has ended, and 3 events fail" in caplog.text
    assert [b"9"] == events_of(publisher.store)
    with pytest.raises(PublishError, match="somebody else used the name"):
        published(far, 5)
    with Producer(publisher.url, "till-7") as again, again.buffered(linger=0) as events:
        assert (1, 1) == (again.last.events, events.send(6).result(PATIENCE).receipt.batch)


def test_the_error_of_the_block_is_not_hidden(publisher, gateway, far):
    """A refusal is in the futures; what my own code raised is what I see."""
    with pytest.raises(ZeroDivisionError), far.buffered(linger=0) as events:
        published(Producer(publisher.url, "till-7"), 9)
        sent = events.send(1)
        raise ZeroDivisionError
    assert isinstance(sent.exception(0), PublishError)


# There is room for so many


@pytest.mark.parametrize("most", ["events", "bytes"])
def test_sending_waits_if_the_publisher_is_slow(publisher, gateway, far, most, monkeypatch):
    """Memory is bounded; who cannot wait is told, and the event was not taken."""
    monkeypatch.setattr("zeh_spark.client.buffered_producer.MOST_BYTES", 200_000)
    data = ["1", "2", "3"] if most == "events" else large(3)
    halt = Halt()
    gateway.fate = slowed(halt)
    with far.buffered(linger=0, max_events=3 if most == "events" else 99, max_wait=0.05) as events:
        sent = [events.send("0")]
        assert halt.reached.wait(PATIENCE)
        sent += [events.send(each) for each in data]
        more = large(1)[0]
        with pytest.raises(TimeoutError, match=r"was not taken: 3 events wait for the publisher"):
            events.send(more)
        events._max_wait = PATIENCE
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(events.send, more)
            eventually(lambda: events._hurry)
            assert not waiting.done()
            halt.go.set()
            sent.append(waiting.result(PATIENCE))
    assert [0, 1, 1, 1, 2] == [each.receipt.batch for each in results(sent)]
    assert ["0", *data, more] == [each.decode() for each in events_of(publisher.store)]


def away_from_commit(fate: Fate) -> Fate:
    """The publisher is away from the first commit on, which has this fate."""

    def away(gateway: Gateway, request: Request) -> Answer:
        if not posts(gateway):
            return passed(gateway, request)
        return (fate if request.method == "POST" else lost)(gateway, request)

    return away


@pytest.mark.parametrize("fate", [lost, answer_lost], ids=["not sent", "unknown"])
def test_flush_and_close_have_an_end(publisher, gateway, far, fate):
    """I end in time: I am told of each event whether it was not published, or is not known."""
    gateway.fate = away_from_commit(fate) if fate is answer_lost else lost
    events = far.buffered(linger=0)
    first = events.send(1)
    eventually(lambda: len(gateway.requests) > 10)
    queued = events.send(2)
    with pytest.raises(TimeoutError, match=r"after 0\.05 s the outcome of 2 events is not known"):
        events.flush(0.05)
    assert not first.done() and not events.closed
    with pytest.raises(TimeoutError, match="The futures of `send` will tell it"):
        events.close(0.05)
    expected = UnavailableError if fate is lost else OutcomeUnknownError
    assert expected is type(first.exception(PATIENCE))
    with pytest.raises(UnavailableError, match="was not published, and never will be"):
        queued.result(PATIENCE)
    with pytest.raises(expected):
        events.send(3)
    assert events.closed
    gateway.fate = passed
    last = Producer(publisher.url, "till-7").last
    assert (0 if fate is lost else 1) == last.events == len(events_of(publisher.store))


@pytest.mark.parametrize("fate", [held, answer_lost])
def test_a_producer_continues_after_it_gave_up_a_batch(publisher, gateway, far, fate):
    """I close in time, and continue when the publisher is back, where `last` says: nobody else has
    the batch in doubt, so the producer finds out what became of it.
    """
    gateway.fate = away_from_commit(fate)
    events = far.buffered(linger=0)
    first = events.send(1)
    eventually(lambda: posts(gateway))
    with pytest.raises(TimeoutError):
        events.close(0.05)
    assert isinstance(first.exception(PATIENCE), OutcomeUnknownError)
    with pytest.raises(OutcomeUnknownError, match="still not known"):
        assert far.last
    with pytest.raises(OutcomeUnknownError, match="still not known"):
        far.buffered()

    gateway.fate = passed
    before = [b"1"] if fate is answer_lost else []
    assert len(before) == far.last.events
    assert len(before) == published(far, 2).batch
    with far.buffered(linger=0) as again:
        assert len(before) + 1 == again.send(3).result(PATIENCE).receipt.batch
    gateway.deliver()
    assert [*before, b"2", b"3"] == events_of(publisher.store)


def test_nothing_more_is_sent_after_the_end(publisher, gateway, far):
    """I closed in time, and the commit on its way succeeds later: no other one follows it."""
    halt = Halt()
    gateway.fate = slowed(halt)
    events = far.buffered(linger=0)
    first = events.send(1)
    assert halt.reached.wait(PATIENCE)
    queued = events.send(2)
    with pytest.raises(TimeoutError, match="the outcome of 2 events is not known"):
        events.close(0.05)
    halt.go.set()
    assert 0 == first.result(PATIENCE).receipt.batch
    with pytest.raises(UnavailableError, match="it was closed before it could be sent"):
        queued.result(PATIENCE)
    assert [b"1"] == events_of(publisher.store)


def test_a_callback_that_exits_changes_nothing_for_other_events(publisher):
    """All were published, so each future says so, and later events are published, too."""

    def leave(_: object) -> None:
        sys.exit("a callback of mine")

    with Producer(publisher.url, "till-7") as producer, producer.buffered(linger=9) as events:
        sent = [events.send(n) for n in range(5)]
        for each in sent:
            each.add_done_callback(leave)
        events.flush(PATIENCE)
        sent.append(events.send(5))
        events.flush(PATIENCE)

    assert len(results(sent)) == len(events_of(publisher.store)) == 6


def test_what_a_callback_may_do(publisher, gateway, far):
    """It may send the next event; it is told what it cannot wait for."""
    said: list[BaseException] = []
    follow: list[Future[PublishedEvent]] = []
    with far.buffered(linger=0, max_events=1) as events:

        def then(done: Future[PublishedEvent]) -> None:
            follow.append(events.send(2))
            for call in (events.flush, events.close, lambda: events.send(3)):
                try:
                    call()
                except (RuntimeError, TimeoutError) as exc:
                    said.append(exc)

        halt = Halt()
        gateway.fate = slowed(halt)
        events.send(1).add_done_callback(then)
        halt.go.set()
        eventually(lambda: len(said) == 3)
        results(follow)
    assert [RuntimeError, RuntimeError, TimeoutError] == [type(each) for each in said]
    assert [b"1", b"2"] == events_of(publisher.store)


# Processes


def test_it_does_not_go_along_into_a_forked_process(publisher, events, monkeypatch):
    """The thread is the parent's; the child is told to make its own."""
    with monkeypatch.context() as forked:
        forked.setattr("os.getpid", lambda: -1)
        for call in (lambda: events.send(1), events.flush, events.close):
            with pytest.raises(RuntimeError, match="Make one after the fork"):
                call()
    results([events.send(2)])
    assert [b"2"] == events_of(publisher.store)


PROGRAM = """
import logging, os, sys
from zeh_spark.publish import Producer
from zeh_spark.client import buffered_producer
logging.basicConfig(level="WARNING", format="%(levelname)s %(message)s")
buffered_producer.AT_EXIT = float(sys.argv[2])
events = Producer(sys.argv[1], "till-7", retryTimeout="1ms").buffered(linger=3600)
events.send(1)
if sys.argv[3] == "fork" and os.fork() == 0:
    sys.exit()
if sys.argv[3] == "fork":
    os.wait()
print("sent", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("way", ["alone", "fork", "away"])
def test_a_program_that_forgets_to_close_is_warned(publisher, gateway, way):
    """Its last events are published at the exit; if they cannot be, the log says how many."""
    seconds = "0.2" if way == "away" else f"{PATIENCE}"
    command = [sys.executable, "-c", PROGRAM, f"{gateway.address}/orders", seconds, way]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout and program.stdout.readline() == "sent\n"
        if way == "away":
            gateway.fate = lost
        _, logged = program.communicate("", PATIENCE)
    assert 1 == logged.count("WARNING producer till-7 was not closed, with 1 event to publish")
    failed = "TimeoutError: producer 'till-7': after 0.2 s the outcome of 1 event is not known"
    assert (way == "away") == (failed in logged), logged
    assert ([] if way == "away" else [b"1"]) == events_of(publisher.store)


# With a schema


def test_an_event_that_breaks_the_schema_fails_alone(publisher):
    """The others are published once, in their order, without a gap in the batches (CN-06)."""
    publisher.store.set_schema("orders", b'{"type": "integer"}')
    with Producer(publisher.url, "till-7") as producer:
        with producer.buffered(linger=0.01, skip_wrong=True) as events:
            sent = [
                events.send(f"{n}" if n % 7 else f'"{n}"', key=(None, "a", "b")[n % 3])
                for n in range(5_000)
            ]
            events.flush()
            events.send("{}")
        assert producer.last.events == 5_000 - 715
    wrong = [each.exception(0) for n, each in enumerate(sent) if n % 7 == 0]
    assert all(isinstance(each, RowError) for each in wrong)
    assert 'the event: \'"7" is not of type "integer"\'' in str(wrong[1])
    good = {n: sent[n].result(0) for n in range(5_000) if n % 7}
    assert {n: (e.partition, e.sequence) for n, e in good.items()} == served(publisher)
    for key in (1, 2):
        numbers = [e.sequence for n, e in good.items() if n % 3 == key]
        assert numbers == sorted(numbers)
    batches = {each.receipt.batch for each in good.values()}
    assert batches == set(range(len(batches)))


def test_large_events_that_break_the_schema_fail_alone(publisher):
    """Also those of an upload that is sent while the batch is still being filled (CN-06)."""
    publisher.store.set_schema("orders", b'{"items": {"maxLength": 50000}}')
    sizes = [20_000 if n % 50 else 30_000 for n in range(300)]
    texts = [random.Random(n).randbytes(size).hex() for n, size in enumerate(sizes)]
    with Producer(publisher.url, "till-7") as producer:
        with producer.buffered(linger=1, skip_wrong=True) as events:
            sent = [events.send([each]) for each in texts]
        assert producer.last.events == 300 - 6
    failed = [n for n, each in enumerate(sent) if each.exception(0)]
    assert failed == [0, 50, 100, 150, 200, 250]


def test_an_event_that_breaks_the_schema_ends_a_program_that_counts(publisher):
    """Unless I say otherwise: it would continue at `last.events`, and send one twice (CN-06)."""
    publisher.store.set_schema("orders", b'{"type": "integer"}')
    with Producer(publisher.url, "till-7") as producer:
        events = producer.buffered(linger=0)
        assert events.send(1).result(PATIENCE).sequence == 0
        wrong = events.send('"x"')
        assert isinstance(wrong.exception(PATIENCE), PublishError)
        with pytest.raises(PublishError, match="wrong-events"):
            events.close()
        assert producer.last.events == 1
