"""A copy of a store never writes or deletes where the original does."""

from __future__ import annotations

from pathlib import Path

import pytest

from zeh_spark.service.segments.objects import Objects
from zeh_spark.service.segments.ownership import (
    MARKER,
    OwnerError,
    adopt,
    check_owner,
    read_marker,
)


def test_the_first_store_has_the_location_until_another_one_adopts_it(tmp_path: Path) -> None:
    """As after a restore: the copy is refused, until somebody says that the original is gone."""
    objects = Objects(str(tmp_path / "cold"))
    mine, theirs = "sqlite: device 1, file 2", "sqlite: device 1, file 3"

    check_owner(objects, mine, is_used=False)
    check_owner(objects, mine, is_used=True)
    with pytest.raises(OwnerError, match=r"belongs to another store .* segments adopt"):
        check_owner(objects, theirs, is_used=False)
    assert read_marker(objects).owner == mine

    adopt(objects, theirs)
    check_owner(objects, theirs, is_used=True)
    with pytest.raises(OwnerError, match="belongs to another store"):
        check_owner(objects, mine, is_used=True)


def test_a_lost_marker_is_not_written_again_by_itself(tmp_path: Path) -> None:
    """The folder may not be mounted, or another copy may have it."""
    objects = Objects(str(tmp_path / "cold"))

    with pytest.raises(OwnerError, match=r"owner\.json is missing: a folder may not be mounted"):
        check_owner(objects, "mine", is_used=True)

    assert read_marker(objects) is None


def test_a_marker_of_another_program_is_respected(tmp_path: Path) -> None:
    objects = Objects(str(tmp_path / "cold"))
    objects.put(MARKER, [b"{]"])

    with pytest.raises(OwnerError, match=r"owner\.json is no marker"):
        check_owner(objects, "mine", is_used=False)
