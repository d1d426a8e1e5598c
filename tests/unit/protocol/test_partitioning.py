"""Which partition an event goes to: the same with every version of every writer."""

from __future__ import annotations

import enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import strategies
from zeh_spark.protocol.partitioning import partition_for, partition_of


class Kind(str, enum.Enum):
    A = "a"


@pytest.mark.parametrize(
    ("key", "of_4", "of_1000"),
    [("", 2, 138), ("a", 3, 719), ("customer-17", 0, 452), ("42", 1, 473), ("Ålesund", 3, 263)],
)
def test_a_key_goes_to_the_same_partition_for_ever(key, of_4, of_1000):
    """A key's events stay in their partition with every version of every writer."""
    assert (of_4, of_1000) == (
        partition_of(key, 4),
        partition_of(key, 1000),
    )


@given(strategies.text, st.integers(1, 1000))
def test_every_key_has_a_partition(key, partition_count):
    """No key falls outside the feed."""
    assert 0 <= partition_of(key, partition_count) < partition_count


def test_a_key_that_is_a_member_of_an_enumeration_is_its_text() -> None:
    """It goes where the same text goes."""
    assert partition_of("a", 64) == partition_for(Kind.A, None, 64)


@given(st.text(), st.integers(), st.integers(1, 8))
def test_a_key_goes_where_every_writer_puts_it(text: str, number: int, count: int) -> None:
    """From Spark, a file or a service, a key's events meet in one partition."""
    assert partition_of(text, count) == partition_for(text, None, count)
    assert partition_for(f"{number}", None, count) == partition_for(number, None, count)


def test_partition_is_taken_as_given_and_nothing_means_anywhere() -> None:
    """I may place events myself, or not care."""
    assert (1, 0, None) == (
        partition_for(None, 1, 2),
        partition_for(None, 0, 2),
        partition_for(None, None, 2),
    )


@pytest.mark.parametrize(
    ("key", "partition", "reason"),
    [
        ("a", 1, "'partition' and 'key' exclude each other"),
        (None, 2, "there is no partition 2: the feed has 0 to 1"),
        (None, -1, "there is no partition -1"),
        (None, True, "there is no partition True"),
        (None, "1", "there is no partition '1'"),
        (1.5, None, "the key is 1.5; a key is text or an integer"),
        (True, None, "the key is True"),
        ("\ud800", None, "surrogates not allowed"),
    ],
)
def test_bad_places_are_refused(key: Any, partition: Any, reason: str) -> None:
    """A mistake in a key does not send an event where nobody expects it."""
    with pytest.raises(ValueError, match=reason):
        partition_for(key, partition, 2)
