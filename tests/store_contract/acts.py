"""The contract for administrative acts: who changed what."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.store_contract.writers import FEED, call, chunk, commit, publish, upload
from zeh_spark.errors import StoreError
from zeh_spark.publisher import Problem, Store
from zeh_spark.service.store.acts import (
    MOST_CHARACTERS,
    Act,
    ActFilter,
    Action,
    Actor,
    Via,
    new_act,
    process_actor,
)
from zeh_spark.service.store.batches import Call, Overrides
from zeh_spark.service.store.interface import Retention, UnknownFeedError
from zeh_spark.service.store.token_rights import ADMIN, new_token

ALICE = Actor("alice@host", Via.CLI)
_TEXT, _TOKEN = new_token("warehouse", ADMIN, 5, expires=9)
ANOTHER = new_token("tills", ADMIN, 5)[1]
_RIGHTS = [str(each) for each in ADMIN]
_OLD: dict[str, object] = {
    "age_ms": None,
    "bytes": None,
    "readers": [],
    "names_ms": Retention().names_ms,
    "producers_ms": None,
}


def prepare(store: Store) -> None:
    """Publish two chunks, keep cursors, and make a token."""
    publish(store, chunk(0, b"1", b"2"), chunk(1, b"3"))
    store.save_cursors(FEED, "mailer", 2, {0: "1.x"})
    store.add_token(_TOKEN)


CHANGES: dict[str, tuple[Callable[[Store], object], tuple[str, str, dict[str, object]]]] = {
    Action.CREATE_FEED: (
        lambda store: store.create("new", 3, by=ALICE),
        ("new", "", {"partitions": 3}),
    ),
    Action.SET_RETENTION: (
        lambda store: store.set_retention(FEED, Retention(5, None, ("mailer",)), by=ALICE),
        (FEED, "", {"before": _OLD, "after": {**_OLD, "age_ms": 5, "readers": ["mailer"]}}),
    ),
    Action.SET_SCHEMA: (
        lambda store: store.set_schema(FEED, b"{}", by=ALICE),
        (FEED, "", {"version": 1, "since": 1}),
    ),
    Action.PRUNE: (
        lambda store: store.remove(FEED, 1, by=ALICE),
        (FEED, "", {"upto": 1, "chunks": 1, "events": 2, "bytes": 76}),
    ),
    Action.DELETE_PRODUCER: (
        lambda store: store.delete_producer(FEED, "till", by=ALICE),
        (FEED, "till", {}),
    ),
    Action.DELETE_CURSOR_SET: (
        lambda store: store.delete_cursor_set(FEED, "mailer", by=ALICE),
        (FEED, "mailer", {}),
    ),
    Action.REVOKE_TOKEN: (
        lambda store: store.revoke_token("warehouse", by=ALICE),
        ("", "warehouse", {"ids": [_TOKEN.id]}),
    ),
    Action.ACCEPT_CLOCK: (
        lambda store: store.see_clock(7, by=ALICE),
        ("", "", {"before": 0, "accepted": 7}),
    ),
}


def newest_act(store: Store, before: list[Act]) -> Act:
    """The only one since then."""
    (act,) = store.acts(limit=len(before) + 1)[: -len(before)]
    return act


@pytest.mark.parametrize("action", CHANGES)
def test_each_change_leaves_its_act(store, opened, action):
    """I see who did it, when, and to what, also after a restart."""
    prepare(store)
    before = store.acts()
    change, (feed, subject, details) = CHANGES[action]
    change(store)
    act = newest_act(store, before)
    expected = Act(store.now(), "alice@host", "cli", action.value, feed, subject, details, act.id)
    assert expected == act == opened().acts(limit=1)[0]
    assert act.id > before[0].id


def test_new_history_and_new_token_leave_their_acts(store):
    """I see who told readers of a restore, and who gave which rights; never a secret."""
    epoch = store.begin_epoch(FEED, copy=True, by=ALICE).epochs[-1].id
    store.add_token(_TOKEN, by=ALICE)
    token, history = store.acts(limit=2)
    assert (FEED, {"epoch": epoch, "copy": True}) == (history.feed, history.details)
    told = {"name": "warehouse", "rights": _RIGHTS, "expires": 9}
    assert (_TOKEN.id, told) == (token.subject, token.details)
    assert _TEXT.split("_", 2)[2] not in repr(store.acts())


def test_what_changes_nothing_leaves_no_act(store):
    """The log has what people did, not what was tried, nor what the publisher does by itself."""
    prepare(store)
    store.delete_producer(FEED, "till")
    store.revoke_token("warehouse")
    before = store.acts()
    store.delete_producer(FEED, "till", by=ALICE)
    store.delete_cursor_set(FEED, "nobody", by=ALICE)
    store.revoke_token("warehouse", by=ALICE)
    store.set_retention(FEED, store.retention(FEED), by=ALICE)
    store.remove(FEED, 0, by=ALICE)
    with pytest.raises(StoreError):
        store.create(FEED, 2, by=ALICE)
    for refused in (store.begin_epoch, lambda feed, by: store.remove(feed, 1, by=by)):
        with pytest.raises(UnknownFeedError):
            refused("unknown", by=ALICE)
    publish(store, chunk(0, b"1"))
    store.save_cursors(FEED, "mailer", 2, {0: "1.x"})
    store.remove(FEED, 1)
    store.see_clock(7)
    assert not store.tidy()
    assert before == store.acts()


OVERRIDES: dict[str, tuple[Call, str, dict[str, object]]] = {
    "acceptGap": (call(2), "a@0:2", {}),
    "replaceIncarnation": (call(0, incarnation="b"), "a@0:b", {}),
    "keepFirst": (call(0), "a:0:{identity}", {"kept_events": 1, "dropped_events": 1}),
}
"""For each override: a call that needs it, its value, and more details of the act."""


@pytest.mark.parametrize("override", OVERRIDES)
def test_accepted_override_leaves_an_act(store, opened, override):
    """I see later who let a gap, a new checkpoint or other rows pass, and what was dropped."""
    receipt, _ = commit(store, call(0), upload(chunk(0, b"1")))
    needs, text, more = OVERRIDES[override]
    value = text.format(identity=receipt.identity)
    before = store.acts()

    def allowed(value: str) -> Call:
        return replace(needs, overrides=Overrides.named({override: value}), by=ALICE)

    with pytest.raises(Problem):
        commit(store, allowed(f"{value}0"), upload(chunk(0, b"2")))
    assert before == store.acts()
    commit(store, allowed(value), upload(chunk(0, b"2")))
    act = newest_act(store, before)
    details = {"batch": needs.batch, "run": "r1", override: value, **more}
    expected = Act(store.now(), "alice@host", "cli", "accept-override", FEED, "p", details, act.id)
    assert expected == act == opened().acts(limit=1)[0]


def test_override_that_was_not_needed_leaves_no_act(store):
    """An option that stays in the code of a job does not fill the log."""
    before = store.acts()
    for number in range(2):
        by = call(number, accept_gap="a@0:2", replace_incarnation="x@0:a", keep_first="a:0:1")
        commit(store, by, upload(chunk(0, b"1")))
        commit(store, by, upload(chunk(0, b"1")))
    assert before == store.acts()


def test_act_without_an_actor_is_of_the_program(store):
    """A script that names nobody is found by its user and host."""
    (act,) = store.acts()
    assert process_actor() == Actor(act.actor, Via(act.via))
    assert (Via.LIBRARY, "create-feed", FEED) == (act.via, act.action, act.feed)


def test_acts_are_found_by_feed_actor_kind_and_time(store, clock):
    """I find what was done to my feed, or by whom, or since yesterday, page by page."""
    bob = Actor("bob", Via.HTTP)
    clock.now += 10
    begun = store.now()
    for number, by in enumerate((ALICE, bob, ALICE)):
        store.create(f"feed{number}", 1, by=by)
    store.add_token(_TOKEN, by=bob)

    def found(wanted: ActFilter, limit: int = 100) -> list[str]:
        return [each.feed or each.action for each in store.acts(wanted, limit)]

    assert ["create-token", "feed1"] == found(ActFilter(actor="bob"))
    assert found(ActFilter(actor="bob")) == found(ActFilter(actor="http:bob"))
    assert [] == found(ActFilter(actor="cli:bob"))
    assert ["feed1"] == found(ActFilter(feed="feed1"))
    assert ["create-token"] == found(ActFilter(action="create-token"))
    assert ["create-token", "feed2", "feed1", "feed0"] == found(ActFilter(since=begun))
    assert ["create-token", "feed2"] == found(ActFilter(), limit=2)
    last = store.acts(limit=2)[-1].id
    assert ["feed1", "feed0"] == found(ActFilter(before=last), limit=2)


def test_recorded_acts_come_back_in_order(store, opened):
    """What was done before a restore is still known after it."""
    given = [new_act(ALICE, Action.RESTORE, time, subject="ä", n=time) for time in (3, 1)]
    store.record(given)
    kept = opened().acts(limit=2)
    assert [(1, "ä", {"n": 1}), (3, "ä", {"n": 3})] == [
        (each.time, each.subject, each.details) for each in kept
    ]


def test_acts_stay_small(store):
    """A token with a thousand rights, or a long name, does not blow the log up."""
    long = "x" * 1000
    store.record([new_act(Actor(long), Action.PRUNE, 1, subject=long, texts=[long] * 1000)])
    act = store.acts(limit=1)[0]
    assert [long[: MOST_CHARACTERS - 1] + "…"] * 2 == [act.actor, act.subject]
    assert ("… and 980 more", 21) == (act.details["texts"][-1], len(act.details["texts"]))


def test_each_act_is_a_line_in_the_log(store, caplog):
    """My log collection has it, too."""
    with caplog.at_level(logging.INFO, "zeh_spark.acts"):
        store.create("new", 3, by=ALICE)
    assert ["cli:alice@host did create-feed new {'partitions': 3}"] == caplog.messages
