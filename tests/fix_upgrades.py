"""A version of the store before this one, and the step from it, both invented."""

from __future__ import annotations

import pytest

from zeh_spark.service.sql import upgrades
from zeh_spark.service.sql.schema import VERSION

BEFORE = VERSION - 1
"""The version of a store whose upgrade is the invented step."""


@pytest.fixture
def invented(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store of version BEFORE was released, and its feeds lack a column."""
    monkeypatch.setattr(upgrades, "FIRST", BEFORE)
    for name, schema in (("SQLITE", ""), ("POSTGRESQL", "zeroeventhub.")):
        step = (f"ALTER TABLE {schema}feeds ADD COLUMN colour VARCHAR(10)",)
        monkeypatch.setattr(upgrades, name, {BEFORE: step})
