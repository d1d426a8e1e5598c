"""A program that publishes, its network and its publisher, each of which fails: what it was told is
true, and what it does next by asking the publisher alone loses and doubles nothing.
"""

from __future__ import annotations

import itertools
import random
import signal
import subprocess
import sys
import threading
from concurrent.futures import Future
from contextlib import ExitStack, closing, suppress
from http.client import HTTPException

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fix_middlemen import Fate, Gateway, answer_lost, held, lost, passed
from tests.fix_publish import events_of
from tests.fix_publisher import HERE, served
from tests.fix_raw_server import Answer, Request
from tests.integration.test_publish_crashes import check_numbers
from tests.integration.test_publish_faults import FATES as FAULTS
from tests.patience import PATIENCE
from tests.ports import free_port
from zeh_spark.errors import OutcomeUnknownError, UnavailableError
from zeh_spark.publish import OpenBatch, Producer, PublishedEvent
from zeh_spark.publisher import open_store

FATES = [passed, *FAULTS.values()]
names = itertools.count()

pytestmark = pytest.mark.usefixtures("impatient")


def settled(batch: OpenBatch, gateway: Gateway) -> bool:
    """Asked until the publisher tells, whatever faults there are."""
    while True:
        try:
            return batch.settle() is not None
        except OutcomeUnknownError:
            gateway.deliver()


def faults_of(commits: list[Fate], others: list[Fate]) -> Fate:
    """What becomes of one commit after the other, and of other requests; then all pass."""
    left = {True: commits[::-1], False: others[::-1]}

    def fate(gateway: Gateway, request: Request) -> Answer:
        mine = left[request.method == "POST"]
        return (mine.pop() if mine else passed)(gateway, request)

    return fate


@pytest.mark.slow
@settings(max_examples=max(30, settings().max_examples // 5))
@given(
    commits=st.lists(st.sampled_from(FATES), max_size=8),
    others=st.lists(st.sampled_from([passed] * 20 + FATES), max_size=20),
    patience=st.sampled_from(["1ms", "12ms", "20s"]),
    late=st.randoms(use_true_random=True),  # of a seed: how many wait is not ours to choose
)
def test_what_is_told_is_true_with_any_faults(faulty, commits, others, patience, late):
    """Published, not published, or found out: each is so, whatever arrives (EX-02, F17, PU-14)."""
    publisher, gateway = faulty
    gateway.held.clear()
    gateway.fate = faults_of(commits, others)
    name = f"till-{next(names)}"
    producer = Producer(f"{gateway.address}/orders", name, retryTimeout=patience)
    told = []
    for number in range(5):
        batch = producer.batch()
        try:
            with batch:
                for each in range(number):
                    batch.add(10 * number + each)
            there = True
        except OutcomeUnknownError:
            there = settled(batch, gateway)
        except UnavailableError:
            there = False
        if there:
            told += [b"%d" % (10 * number + each) for each in range(number)]
        order = late.sample(range(len(gateway.held)), len(gateway.held))
        if order:
            gateway.deliver(*order)
    assert sorted(told) == sorted(events_of(publisher.store, producer=name))


# The program is killed


class Killing:
    """Lets requests pass, until the program that sends them is killed in the middle of one."""

    def __init__(self) -> None:
        self.program: subprocess.Popen[str] | None = None
        self.left = 0
        self.fate: Fate = passed

    def __call__(self, gateway: Gateway, request: Request) -> Answer:
        self.left -= 1
        if self.left or not self.program:
            return passed(gateway, request)
        self.program.send_signal(signal.SIGKILL)
        self.program.wait(30)
        return self.fate(gateway, request)


@pytest.mark.kill
@pytest.mark.slow
@pytest.mark.parametrize("way", ["counted", "named", "buffered"])
def test_program_that_is_killed_continues_by_asking(publisher, gateway, way):
    """SIGKILL before, in and after any request, which may still land after the next start: each
    event is there once, and my program keeps no state (EX-06).
    """
    kills, total, killing = 6, 300, Killing()
    told: list[int] = []
    chance = random.Random(7)
    gateway.fate = killing
    command = [sys.executable, "-m", "tests.programs.produce", f"{gateway.address}/orders"]
    for start in itertools.count():
        late = [gateway.held.pop() for _ in gateway.held]
        killing.fate = chance.choice([lost, answer_lost, held])
        with subprocess.Popen(
            [*command, f"{total}", way], cwd=HERE, stdout=subprocess.PIPE, text=True
        ) as killing.program:
            killing.left = chance.randrange(1, 14) if start < kills else 0
            assert killing.program.stdout
            for line in killing.program.stdout:
                told.append(int(line))
                while late and chance.random() < 0.3:  # the former start's request lands now
                    gateway.forward(late.pop().raw)
        for each in late:
            gateway.forward(each.raw)
        if killing.program.returncode == 0:
            break
        assert -signal.SIGKILL == killing.program.returncode
    assert kills == start
    assert list(range(total)) == sorted(map(int, events_of(publisher.store)))
    assert set(range(total)) >= set(told) and len(told) >= total // 2
    check_numbers(publisher.store)


# The publisher is killed


@pytest.mark.kill
@pytest.mark.slow
def test_what_is_told_is_true_when_the_publisher_is_killed(store_file):
    """Killed in the middle of my commits and started again: I am told the truth (F5, F14)."""
    port, kills = free_port(), 3
    told: list[int] = []
    ended, heard = threading.Event(), threading.Semaphore(0)
    outcomes = {"published": 0, "found out": 0, "not published": 0}

    def outcome(producer: Producer, number: int) -> str:
        batch = producer.batch()
        try:
            with batch:
                batch.add(number)
            return "published"
        except OutcomeUnknownError:
            while True:
                with suppress(OutcomeUnknownError):
                    return "found out" if batch.settle() else "not published"
        except UnavailableError:
            return "not published"

    def produce() -> None:
        producer = Producer(f"http://127.0.0.1:{port}/orders", "till-7", retryTimeout="10ms")
        for number in itertools.count():
            what = outcome(producer, number)
            outcomes[what] += 1
            if what != "not published":
                told.append(number)
                heard.release()
            if ended.is_set():
                return

    program = threading.Thread(target=produce)
    program.start()
    for _ in range(kills):
        with served(store_file, port=port) as (_, process):
            assert all(heard.acquire(timeout=60) for _ in range(15))
            process.send_signal(signal.SIGKILL)
    with served(store_file, port=port):
        assert heard.acquire(timeout=60)
        ended.set()
        program.join(60)
    with closing(open_store(f"sqlite:///{store_file}")) as store:
        assert told == [int(each) for each in events_of(store)]
        check_numbers(store)
    assert outcomes["published"] >= 15 * kills and outcomes["not published"]


@pytest.mark.kill
@pytest.mark.slow
def test_single_events_are_there_once_when_the_publisher_is_killed(store_file):
    """Killed in the middle of commits, and started again: I go on sending, and each future tells
    the place that its event has (EH-18, F5).
    """
    port, kills = free_port(), 4
    chance = random.Random(7)
    sent: list[Future[PublishedEvent]] = []
    gateway = Gateway(port)

    def fate(gateway: Gateway, request: Request) -> Answer:
        if request.method == "POST" and sent and chance.random() < 0.1 and process.poll() is None:
            threading.Timer(chance.random() / 100, process.kill).start()  # while it commits
        try:
            return passed(gateway, request)
        except (OSError, HTTPException):
            return lost(gateway, request)

    gateway.fate = fate
    with closing(gateway), ExitStack() as ended:
        _, process = ended.enter_context(served(store_file, port=port))
        producer = Producer(f"{gateway.address}/orders", "till-7", retryTimeout="10ms")
        ended.enter_context(producer)
        events = ended.enter_context(producer.buffered(linger=0, max_events=50, max_wait=0.01))
        while kills:
            with suppress(TimeoutError):  # it is sent again
                sent.append(events.send(len(sent), key=len(sent) % 5))
            if process.poll() is not None:
                kills -= 1
                gateway.fate = fate if kills else passed
                _, process = ended.enter_context(served(store_file, port=port))
        events.flush(PATIENCE)
    with closing(open_store(f"sqlite:///{store_file}")) as store:
        assert [*range(len(sent))] == sorted(int(each) for each in events_of(store))
        check_numbers(store)
    numbers = [future.result(0).sequence for future in sent[::5]]  # all of one key
    assert numbers == sorted({*numbers})
