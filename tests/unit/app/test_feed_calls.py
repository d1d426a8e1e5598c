"""Equal calls share a thread, and see everything that was committed before they were made."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from zeh_spark.service.app.feed_calls import FeedCalls


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def test_a_caller_never_gets_a_result_from_before_its_call() -> None:
    """My request sees my commit, although others ask for the same all the time. All that are made
    at once share one thread: a thousand readers that a commit has woken cost one page.
    """
    begun: list[int] = []
    gate = threading.Event()

    def call() -> int:
        begun.append(len(begun))
        gate.wait(10)
        return begun[-1]

    async def story() -> list[int]:
        calls = FeedCalls(None, {}, 60, 0)
        asking = [asyncio.create_task(calls.shared("", "page", call))]
        await until(lambda: begun)
        asking += [asyncio.create_task(calls.shared("", "page", call)) for _ in range(999)]
        await asyncio.sleep(0)
        assert [0] == begun
        gate.set()
        return await asyncio.gather(*asking)

    assert [0, *[1] * 999] == asyncio.run(asyncio.wait_for(story(), 20))


def test_all_callers_get_the_error_and_the_next_ones_do_not() -> None:
    """A store that fails once is asked again."""

    async def story() -> list[object]:
        calls = FeedCalls(None, {}, 60, 0)
        results = iter([OSError("locked"), 1])

        def call() -> int:
            result = next(results)
            if isinstance(result, OSError):
                raise result
            return result

        both = (calls.shared("", "page", call) for _ in range(2))
        found: list[object] = [*await asyncio.gather(*both, return_exceptions=True)]
        return [*map(str, found), await calls.shared("", "page", call)]

    assert ["locked", "locked", 1] == asyncio.run(story())


def test_a_caller_that_is_cancelled_leaves_the_others_their_result() -> None:
    """A client that hangs up takes nothing from those who ask for the same."""
    gate = threading.Event()

    def call() -> int:
        gate.wait(10)
        return 7

    async def story() -> int:
        calls = FeedCalls(None, {}, 60, 0)
        leaving, staying = (asyncio.create_task(calls.shared("", "x", call)) for _ in range(2))
        await asyncio.sleep(0)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        gate.set()
        return await staying

    assert 7 == asyncio.run(story())
