"""How far a partition is behind, after what was taken of it."""

from __future__ import annotations

import pytest

from zeh_spark.client.polling.track import Track


@pytest.mark.parametrize(("at_least", "age"), [(False, 0.0), (True, None)])
def test_nothing_unread_of_those_that_were_counted_is_no_age(at_least: bool, age: float) -> None:
    """If the publisher has not counted all, there may be an old event."""
    assert (0, age) == Track(0, "c", unread=0, at_least=at_least).lag()
