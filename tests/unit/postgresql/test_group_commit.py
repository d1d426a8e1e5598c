"""What is asked of a lane is done once each, in order, and nobody waits for ever."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterable, Sequence

from tests.patience import Halt, eventually
from zeh_spark.service.postgresql.group_commit import GROUP, Asked, CommitQueue, CommitQueues
from zeh_spark.service.store.interface import StoreOutcomeUnknownError


def asked(number: int) -> Asked:
    return Asked(None, lambda *_: [number], changes=False)


def answer(asked: Asked) -> int:
    (number,) = asked.work(None, [None])  # type: ignore[arg-type]
    return int(number)


def tell(group: Sequence[Asked]) -> None:
    for each in group:
        each.done.set_result(answer(each))


def waiting(lane: CommitQueue, commits: Iterable[Asked]) -> list[threading.Thread]:
    """Threads whose commits gather while the lane is led, one after the other."""
    threads: list[threading.Thread] = []
    with lane.lead():
        for commit in commits:
            threads.append(threading.Thread(target=lane.through, args=(commit,)))
            threads[-1].start()
            eventually(lambda: len(lane._waiting) == len(threads))
    return threads


def test_what_waits_is_done_together_and_in_order() -> None:
    """While one commit runs, the others gather."""
    groups: list[list[int]] = []
    halt = Halt()

    def do(group: Sequence[Asked]) -> None:
        groups.append(list(map(answer, group)))
        halt()
        tell(group)

    lane, threads = CommitQueue(do), []
    for number in range(GROUP + 10):
        threads.append(threading.Thread(target=lane.through, args=(asked(number),)))
        threads[-1].start()
        assert halt.reached.wait(20)
        eventually(lambda number=number: len(lane._waiting) == number)
    halt.go.set()
    for each in threads:
        each.join()
    assert [1, GROUP, 9] == [len(each) for each in groups]
    assert [*range(GROUP + 10)] == [number for group in groups for number in group]


def test_failure_of_a_group_reaches_all_of_it() -> None:
    """Who leads is interrupted; who waits hears that nothing is known, and the lane goes on."""
    halt = Halt()

    def do(group: Sequence[Asked]) -> None:
        halt()
        if len(group) > 1:
            group[0].done.set_result(0)
            raise SystemExit
        tell(group)

    lane, ends = CommitQueue(do), []

    def run(number: int) -> None:
        try:
            ends.append(lane.through(asked(number)))
        except BaseException as exc:  # noqa: BLE001 - looked at below
            ends.append(type(exc))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for at, each in enumerate(threads):
        each.start()
        assert halt.reached.wait(20)
        eventually(lambda at=at: len(lane._waiting) == at)
    halt.go.set()
    for each in threads:
        each.join()
    assert [SystemExit] == [each for each in ends if each is SystemExit]
    assert (
        {0, SystemExit, StoreOutcomeUnknownError}
        >= set(ends)
        >= {SystemExit, StoreOutcomeUnknownError}
    )
    assert 7 == lane.through(asked(7))


def test_who_has_an_answer_does_not_wait_for_the_next_group() -> None:
    first, second = halts = Halt(), Halt()
    left = iter(halts)

    def do(group: Sequence[Asked]) -> None:
        next(left)()
        tell(group)

    lane = CommitQueue(do)
    threads = waiting(lane, map(asked, range(2)))
    assert first.reached.wait(20)
    last = threading.Thread(target=lane.through, args=(asked(2),))
    last.start()
    eventually(lambda: len(lane._waiting) == 1)
    first.go.set()
    assert second.reached.wait(20)
    for each in threads:
        each.join(20)
        assert not each.is_alive()
    second.go.set()
    last.join()


def test_a_group_ends_where_it_would_take_long() -> None:
    """Other publishers wait for it; a commit that is too large by itself goes alone."""
    sizes: list[int] = []

    def do(group: Sequence[Asked]) -> None:
        sizes.append(len(group))
        for each in group:
            each.done.set_result(0)

    shares = 0.4, 0.6, 0.1, 7.0, 0.2
    for each in waiting(CommitQueue(do), [Asked(None, lambda *_: [], share) for share in shares]):
        each.join()
    assert [2, 1, 1, 1] == sizes


def test_lanes_do_not_outlive_their_use() -> None:
    """Anybody can ask for feeds that do not exist."""
    lanes = CommitQueues(tell)
    for number in range(100):
        lanes.of(f"nope{number}").through(asked(1))
    gc.collect()
    assert not lanes._lanes
