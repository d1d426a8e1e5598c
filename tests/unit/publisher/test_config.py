"""The publisher's file of settings: what is refused at the start."""

from __future__ import annotations

import pytest

from tests.cases import each_case
from zeh_spark.errors import OptionError
from zeh_spark.publisher.config import Config, FeedConfig, opened_tables


@each_case("name", ["readyz", "docs", "a/b", "ä", "-a", "", "x" * 101])
def test_a_table_cannot_have_a_name_that_no_feed_may_have(name: str) -> None:
    """Its address would be another's; I am told so before anything is opened."""
    table = FeedConfig(url="sqlite:////nowhere/shop.db", table="outbox", data="body")

    with pytest.raises(OptionError) as refused, opened_tables(Config(feeds={name: table})):
        pass

    assert f"[feeds.{name}] a feed cannot be called {name!r}" in str(refused.value)
    assert "Rename the section" in str(refused.value)
