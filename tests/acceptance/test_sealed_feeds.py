"""Queries on a feed whose old chunks are packed: before, after and while they run."""

import json
from collections import Counter
from itertools import islice

import pytest

from tests.fix_spark import in_batches, to_the_end
from tests.scratch_store import ScratchStore
from zeh_spark import reading
from zeh_spark.service.store import packs
from zeh_spark.testing import publish, running_publisher

WAYS = ["executors", "driver"]
EVER = 1 << 62


@pytest.fixture
def store(monkeypatch):
    """Feed `orders`: 120 events in three partitions, in 120 chunks."""
    monkeypatch.setattr(packs, "PACK_CHUNKS", 16)
    store = ScratchStore(orders=3)
    add(store, range(120))
    return store


@pytest.fixture
def url(store):
    with running_publisher(store) as base:
        yield f"{base}/orders"


def add(store, numbers):
    for i in numbers:
        publish(store, "orders", [{"i": i}], partition=i * 7 % 5 % 3)


def seal(store, most=1000):
    """Pack what can be packed, at most so many packs; gives how many there were."""
    done = 0
    while done < most and store.seal("orders", EVER):
        done += 1
    return done


def numbers(rows):
    return [json.loads(row["data"])["i"] for row in rows]


@pytest.mark.slow
def test_a_sealed_feed_is_read_as_before(spark, store, url):
    """From its beginning, and from cursors inside a pack; with fewer partitions than it has, as
    many and more, and whoever fetches. Events, order and stamps are the same.
    """
    inside = {}
    for n in (2, 3, 7):
        *_, (_, kept) = islice(reading.reader(url, partitionCount=n, pageSizeHint=7), 5)
        cursors = {name: cursor for name, cursor in json.loads(kept).items() if name.isdigit()}
        inside[n] = json.dumps(cursors)

    def read():
        found = []
        for n, cursors in inside.items():
            for start in ("first", cursors):
                for fetch in WAYS:
                    given = {"partitionCount": n, "startingCursors": start, "fetch": fetch}
                    frame = spark.read.format("zeroeventhub").options(**given).load(url)
                    found.append([row.asDict() for row in frame.collect()])
        return found

    before = read()
    assert 7 == seal(store)
    assert before == read()
    assert {120, 85} == {len(rows) for rows in before}


@pytest.mark.slow
@pytest.mark.parametrize("fetch", WAYS)
def test_a_stream_goes_across_what_is_packed_meanwhile(stream, store, url, fetch, tmp_path):
    """I get each event once, in order, from packs, from chunks that are packed while I read, and
    from new ones. The stream is restarted on the way.
    """
    found = []
    assert 2 == seal(store, most=2)

    def keep(batch, number):
        seal(store, most=1)
        found.extend(batch.collect())
        if number == 1:
            add(store, range(120, 150))

    for _ in range(2):
        feed = stream(url=url, fetch=fetch, maxEventsPerTrigger="41").load()
        to_the_end(lambda feed=feed: in_batches(feed, keep, tmp_path))
    assert 3 == seal(store)
    assert Counter(range(150)) == Counter(numbers(found))
    for partition in range(3):
        mine = numbers(row for row in found if row.partition == partition)
        assert sorted(mine) == mine


@pytest.mark.slow
@pytest.mark.parametrize("then", WAYS)
@pytest.mark.parametrize("fetch", WAYS)
def test_a_batch_is_repeated_after_its_chunks_are_packed(stream, store, url, fetch, then, tmp_path):
    """A driver dies in a batch, and what it read is packed before another one continues: the batch
    has the same rows, whoever fetches then.
    """
    rows = {}

    def run(keep, fetch):
        feed = stream(url=url, fetch=fetch, maxEventsPerTrigger="50").load()
        to_the_end(lambda: in_batches(feed, keep, tmp_path))

    def die(batch, number):
        rows[number] = batch.collect()
        if number == 1:
            raise RuntimeError("the driver dies here")

    def go_on(batch, number):
        rows.setdefault(number, again := batch.collect())
        assert rows[number] == again
        repeated.append(number)

    repeated = []
    with pytest.raises(Exception, match="the driver dies here"):
        run(die, fetch)
    assert 7 == seal(store)
    run(go_on, then)
    assert [1, 2] == repeated
    assert [50, 50, 20] == [len(each) for each in rows.values()]
    assert Counter(range(120)) == Counter(numbers(row for each in rows.values() for row in each))
