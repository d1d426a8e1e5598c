"""A copy of a store never writes or deletes where the original does."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.scratch_store import ScratchStore
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
    mine, theirs = ScratchStore(), ScratchStore()

    check_owner(objects, mine)
    check_owner(objects, mine)
    with pytest.raises(OwnerError, match=r"belongs to another store .* segments adopt"):
        check_owner(objects, theirs)
    found = read_marker(objects)
    assert found
    assert found.owner == mine.owner()

    adopt(objects, theirs)
    check_owner(objects, theirs)
    with pytest.raises(OwnerError, match="belongs to another store"):
        check_owner(objects, mine)


def copy_file(store: ScratchStore, to: ScratchStore) -> None:
    with closing(sqlite3.connect(store.file)) as here, closing(sqlite3.connect(to.file)) as there:
        here.backup(there)


class OnClonedDisk(ScratchStore):
    """A store whose file has the same device and number as that on the other disk."""

    def owner(self) -> str:
        return "sqlite: device 65024, file 12"


def test_of_two_clones_of_a_disk_one_is_refused(tmp_path: Path) -> None:
    """They have the same token, and the same state at first."""
    objects = Objects(str(tmp_path / "cold"))
    original, clone = OnClonedDisk(), OnClonedDisk()
    check_owner(objects, original)
    copy_file(original, clone)

    check_owner(objects, original)
    with pytest.raises(OwnerError, match="copied with its disk"):
        check_owner(objects, clone)
    check_owner(objects, original)


def test_publishers_of_one_store_may_check_at_the_same_time(tmp_path: Path) -> None:
    """The marker has the nonce of either, and both go on."""
    objects, store = Objects(str(tmp_path / "cold")), ScratchStore()
    for _ in range(3):
        check_owner(objects, store)
        store.new_nonce(objects.location)  # another one has begun
    check_owner(objects, store)


def test_a_lost_marker_is_not_written_again_by_itself(tmp_path: Path) -> None:
    """The folder may not be mounted, or another copy may have it."""
    objects, store = Objects(str(tmp_path / "cold")), ScratchStore()
    check_owner(objects, store)
    objects.delete(MARKER)

    with pytest.raises(OwnerError, match=r"owner\.json is missing: a folder may not be mounted"):
        check_owner(objects, store)

    assert read_marker(objects) is None


def test_a_marker_of_another_program_is_respected(tmp_path: Path) -> None:
    objects = Objects(str(tmp_path / "cold"))
    objects.put(MARKER, [b"{]"])

    with pytest.raises(OwnerError, match=r"owner\.json is no marker"):
        check_owner(objects, ScratchStore())
