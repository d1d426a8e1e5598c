"""Sessions in the order of their numbers, as Azure Service Bus users build them by hand.

The cases are those of the flow chart of a subscriber: message received, is it the next in sequence,
is it the last, is the next one among the deferred.
"""

from __future__ import annotations

import pytest

pytest.importorskip("google.protobuf")


def test_the_next_in_sequence_is_processed(orders):
    orders.add(("a", 0), ("a", 1), ("b", 0))

    orders.run()

    assert [0, 1] == orders.steps("a")
    assert [0] == orders.steps("b")
    assert [] == orders.dead


def test_one_that_is_early_is_deferred_until_those_before_it_have_come(orders):
    orders.add(("a", 2), ("b", 0), ("a", 0))
    orders.run()
    assert [0] == orders.steps("a")
    orders.add(("a", 1), ("a", 1))

    orders.run()

    assert [0, 1, 2] == orders.steps("a")
    assert 1 == orders.count("duplicates")
    assert [] == orders.dead


def test_the_last_in_sequence_closes_the_session(orders):
    orders.add(("a", 0))
    orders.add(("a", 1), last="true")
    orders.run(last="headers['last']")
    orders.add(("a", 2), ("a", 0))

    orders.run(last="headers['last']")

    assert [0, 1] == orders.steps("a")
    assert [("closed", "a", 2)] == orders.reasons()


def test_a_gap_older_than_the_timeout_goes_to_the_dead_letters(orders):
    orders.add(("a", 0), ("a", 2), ("a", 3), at=100)
    orders.run()
    orders.add(("b", 0), at=100 + 601)

    orders.run()

    assert [0] == orders.steps("a")
    assert [("gap", "a", 2), ("gap", "a", 3)] == orders.reasons()
    (dead, _) = orders.dead
    assert (1, (1, 1)) == (dead.dead.expected, tuple(dead.dead.missing))
    assert 100 == dead.dead.held_since.timestamp()
    assert "2" == dead.headers["step"]
