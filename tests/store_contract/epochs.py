"""The contract for a feed's identity: its random id, and its epochs.

By its epoch an event is told apart from the events that a restore has undone.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.store_contract.site import StoppedClock, histories
from tests.store_contract.writers import FEED, chunk, everything, publish
from zeh_spark.errors import StoreError
from zeh_spark.publisher import Store
from zeh_spark.service.sql.feed_epochs import over_at
from zeh_spark.service.store.interface import StoreBusyError, UnknownFeedError
from zeh_spark.wire.feed_identity import Epoch, FeedIdentity, feed_of, parse


def times(store: Store) -> list[int]:
    """Return the `zeh-time` of all chunks, in the feed's order, in ms since 1970."""
    return [each.time for each in everything(store)]


def test_each_feed_has_an_id_of_its_own(store):
    """It is the beginning of its origin. Sequence numbers of two feeds are never mixed up; an epoch
    changes only its own feed, and a typing error begins none.
    """
    store.create("other", 2)
    for feed in (FEED, "other"):
        name = store.feed(feed).origin[:8].hex()
        assert FeedIdentity(name, (Epoch(name, 0),)) == store.identity(feed)
    before = store.identity("other")
    assert before.id != store.begin_epoch(FEED).id
    assert before == store.identity("other")
    for ask in (store.identity, store.begin_epoch):
        with pytest.raises(UnknownFeedError):
            ask("nothing")


def test_a_later_epoch_keeps_the_feeds_id(store):
    """After a restore the feed is the same one; its events from now on are other ones."""
    first = store.identity(FEED)
    begun = store.begin_epoch(FEED), store.begin_epoch(FEED)
    assert [first.id] * 2 == [each.id for each in begun]
    assert begun[1] == store.identity(FEED) == parse(begun[1].document())
    ids = [each.id for each in begun[1].epochs]
    assert [first.id] * 3 == [feed_of(each) for each in ids]
    numbers = [int(each.partition("~")[2] or 0) for each in ids]
    assert numbers == sorted({*numbers})
    assert first.epochs == begun[0].epochs[:1] == begun[1].epochs[:1]
    assert begun[0].epochs == begun[1].epochs[:2]


def test_a_copy_gets_an_id_of_its_own(store):
    """A copy beside the original is another feed; events that both have keep their id."""
    first = store.begin_epoch(FEED)
    copied = store.begin_epoch(FEED, copy=True)
    again = store.begin_epoch(FEED)
    assert (copied.id, 0) == (copied.epochs[-1].id, copied.epochs[-1].id.count("~"))
    assert copied.id not in first.feeds
    assert {first.id, copied.id} == copied.feeds == again.feeds
    assert copied.epochs == (*first.epochs, copied.epochs[-1])
    assert copied.id == again.id == feed_of(again.epochs[-1].id) != again.epochs[-1].id
    assert again == store.identity(FEED) == parse(again.document())


def test_an_epoch_may_begin_at_an_earlier_time(store, clock):
    """Events that were published between the restore and the command belong to it, too."""
    publish(store, chunk(0, b"1"))
    clock.pass_hours(1)
    publish(store, chunk(0, b"2"))
    kept, since = times(store)
    begun = store.begin_epoch(FEED, since=since)
    publish(store, chunk(0, b"3"))
    assert since == begun.epochs[-1].time and begun == store.identity(FEED)
    first, second = (each.id for each in begun.epochs)
    assert [first, second, second] == [begun.at(each) for each in times(store)]
    assert kept < since <= times(store)[-1]


def test_an_epoch_begins_between_the_last_one_and_now(store, clock):
    """It takes no event from the epoch before the last, and none of the future."""
    publish(store, chunk(0, b"1"))
    begun = store.begin_epoch(FEED)
    for since in (begun.epochs[-1].time, clock.now + 3_600_000):
        with pytest.raises(StoreError, match="Give a time between the two"):
            store.begin_epoch(FEED, since=since)
    assert begun == store.identity(FEED)


def test_time_tells_any_epochs_apart(new_site, store, clock):
    """Events after an epoch's begin have at least its time, and those before it less, in whatever
    order commits, epochs and changes of the clock come; also on a feed that was restored to its
    beginning.
    """
    steps = st.sampled_from(["commit", "commit", "epoch", "copy", "48", "-72"])
    names = (f"feed{number}" for number in count())

    @settings(max_examples=histories(new_site))
    @given(st.lists(steps, max_size=12))
    @example(["epoch", "commit", "48", "commit", "copy", "-72", "commit", "epoch", "commit"])
    def holds(steps: list[str]) -> None:
        store.create(name := next(names), 2)
        ids = [_taken(store, name, clock, step) for step in steps]
        identity = store.identity(name)
        found = [identity.at(each.time) for each in everything(store, name)]
        assert [each for each in ids if each] == found
        begun = [each.time for each in identity.epochs]
        assert begun == sorted({*begun})
        assert identity == parse(identity.document())

    holds()


def _taken(store: Store, feed: str, clock: StoppedClock, step: str) -> str | None:
    """Take a step; return the id of the epoch that a commit belongs to, or None."""
    if step == "commit":
        publish(store, chunk(0, b"1"), feed=feed)
        return store.identity(feed).epochs[-1].id
    if step in ("epoch", "copy"):
        store.begin_epoch(feed, copy=step == "copy")
    else:
        clock.pass_hours(int(step))
    return None


def test_identity_survives_a_crash_and_is_everybodys(site, store):
    """All publishers of a store tell the same identity."""
    begun = store.begin_epoch(FEED)
    assert begun == site.open().identity(FEED)
    site.crash()
    assert begun == site.open().identity(FEED)


def test_an_epoch_that_a_restore_took_back_is_not_given_again(site, store, clock):
    """I can restore the same backup again and again.

    Events of each restored history were read. Those of the next one have the same sequence numbers,
    but are others, and come after them.
    """
    publish(store, chunk(0, b"1"))
    backup = site.copy()
    seen = []
    for _ in range(3):
        site.restore(backup)
        again = site.open()
        begun = again.begin_epoch(FEED)
        publish(again, chunk(0, b"2"))
        seen.append(begun.at(everything(again)[-1].time))
        clock.now = max(clock.now, over_at(begun.epochs[-1]))
    numbers = [int(each.partition("~")[2]) for each in seen]
    assert numbers == sorted({*numbers})


def test_epoch_of_a_clock_that_is_far_ahead_is_refused(store, clock):
    """Its number would have more digits than readers accept. A new id can still be given."""
    clock.pass_hours(24 * 365 * 100)
    with pytest.raises(StoreError, match="Set the clock right"):
        store.begin_epoch(FEED)
    assert 1 == len(store.identity(FEED).epochs)
    assert 2 == len(parse(store.begin_epoch(FEED, copy=True).document()).epochs)


def test_a_clock_years_ahead_begins_no_epoch(store, clock):
    """Each later commit would get its time, also after the clock is set right. I can say that it is
    right.
    """
    publish(store, chunk(0, b"1"))
    before = store.feed(FEED), store.identity(FEED)
    clock.pass_hours(24 * 365 * 2)
    for copy in (False, True):
        with pytest.raises(StoreBusyError, match=r"no epoch begins: .*730\.0 days after"):
            store.begin_epoch(FEED, copy=copy)
    assert before == (store.feed(FEED), store.identity(FEED))
    store.see_clock(store.now())
    assert 2 == len(store.begin_epoch(FEED).epochs)


def test_epochs_that_begin_at_once_are_all_kept(opened, store):
    """Commits and epochs of several publishers come one after the other."""

    def run(store: Store) -> None:
        store.begin_epoch(FEED)
        publish(store, chunk(0, b"1"))

    with ThreadPoolExecutor(6) as threads:
        running = [threads.submit(run, each) for each in [store, opened()] * 3]
    raised = [each.exception() for each in running if each.exception()]
    identity = store.identity(FEED)
    assert ([], 7) == (raised, len({each.id for each in identity.epochs}))
    assert identity == parse(identity.document())
    assert sorted(times(store)) == times(store)
