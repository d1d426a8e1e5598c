"""The contract for cursor sets: positions under a name that belongs to one consumer."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.store_contract.writers import refusal, refused
from zeh_spark.service.store.cursor_sets import CursorSet
from zeh_spark.service.store.problems import Problem
from zeh_spark.service.store.token_rights import Maker


def test_cursor_set_keeps_the_last_cursor_of_each_partition(store):
    """I find my place again by name."""
    store.save_cursors("orders", "mailer", 2, {0: "a", 1: "b"})
    store.save_cursors("orders", "mailer", 2, {1: "c"})
    asked = ("mailer", 2), ("mailer", 4), ("x", 2)
    assert [{0: "a", 1: "c"}, {}, {}] == [store.load_cursors("orders", *each) for each in asked]


@pytest.mark.parametrize("other", ["b", ""])
@pytest.mark.parametrize("n", [2, 3])
def test_second_consumer_of_a_name_is_refused(store, other, n):
    """Nobody overwrites my position, or continues from it, whatever n he reads with."""
    store.save_cursors("orders", "mailer", 2, {0: "mine"}, "a")
    told = {"cursorset": "mailer", "consumer": "a", "given": other}
    for problem in (
        refused(store.save_cursors, "orders", "mailer", n, {0: "other", 1: "other"}, other),
        refused(store.load_cursors, "orders", "mailer", n, other),
    ):
        assert re.search(r"another name.*cursor-sets orders --delete mailer", str(problem))
        assert ("cursorset-taken", 409) == refusal(problem)
        assert told.items() <= problem.document().items()
    assert {2: {0: "mine"}} == store.saved_cursors("orders", "mailer")
    assert {0: "mine"} == store.load_cursors("orders", "mailer", 2, "a")


def test_a_client_may_begin_only_so_many_names(store):
    """One token does not fill the store with positions; those that it has move on."""
    mine, other = Maker("mine", 2), Maker("other", 2)
    store.create("another", 2)
    for feed in ("orders", "another"):
        store.save_cursors(feed, "a", 2, {0: "1"}, "me", mine)
    problem = refused(store.save_cursors, "orders", "b", 2, {0: "1"}, "me", mine)
    assert re.search(r"has begun 2 cursor sets.*--most-cursor-sets", str(problem))
    assert ("too-many-cursor-sets", 507) == refusal(problem)
    assert not problem.type.is_transient
    store.save_cursors("orders", "a", 2, {0: "2", 1: "2"}, "me", mine)
    store.save_cursors("orders", "a", 4, {0: "2"}, "me", mine)
    store.save_cursors("orders", "b", 2, {0: "1"}, "", other)
    store.save_cursors("orders", "c", 2, {0: "1"})
    store.delete_cursor_set("another", "a")
    store.save_cursors("orders", "d", 2, {0: "1"}, "me", mine)
    assert ["a", "b", "c", "d"] == [each.name for each in store.cursor_sets("orders")]


def test_name_of_nobody_is_bound_to_the_first_that_tells_its_identity(store):
    """I give my reader an identity later, and nobody else takes its place."""
    store.save_cursors("orders", "mailer", 2, {0: "1", 1: "1"})
    assert {0: "1", 1: "1"} == store.load_cursors("orders", "mailer", 2, "a")
    store.save_cursors("orders", "mailer", 2, {0: "2"}, "a")
    with pytest.raises(Problem, match="bound to consumer 'a', and a consumer without an ident"):
        store.save_cursors("orders", "mailer", 2, {0: "3"})
    store.save_cursors("orders", "other", 2, {0: "1"}, "b")
    assert {0: "2", 1: "1"} == store.load_cursors("orders", "mailer", 2, "a")


def test_who_is_known_changes_n_and_leaves_nothing_behind(store):
    """My query has another partition count now; its old positions do not hold events for ever."""
    store.save_cursors("orders", "mailer", 2, {0: "1", 1: "1"}, "a")
    store.save_cursors("orders", "mailer", 4, {3: "2"}, "a")
    assert {4: {3: "2"}} == store.saved_cursors("orders", "mailer")
    store.save_cursors("orders", "nobodys", 2, {0: "1"})
    store.save_cursors("orders", "nobodys", 1, {0: "2"}, "a")
    assert {1: {0: "2"}} == store.saved_cursors("orders", "nobodys")


def test_who_is_unknown_does_not_change_n(store):
    """One stray request with n=7 neither overwrites my position nor holds retention for ever."""
    store.save_cursors("orders", "mailer", 2, {0: "1"})
    problem = refused(store.save_cursors, "orders", "mailer", 7, {0: "_last"})
    assert "keeps positions for n=2, and the request has n=7" in str(problem)
    assert ("cursorset-n", 409) == refusal(problem)
    assert {"cursorset": "mailer", "kept": 2, "n": 7}.items() <= problem.document().items()
    assert {2: {0: "1"}} == store.saved_cursors("orders", "mailer")
    store.delete_cursor_set("orders", "mailer")
    store.save_cursors("orders", "mailer", 7, {0: "2"})
    assert {7: {0: "2"}} == store.saved_cursors("orders", "mailer")


def test_deleted_name_is_free(store):
    """I free a name whose reader has ended, and see whose the others are."""
    store.create("empty", 1)
    store.save_cursors("orders", "mailer", 2, {0: "1"}, "a")
    store.save_cursors("orders", "anyone", 1, {0: "3"})
    kept = [CursorSet("anyone", "", {1: {0: "3"}}), CursorSet("mailer", "a", {2: {0: "1"}})]
    assert (kept, []) == (store.cursor_sets("orders"), store.cursor_sets("empty"))
    deleted = [store.delete_cursor_set("orders", name) for name in ("mailer", "mailer", "x")]
    assert [True, False, False] == deleted
    assert kept[:1] == store.cursor_sets("orders")
    store.save_cursors("orders", "mailer", 2, {1: "9"}, "b")
    assert {1: "9"} == store.load_cursors("orders", "mailer", 2, "b")


def test_one_of_several_that_begin_at_once_has_the_name(opened):
    """Two queries that I start at the same time are told apart, too."""
    opened().create("orders", 2)
    start = threading.Barrier(6)

    def keep(number: int) -> None:
        store, name = opened(), str(number)
        start.wait()
        store.save_cursors("orders", "mailer", 1 + number % 2, {0: name}, name)

    with ThreadPoolExecutor(6) as threads:
        failures = [each.exception() for each in [threads.submit(keep, n) for n in range(6)]]
    (kept,) = opened().cursor_sets("orders")
    taken = {str(number) for number, each in enumerate(failures) if isinstance(each, Problem)}
    assert {*map(str, range(6))} - {kept.consumer} == taken
    assert [{0: kept.consumer}] == list(kept.cursors.values())
