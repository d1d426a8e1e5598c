"""Whatever its history, a feed passes as it was published; what could not be checked is counted."""

from __future__ import annotations

import dataclasses
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.cases import each_case
from tests.fix_audit import Vandal, audited, difference, events, seven_chunks, whole
from tests.fix_middlemen import Proxy
from tests.fix_publisher import Publisher
from tests.fix_raw_server import Answer, RawServer, Request, ok
from tests.integration.test_feed_identity import Plain
from tests.patience import eventually
from tests.store_contract.writers import call, chunk, commit, declared, large, upload
from zeh_spark.errors import PublisherError, PublishError, StoreError
from zeh_spark.publisher import Store, create_app
from zeh_spark.service.app import publish_api
from zeh_spark.testing import running_publisher
from zeh_spark.tools.audit.auditing import Audit
from zeh_spark.tools.audit.findings import Difference
from zeh_spark.tools.audit.pieces import Piece

ESCAPES = [
    ({"a": 'q"\\u', "ä": "\n"}, b'{"x":"\\u0041\\n","cursor":"1.00000000"}'),
    ({}, b'"\xe2\x80\xa8, \\"zeh-sequence\\":\\"7\\","'),
    ({"b": ""}, b"[1, 2]"),
]


def replace(last: int, old: str, new: str) -> dict[str, str]:
    return {"replace_incarnation": f"{old}@{last}:{new}"}


def a_long_history(store: Store) -> None:
    """16 batches of 5 producers, 4 of them empty, with two gaps."""
    commit(store, call(0), upload(large(0, b"1"), large(1, b"2")))
    commit(store, call(1))
    commit(store, call(7, accept_gap="a@1:7"), upload(events(0, *ESCAPES)))
    commit(store, call(0, incarnation="b", run="r2", **replace(7, "a", "b")), upload(large(1)))
    commit(store, call(1, incarnation="b", run="r2"), upload(chunk(1, b"3")))
    commit(store, call(8, run="r3", **replace(1, "b", "a")), upload(chunk(1, b"4")))
    for number in range(4):  # in small parts that a commit packs together
        parts = [upload(chunk(task % 2, b"%d" % task), task=task) for task in range(9)]
        by = call(None, producer="till", incarnation="plain", run=f"r{number}")
        commit(store, by, *parts)
    for name in ("x", "y"):
        by = call(0, producer=f"till#{name}", incarnation="batch")
        commit(store, by, upload(events(1, *ESCAPES[:1])))
    commit(store, call(3, producer="late", accept_gap="a@-1:3"))
    for batch in range(4, 7):
        commit(store, call(batch, producer="late"), *([upload(large(0))] if batch == 6 else []))


def test_good_feed_passes(publisher: Publisher) -> None:
    """I hear how much was compared, of all or of what is mine. Events of batches whose old names
    expired have nothing left to be compared with; the others do. [PU-08]
    """
    a_long_history(publisher.store)
    head = publisher.store.feed("orders").head
    tally = whole(publisher.url)
    summary = publisher.store.feeds()[0]
    assert (5, 16, 4, 2) == (tally.producers, tally.batches, tally.empty, tally.gaps)
    assert (summary.events, 1, head) == (tally.events, tally.first, tally.last)
    assert str(tally).splitlines() == [
        f"Every batch once, unaltered: 16 batches of 5 producers, {summary.events:,} events, "
        f"positions 1 to {head}.",
        "Batches without events, among these: 4.",
        "Gaps in batch numbers that an operator accepted: 2.",
    ]
    mine = whole(publisher.url, "till")
    assert (3, 6, 0, 0) == (mine.producers, mine.batches, mine.empty, mine.gaps)
    with pytest.raises(StoreError, match="producer 'til' has never published"):
        audited(publisher.url, "til")
    assert 2 == publisher.store.expire_names("orders", publisher.store.now() + 1, 9)
    assert (5, 14) == ((tally := whole(publisher.url)).producers, tally.batches)


def test_empty_feed_passes(publisher: Publisher) -> None:
    """Nothing is wrong with nothing, nor with empty batches. A deleted producer's events stay."""
    nothing = str(whole(publisher.url))
    commit(publisher.store, call(0))
    assert "Nothing to check: nobody has published here." == nothing
    assert (1, 1, 0) == ((tally := whole(publisher.url)).batches, tally.empty, tally.events)
    commit(publisher.store, call(1), upload(large(0)))
    for name in ("p", "never"):
        publisher.store.delete_producer("orders", name)
    assert (1, 2) == ((tally := whole(publisher.url)).producers, tally.batches)


@pytest.mark.parametrize("receipts", [1, 2, 4])
def test_expired_receipts_are_no_difference(publisher: Publisher, kept: int) -> None:
    """They are counted: their batches are judged by their numbers."""
    for batch in range(5):
        commit(publisher.store, call(batch), upload(large(0), large(1)))
    tally = whole(publisher.url)
    left = 5 - kept
    assert (kept, left, 400 * left) == (tally.batches, tally.expired, tally.expired_events)
    assert f"expired (numbers checked, not content): {left}, with" in str(tally)


@pytest.mark.parametrize("receipts", [1, 1000])
def test_beginning_may_have_been_removed(publisher: Publisher, kept: int) -> None:
    """Retention is no difference, wherever it cuts."""
    for batch in range(4):
        commit(publisher.store, call(batch), upload(large(0), large(1)))
    for removed in range(8):
        publisher.store.remove("orders", removed)
        tally = whole(publisher.url)
        if kept == 1000:
            expected = [removed // 2, removed % 2, 0, 4 - (removed + 1) // 2]
        else:
            left = [max(0, 3 - removed // 2), removed % 2] if removed < 6 else [0, 0]
            expected = [0, int(removed == 7), left[0], int(removed < 7)]
        assert expected == [tally.removed, tally.partial, tally.expired, tally.batches]
        assert (removed + 1, 8) == (tally.first, tally.last)


def test_feed_of_which_nothing_is_left_passes(publisher: Publisher) -> None:
    """All of it was removed: the receipts are judged."""
    seven_chunks(publisher.store)
    publisher.store.remove("orders", 7)
    assert (5, 0, 0) == ((tally := whole(publisher.url)).removed, tally.batches, tally.last)
    commit(publisher.store, call(2), upload(large(0, b"8")))
    assert (5, 1, 8) == ((tally := whole(publisher.url)).removed, tally.batches, tally.first)


def test_beginning_that_retention_did_not_remove_is_missed(
    publisher: Publisher, vandal: Vandal
) -> None:
    """The publisher tells how far retention went; what lacks after that is lost."""
    seven_chunks(publisher.store)
    publisher.store.remove("orders", 2)
    vandal.run("DELETE FROM recent_chunks WHERE g = 3")
    assert "position 3, batch 0 of producer 'q': events: expected some, found no such position" == (
        difference(publisher.url)
    )


def test_retention_during_an_audit_is_no_difference(publisher: Publisher) -> None:
    """I am told to audit again."""
    for batch in range(20):
        commit(publisher.store, call(batch), upload(large(0), large(1)))
    audit = Audit(publisher.url)
    pieces = audit._reader.pieces

    def pruned(head: int) -> Iterator[Piece]:
        publisher.store.remove("orders", 30)
        return pieces(head)

    audit._reader.pieces = pruned  # type: ignore[method-assign]
    with pytest.raises(StoreError, match=r"up to position 30 .* Audit it again"):
        audit.run()


@pytest.mark.slow
@pytest.mark.parametrize("receipts", [3, 1000])
def test_feed_passes_while_others_publish(publisher: Publisher, kept: int) -> None:
    """What comes after the audit has begun is not its concern, nor what expires meanwhile."""
    stop = threading.Event()

    def write(producer: str) -> None:
        batch = 0
        while not stop.is_set():
            parts = [upload(chunk(batch % 2, b"1"))] if batch % 5 else []
            commit(publisher.store, call(batch, producer=producer), *parts)
            started.add(producer)
            batch += 1

    started: set[str] = set()
    with ThreadPoolExecutor(3) as pool:
        writing = [pool.submit(write, each) for each in ("p", "q", "q#n")]
        try:
            eventually(lambda: started == {"p", "q", "q#n"})
            found = [audited(publisher.url, only) for only in [None, "q"] * 8]
        finally:
            stop.set()
    for each in writing:
        each.result()
    assert [] == [str(each) for each in found if isinstance(each, Difference)]


@pytest.mark.slow
@pytest.mark.parametrize("reset", [False, True])
def test_cut_answers_change_nothing(
    publisher: Publisher, start_proxy: Callable[[int], Proxy], vandal: Vandal, reset: bool
) -> None:
    """An answer that breaks off is continued, and never taken for the end."""
    for batch in range(6):
        commit(publisher.store, call(batch), upload(large(0), large(1)))
    proxy = start_proxy(int(publisher.base.rpartition(":")[2]))
    direct = whole(publisher.url)
    proxy.cut_after(60_000, reset=reset)
    url = f"{proxy.address}/orders"
    through = whole(url)
    vandal.run("DELETE FROM recent_chunks WHERE g = 9")
    assert direct == through
    assert proxy.connections > 6  # each was cut, and had to be opened again
    assert difference(url).startswith("position 9, batch 4 of producer 'p': events")


def test_memory_does_not_grow_with_the_feed(publisher: Publisher) -> None:
    """A feed of any size can be audited on a small machine."""
    line = b'"%b"' % (b"x" * 900)
    part = upload(*(chunk(each, *[line] * 1000) for each in (0, 1)))
    peaks = []
    for count in (8, 24):
        for batch in range(count):
            commit(publisher.store, call(batch, producer=f"p{count}"), part)
        tracemalloc.start()
        whole(publisher.url)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.3 * peaks[0]


def test_all_partitions_a_feed_can_have_are_read(publisher: Publisher) -> None:
    """Also of the widest feed."""
    publisher.store.create("wide", 1024)
    for batch in range(3):
        parts = [upload(chunk(each, b"1"), task=each) for each in range(batch, 1024, 3)]
        for each in parts:
            publisher.store.stage("wide", call(batch, partitions=1024), each)
        publisher.store.commit("wide", call(batch, partitions=1024), declared(*parts))
    assert 1024 == whole(f"{publisher.base}/wide").events


def test_idle_producers_that_expired_are_no_difference(publisher: Publisher) -> None:
    """Their events are counted as those whose receipts are gone."""
    store = publisher.store
    commit(store, call(0, producer="idle"), upload(large(0)))
    begins = dataclasses.replace(call(0, producer="later"), starting=((1, 1000),))
    commit(store, begins, upload(large(1)))
    assert 2 == whole(publisher.url).batches
    assert 2 == store.expire_producers("orders", store.now() + 1, 9)
    tally = whole(publisher.url)
    assert (0, 2) == (tally.batches, tally.expired)


def test_answers_with_few_ranges_tell_the_same(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Producers of many partitions come in more answers, and none is passed over."""
    a_long_history(publisher.store)
    expected = whole(publisher.url)
    monkeypatch.setattr(publish_api, "RANGES_SHOWN", 3)
    assert expected == whole(publisher.url)
    assert 5 == expected.producers


@pytest.mark.slow
def test_more_producers_and_receipts_than_a_page_has(publisher: Publisher) -> None:
    """Named batches are many, and streams have many batches."""
    for number in range(1003):
        by = call(0, producer=f"p#{number}", incarnation="batch")
        commit(publisher.store, by, *([] if number % 100 else [upload(chunk(0, b"1"))]))
    for batch in range(205):
        commit(publisher.store, call(batch, producer="q"), upload(chunk(batch % 2, b"1")))
    tally = whole(publisher.url)
    assert (1004, 1208, 992, 216) == (tally.producers, tally.batches, tally.empty, tally.events)


# Not to be audited


@each_case(
    ("cursor", "reason"),
    [
        ("17", "its cursor '17' is not of the kind"),
        ("1.00000000", "it has no list of producers.* Only feeds that a publisher of zeh_spark"),
    ],
)
def test_feed_of_another_publisher_is_refused(cursor: str, reason: str) -> None:
    """I am told that it cannot be audited; nor can a table, which has no receipts."""
    foreign = Plain()
    foreign.cursor = cursor
    with (
        running_publisher({}, create_app(foreign)) as base,
        pytest.raises(PublisherError, match=reason),
    ):
        audited(base)
    with (
        running_publisher({"orders": foreign}) as base,
        pytest.raises(PublishError, match="'orders' is a table feed"),
    ):
        audited(f"{base}/orders")


COUNT = b'{"partitionCount":1}'
EVENT = b'{"partition":0,"headers":{},"data":1}\n'
CURSOR = b'{"partition":0,"cursor":"1.00000000"}\n'


@pytest.mark.parametrize(
    ("count", "body", "reason"),
    [
        (b"n is missing", b"", "does not give its partition count"),
        (COUNT, EVENT, "its answer does not end with a checkpoint"),
        (COUNT, EVENT + CURSOR, "publisher's stamps"),
        (COUNT, b"x" * (17 << 20), "bytes came without a checkpoint"),
    ],
    ids=["no count", "no checkpoint", "no stamps", "no end"],
)
def test_answers_that_ours_does_not_give_are_refused(
    raw_server: RawServer, count: bytes, body: bytes, reason: str
) -> None:
    """Feeds without stamps have nothing to compare."""

    def respond(request: Request) -> Answer:
        if request.path.endswith("/producers"):
            return ok(b'{"producers":[]}')
        if "n" not in request.query:
            return ok(count, 400)
        if request.query["pagesizehint"] == "0":
            g = 2 if request.query["cursor0"] == "_last" else 0
            return ok(b'{"partition":0,"cursor":"%d.00000000"}\n' % g)
        return ok(body)

    raw_server.respond = respond
    with pytest.raises(PublisherError, match=f"{reason}.*. Only feeds that a publisher of zeh_spa"):
        audited(raw_server.url)


def test_other_digest_version_is_refused(publisher: Publisher, vandal: Vandal) -> None:
    """What this version cannot sum up it does not call changed."""
    commit(publisher.store, call(0), upload(large(0)))
    vandal.change_receipt("p", 1, hashed=True, digest_version=2)
    with pytest.raises(PublisherError, match="batch 0 of producer 'p' has a digest of version 2"):
        audited(publisher.url)
