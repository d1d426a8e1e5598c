"""The first batch of a run whose feed holds more than a batch may have."""

from contextlib import closing

import pytest

from tests.fix_stream import Log
from tests.scratch_store import ScratchStore
from zeh_spark.spark.source.prefetch import Fetcher
from zeh_spark.testing import publish, running_publisher

LARGE = 10**900
EVENTS, EACH, MOST = 8_000, 800, 1 << 20
"""Events, those of a chunk (0.7 MB), and the bytes of a batch, which has no room for two."""


@pytest.fixture(scope="module")
def url():
    with closing(ScratchStore(orders=1)) as store:
        for begin in range(0, EVENTS, EACH):
            publish(store, "orders", [LARGE + number for number in range(begin, begin + EACH)])
        with running_publisher(store) as base:
            yield f"{base}/orders"


def size(offset):
    """Return the number of bytes of the batch that ends at an offset."""
    return sum(each["bytes"] for each in offset["partitions"].values())


@pytest.mark.parametrize("finite", [False, True], ids=["endless", "finite"])
def test_it_comes_as_soon_as_it_is_full(start, url, finite, monkeypatch):
    """It does not wait for the seconds that a publisher of few events has: here without end."""
    wait_for = Fetcher._wait_for
    monkeypatch.setattr(
        Fetcher, "_wait_for", lambda self, enough, *_: wait_for(self, enough, None, None)
    )
    run = start(url=url, fetch="driver", maxBytesPerTrigger=str(MOST), finite=finite)
    assert run.next()
    monkeypatch.undo()

    assert sorted(run.to_the_end() if finite else run.until(EVENTS)) == [
        LARGE + number for number in range(EVENTS)
    ]


def test_on_older_sparks_it_is_larger_and_the_others_are_not(start, url):
    """Spark 4.0 and 4.1 may make no other batch in a run; if they do, it has the usual size."""
    reader = start(url=url, fetch="driver", maxBytesPerTrigger=str(MOST)).reader
    ends, events = [reader.initialOffset()], 0
    while events < EVENTS:
        end = reader.latestOffset()
        if end != ends[-1]:  # it is the same if nothing came in time
            ends.append(end)
            events += sum(each["events"] for each in end["partitions"].values())
    first, *others = (size(each) for each in ends[1:])

    assert 2 * MOST < first < 5 * MOST
    assert len(others) > 4
    assert max(others) < 2 * MOST


def test_on_older_sparks_no_partition_waits_for_the_backlog_of_another(start, feed):
    """What is published while a large backlog is read comes with one of the next batches."""
    scripted = feed(Log(30_000, each=100, page=1000, page_ends=True), Log(10, each=5))
    run = start(scripted, maxEventsPerTrigger="1000")
    offset, rows = run.reader.initialOffset(), []
    while not any(1 in each for each in rows[2:]):
        assert len(rows) < 20
        end = run.reader.latestOffset()
        if end == offset:
            continue
        rows.append(run.rows(offset, end))
        offset = end
        if len(rows) == 2:
            scripted.logs[1].count = 15

    assert sum(len(each.get(0, [])) for each in rows) < 25_000
