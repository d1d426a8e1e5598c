"""Objects in a folder and in object stores: whole or not there, and errors that say which one."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.cases import each_case
from tests.ports import free_port
from zeh_spark.service.segments.objects import Objects
from zeh_spark.service.store.interface import DamagedObjectError, NoObjectError, ObjectError


@pytest.fixture(params=["folder", "s3"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> Objects:
    if request.param == "folder":
        return Objects(str(tmp_path / "cold"))
    return Objects(request.getfixturevalue("object_store").location())


def test_an_object_comes_back_in_ranges(objects: Objects) -> None:
    """What is put in parts is read in other parts."""
    size = objects.put("feed/one.segment", [b"first", b"", b"second"])

    assert (11, 11) == (size, objects.size("feed/one.segment"))
    assert (b"sts", b"") == (
        objects.read("feed/one.segment", 3, 3), objects.read("feed/one.segment", 11, 0)
    )  # fmt: skip
    assert {"feed/one.segment": 11} == objects.names()


def test_an_object_that_is_missing_is_told_apart_from_storage_that_fails(objects: Objects) -> None:
    """Only the first means that something was deleted."""
    objects.put("feed/one.segment", [b"x"])
    objects.delete("feed/one.segment")
    objects.delete("feed/one.segment")

    for ask in (lambda: objects.size("feed/one.segment"), lambda: objects.read("nothing", 0, 1)):
        with pytest.raises(NoObjectError, match=r"there is no object .*(one\.segment|nothing)"):
            ask()


def test_an_object_that_was_cut_is_refused_by_name(objects: Objects) -> None:
    """Half a range is never taken for a whole one."""
    objects.put("feed/one.segment", [b"x" * 10])

    with pytest.raises(DamagedObjectError, match=r"one\.segment.* has 10 bytes, and needs 11: it"):
        objects.read("feed/one.segment", 5, 6)


def test_a_file_is_there_only_once_it_is_complete(tmp_path: Path) -> None:
    """A crash leaves no half object under its name, and what it leaves is deleted with it."""
    objects = Objects(str(tmp_path / "cold"))

    def broken():
        yield b"half"
        (part,) = os.listdir(tmp_path / "cold" / "feed")
        assert part != "one"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        objects.put("feed/one", broken())
    assert {} == objects.names()

    (tmp_path / "cold" / "feed" / "one.1a.part").write_bytes(
        b"half"
    )  # of a process that was killed
    objects.delete("feed/one")
    assert {} == objects.names()


def test_only_the_publisher_can_read_the_files(tmp_path: Path) -> None:
    """They have events."""
    objects = Objects(str(tmp_path / "cold"))
    objects.put("feed/one", [b"x"])

    paths = [tmp_path / "cold", tmp_path / "cold/feed", tmp_path / "cold/feed/one"]
    assert ["700", "700", "600"] == [f"{each.stat().st_mode & 0o777:o}" for each in paths]


def test_a_folder_that_is_not_mounted_is_not_made(tmp_path: Path) -> None:
    """Events would go to the disk below the mount point."""
    objects = Objects(str(tmp_path / "mnt" / "cold"))

    with pytest.raises(ObjectError, match="mnt"):
        objects.put("feed/one", [b"x"])

    assert [] == os.listdir(tmp_path)


@each_case(
    "location",
    ["s3://AKIAID:canary@bucket/x", "s3://bucket/x?secret_key=canary", "cold/folder", "ftp://h/x"],
)
def test_a_location_with_a_secret_or_of_no_kind_is_refused(location: str) -> None:
    with pytest.raises(ObjectError, match="a location of segments must ") as refused:
        Objects(location)

    assert "canary" not in str(refused.value)


def test_storage_that_refuses_says_so_without_secrets(object_store) -> None:
    """An operator sees the object, the reason and the remedy; nobody sees a key."""
    objects = Objects(object_store.location())
    objects.put("feed/one", [b"x"])
    object_store.lock(True)
    try:
        with pytest.raises(ObjectError) as refused:
            objects.read("feed/one", 0, 1)
        with pytest.raises(ObjectError) as not_written:
            objects.put("feed/two", [b"x"])
    finally:
        object_store.lock(False)

    assert not isinstance(refused.value, NoObjectError)
    assert re.search(r"cannot read s3://bucket/a%20folder/staging/feed/one\?", str(refused.value))
    assert "may list, read, write and delete there" in str(not_written.value)
    shown = f"{refused.value}{not_written.value}"
    assert not any(secret in shown for secret in object_store.secrets)


@pytest.mark.slow  # the client of S3 tries again for some seconds
def test_storage_that_is_away_is_no_missing_object(object_store) -> None:
    """An object store that cannot be reached has lost nothing."""
    objects = Objects(object_store.location(address=f"127.0.0.1:{free_port()}"))

    with pytest.raises(ObjectError, match="cannot read s3") as away:
        objects.read("feed/one", 0, 1)

    assert not isinstance(away.value, NoObjectError)
