"""What is asked of a lane is done once each, in order, and nobody waits for ever."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from zeh_spark.publisher.lanes import GROUP, Asked, Lane, Lanes, Look
from zeh_spark.testing.writers import until


def asked(number: int) -> Look:
    return Look(lambda _: number)


def answer(asked: Asked) -> int:
    assert isinstance(asked, Look)
    return int(asked.work(None))  # type: ignore[arg-type]


def tell(group: Sequence[Asked]) -> None:
    for each in group:
        each.done.set_result(answer(each))


def test_what_waits_is_done_together_and_in_order() -> None:
    """While one commit runs, the others gather."""
    groups: list[list[int]] = []
    begun, free = threading.Event(), threading.Event()

    def do(group: Sequence[Asked]) -> None:
        groups.append(list(map(answer, group)))
        begun.set()
        assert free.wait(20)
        tell(group)

    lane, threads = Lane(do), []
    for number in range(GROUP + 10):
        threads.append(threading.Thread(target=lane.through, args=(asked(number),)))
        threads[-1].start()
        assert begun.wait(20)
        until(lambda number=number: len(lane._waiting) == number)
    free.set()
    for each in threads:
        each.join()
    assert [1, GROUP, 9] == [len(each) for each in groups]
    assert [*range(GROUP + 10)] == [number for group in groups for number in group]


def test_failure_of_a_group_reaches_all_of_it() -> None:
    """Whatever goes wrong, who waits is told, and the lane goes on."""
    begun, free = threading.Event(), threading.Event()

    def do(group: Sequence[Asked]) -> None:
        begun.set()
        assert free.wait(20)
        if len(group) > 1:
            group[0].done.set_result(0)
            raise SystemExit
        tell(group)

    lane, ends = Lane(do), []

    def run(number: int) -> None:
        try:
            ends.append(lane.through(asked(number)))
        except BaseException as exc:  # noqa: BLE001 - looked at below
            ends.append(type(exc))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for at, each in enumerate(threads):
        each.start()
        assert begun.wait(20)
        until(lambda at=at: len(lane._waiting) == at)
    free.set()
    for each in threads:
        each.join()
    assert [SystemExit, SystemExit] == [each for each in ends if each != 0]
    assert 7 == lane.through(asked(7))


def test_feeds_have_lanes_of_their_own() -> None:
    """One that is slow holds up no other."""
    lanes = Lanes(tell)
    assert lanes.of("a") is lanes.of("a") is not lanes.of("b")


def test_what_a_work_raises_is_raised() -> None:
    def fail(group: Sequence[Asked]) -> None:
        for each in group:
            each.done.set_exception(ValueError("mine"))

    with pytest.raises(ValueError, match="mine"):
        Lane(fail).through(asked(1))
