"""A publisher that is killed: at each point of what it does to its store, under a client that
continues, and by a power cut that leaves only a part of its log. A batch is there whole or not at
all.
"""

from __future__ import annotations

import shutil
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from typing import Any

import pytest

from tests.fix_crashes import crashed, reopened
from tests.fix_publish import Caller, Who, data_in, events_of
from tests.fix_publisher import served
from tests.programs import crash_publisher as crash
from tests.store_contract.writers import everything
from zeh_spark.publisher import Store
from zeh_spark.service.store.batches import Call, Upload, chained
from zeh_spark.service.store.interface import UnknownFeedError

OLD = crash.OLD


def data_of(uploads: list[Upload]) -> list[bytes]:
    """In the order of the feed: by partition, upload, chunk, row."""
    chunks = [each for upload in uploads for each in upload.chunks]
    return data_in(each.frame for each in sorted(chunks, key=lambda each: each.partition))


def check_numbers(store: Store) -> None:
    """Positions and each producer's numbers have no hole and no double; receipts are chained."""
    state = store.feed(crash.FEED)
    found = everything(store, crash.FEED)
    assert list(range(1, state.head + 1)) == [each.g for each in found]
    following: dict[tuple[str | None, int], int] = {}
    for each in found:
        assert each.sequence == following.get((each.producer, each.partition), 0)
        following[each.producer, each.partition] = each.sequence + each.events
    for producer in store.producers(crash.FEED):
        receipts = store.receipts(crash.FEED, producer.name, 1 << 40, 1000)
        assert [each.hash for each in receipts] == [chained(each) for each in receipts]
        assert producer.chain == receipts[0].hash


def check_commit(store: Store, by: Call, uploads: list[Upload]) -> bool:
    """There whole with a receipt, or not at all; then it can be published, once. Whether it was."""
    receipt = store.receipt(crash.FEED, by.producer, by.batch or 0, by.incarnation)
    after = [*OLD, *data_of(uploads)]
    assert sorted(events_of(store)) == sorted(after if receipt else OLD)
    new = crash.publish(store, by, uploads)
    assert (new, sorted(after)) == (receipt is None, sorted(events_of(store)))
    again, _ = store.commit(crash.FEED, by, crash.declared(uploads))
    assert receipt in (None, again)
    check_numbers(store)
    return receipt is not None


@pytest.mark.kill
@pytest.mark.slow
@pytest.mark.parametrize(
    ("act", "by", "uploads"),
    [
        ("stage", crash.call(1), crash.LARGE),
        ("commit", crash.call(1), crash.LARGE),
        ("first commit", crash.call(0, "q"), crash.LARGE),
        ("pack", crash.call(1), crash.SMALL),
        ("replace", crash.REPLACING, crash.LARGE),
        ("release", crash.call(1), crash.LARGE),
    ],
)
def test_batch_is_whole_or_absent_wherever_the_publisher_dies(crash_place, act, by, uploads):
    """Killed anywhere, it has my batch with its receipt, or nothing of it (F14, PU-04, PU-07)."""
    there = []
    for point, url in crashed(act, crash_place):
        with reopened(url) as store:
            try:
                there.append(check_commit(store, by, uploads))
            except AssertionError as exc:
                raise AssertionError(f"killed {point}") from exc
    acknowledges = act in {"commit", "first commit", "pack", "replace"}
    assert (sorted(there), acknowledges) == (there, there[-1])  # once there, it stays


@pytest.mark.kill
@pytest.mark.slow
def test_batches_of_one_transaction_are_there_together(crash_place):
    """Commits that share a transaction share its fate, and none is torn (F14)."""
    for point, url in crashed("together", crash_place):
        with reopened(url) as store:
            found = [store.receipt(crash.FEED, name, 0, "a") for name in "qrs"]
            there = [each for each in found if each]
            assert len(there) in (0, 3), point
            assert [*OLD, *[b"7"] * len(there)] == events_of(store)
            for name in "qrs":
                crash.publish(store, crash.call(0, name), crash.ALONE)
            assert [*OLD, b"7", b"7", b"7"] == events_of(store)
            check_numbers(store)


@pytest.mark.kill
def test_cleaning_up_takes_nothing_that_is_committed(crash_place):
    """Killed while it cleans up, the publisher continues, and every event is there (F14)."""
    expected = [*OLD, *data_of(crash.LARGE)]
    for _, url in crashed("tidy", crash_place):
        with reopened(url) as store:
            assert sorted(expected) == sorted(events_of(store))
            crash.tidy(store)
            assert sorted(expected) == sorted(events_of(store))
            assert crash.publish(store, crash.call(2), crash.SMALL)
            check_numbers(store)


def test_power_cut_leaves_whole_batches(tmp_path):
    """However much of the log reached the disk, each batch is there with its receipt, or is not."""
    with reopened(f"sqlite:///{tmp_path / 'feeds.db'}") as store:
        store.create(crash.FEED, 2)
        for batch in range(4):
            crash.publish(store, crash.call(batch), [crash.ALONE, crash.SMALL][batch % 2])
        log = (tmp_path / "feeds.db-wal").read_bytes()
        file = shutil.copyfile(tmp_path / "feeds.db", tmp_path / "as it was")
    counts = []
    for cut in range(32, len(log) + 1, max(1, len(log) // 60)):
        there = tmp_path / f"{cut}"
        there.mkdir()
        shutil.copyfile(file, there / "feeds.db")
        (there / "feeds.db-wal").write_bytes(log[:cut])
        url = f"sqlite:///{there / 'feeds.db'}"
        with reopened(url) as store, suppress(UnknownFeedError):
            receipts = store.receipts(crash.FEED, "p", 1 << 40, 1000)
            assert len(events_of(store)) == sum(each.events for each in receipts)
            check_numbers(store)
            counts.append(len(receipts))
    assert sorted(counts) == counts
    assert {1, 2, 3} <= set(counts)


# The real process, over HTTP


@pytest.mark.kill
def test_what_was_acknowledged_is_there_after_the_death(store_file):
    """Who got a receipt may rely on it; who did not asks, and is told the truth (F5, EX-07)."""
    receipts: dict[int, dict[str, Any]] = {}
    heard = threading.Semaphore(0)

    def drive(base: str, number: int) -> None:
        with suppress(OSError), closing(Caller(f"{base}/orders")) as caller:
            for batch in range(10_000):  # until the publisher is gone
                who = Who(batch, producer=f"p{number}")
                reply = caller.publish(who, batch)
                receipts[number] = reply.document["receipt"]
                heard.release()

    with served(store_file) as (base, process), ThreadPoolExecutor(8) as drivers:
        for number in range(8):
            drivers.submit(drive, base, number)
        assert all(heard.acquire(timeout=60) for _ in range(200))
        process.send_signal(signal.SIGKILL)
    with served(store_file) as (base, _), closing(Caller(f"{base}/orders")) as caller:
        for number, receipt in receipts.items():
            who = Who(receipt["batch"], producer=f"p{number}")
            assert receipt == caller.receipt(who).document
            unheard = who.but(batch=receipt["batch"] + 1)
            known = caller.receipt(unheard).status == 200
            status = caller.publish(unheard, unheard.batch).document["status"]
            assert known == (status == "already-committed")
    with reopened(f"sqlite:///{store_file}") as store:
        check_numbers(store)
