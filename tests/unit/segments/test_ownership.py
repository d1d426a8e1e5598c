"""A copy of a store never writes or deletes where the original does."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from tests.scratch_store import ScratchStore
from zeh_spark.errors import StoreError
from zeh_spark.service.segments.objects import Objects
from zeh_spark.service.segments.ownership import (
    MARKER,
    Marker,
    OwnerError,
    adopt,
    check_owner,
    read_marker,
)
from zeh_spark.service.store.interface import ObjectError


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
    """A store whose file has the same number as that on the other disk."""

    def owner(self) -> str:
        return "sqlite: file 12"


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
    """None of them is taken for another store."""
    objects, store = Objects(str(tmp_path / "cold")), ScratchStore()
    check_owner(objects, store)
    with ThreadPoolExecutor(4) as pool:
        assert [None] * 40 == [*pool.map(lambda _: check_owner(objects, store), range(40))]


def test_a_marker_that_is_written_late_is_still_known(tmp_path: Path) -> None:
    """A publisher hangs while it writes the marker, and others go on for a week of rounds."""
    objects, store = Objects(str(tmp_path / "cold")), ScratchStore()
    check_owner(objects, store)
    found = read_marker(objects)
    assert found
    late = store.new_nonce(found.nonce)
    for _ in range(7 * 24):
        check_owner(objects, store)

    objects.put(MARKER, [msgspec.json.encode(Marker(found.owner, str(late)))])
    check_owner(objects, store)


def test_rounds_without_storage_change_nothing(tmp_path: Path) -> None:
    """However often it fails: when the folder is mounted again, the location is the store's."""
    objects, store = Objects(str(tmp_path / "cold")), ScratchStore()
    check_owner(objects, store)
    store.begin_segment(objects.location, "feed/one.segment")
    (tmp_path / "cold").rename(tmp_path / "away")
    for _ in range(20):
        with pytest.raises(OwnerError, match=r"owner\.json is missing: a folder may not be moun"):
            check_owner(objects, store)
    assert not (tmp_path / "cold").exists()

    (tmp_path / "away").rename(tmp_path / "cold")
    check_owner(objects, store)


def test_a_first_use_that_fails_can_be_put_right(tmp_path: Path) -> None:
    """The folder above is missing at first: nothing has to be adopted afterwards."""
    objects, store = Objects(str(tmp_path / "disk" / "cold")), ScratchStore()
    for _ in range(3):
        with pytest.raises(StoreError, match=r"cannot write .*No such file"):
            check_owner(objects, store)
    (tmp_path / "disk").mkdir()
    check_owner(objects, store)


def test_a_full_disk_does_not_keep_garbage(tmp_path: Path) -> None:
    """What is deleted makes room, so the marker stays as it is then."""
    store = ScratchStore()
    check_owner(Objects(str(tmp_path)), store)

    class Full(Objects):
        def put(self, name: str, parts: Iterable[bytes]) -> int:
            raise ObjectError("No space left on device")

    check_owner(Full(str(tmp_path)), store, writes=False)
    with pytest.raises(ObjectError, match="No space"):
        check_owner(Full(str(tmp_path)), store)
    with pytest.raises(OwnerError, match="belongs to another store"):
        check_owner(Full(str(tmp_path)), ScratchStore(), writes=False)


@pytest.mark.parametrize("spelled", ["{}/", "file://{}", "/{}", "{}/./"])
def test_spellings_of_a_location_are_one_location(tmp_path: Path, spelled: str) -> None:
    assert str(tmp_path) == Objects(spelled.format(tmp_path)).location


@pytest.mark.parametrize("content", [b"{]", b"\xff\xfe", b"[" * 4000])
def test_a_marker_of_another_program_is_respected(tmp_path: Path, content: bytes) -> None:
    objects = Objects(str(tmp_path / "cold"))
    objects.put(MARKER, [content])

    with pytest.raises(OwnerError, match=r"owner\.json is no marker"):
        check_owner(objects, ScratchStore())
