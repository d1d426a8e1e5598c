"""Batches in a directory: written, found, deleted, and never anybody else's."""

import os

import pytest

from zeh_spark.errors import StagingError
from zeh_spark.spark.source.offsets import StagedBatch
from zeh_spark.spark.source.staging import Staging, new_stage


@pytest.fixture(params=["path", "uri"])
def location(request, tmp_path):
    folder = tmp_path / "a folder"
    return str(folder) if request.param == "path" else f"file://{str(folder).replace(' ', '%20')}"


@pytest.fixture
def staging(location):
    return Staging(location, "stage")


def test_what_is_kept_can_be_read(staging, tmp_path):
    """Each segment of a batch, as it was written, on any machine that shares the directory, in
    <stagingLocation>/<stage>/<batch>/<segment>. Names are never used twice: a batch that was half
    written before a crash can never be taken for another one.
    """
    staged = staging.keep(iter([b"one", b"two"]), ())

    other = Staging(staging.location, "stage")
    assert [b"one", b"two"] == [other.read(staged.batch, number) for number in range(2)]
    assert ("stage", 2) == (staged.stage, staged.segments)
    assert (tmp_path / "a folder/stage" / staged.batch / "0").read_bytes().endswith(b"one")
    assert staged.batch != staging.keep(iter([b"one", b"two"]), ()).batch
    assert new_stage() != new_stage()


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077], ids=oct)
def test_only_the_owner_reads_what_is_staged(staging, tmp_path, umask):
    """It holds events."""
    before = os.umask(umask)
    try:
        staging.keep(iter([b"one", b"two"]), ())
    finally:
        os.umask(before)

    files = [each for each in tmp_path.rglob("*") if each.is_file()]
    assert [0o600] * 2 == [each.stat().st_mode & 0o777 for each in files]


@pytest.mark.parametrize("name", ["..", ".", "", "../other", "a/../../other", "/", "a\0"])
def test_no_name_leads_out_of_the_stage(staging, tmp_path, name):
    """A checkpoint that somebody has changed deletes and reads nothing else."""
    other = Staging(staging.location, "other")
    kept = other.keep(iter([b"one"]), ())
    (tmp_path / "mine").write_text("x")
    wrong = Staging(staging.location, f"stage/../{name}")
    for work in (
        lambda: staging.forget(name),
        lambda: staging.read(name, 0),
        lambda: wrong.forget(kept.batch),
        lambda: wrong.forget_all_but(None),
        lambda: wrong.keep(iter([b"x"]), ()),
    ):
        with pytest.raises(StagingError, match="is no name of a staged batch"):
            work()

    assert not staging.has(StagedBatch("stage", name, 1))
    assert other.has(kept)
    assert (tmp_path / "mine").exists()


def test_a_batch_is_there_only_whole(staging, tmp_path):
    """With one segment lost, or the directory, the batch has to be read again; a task that finds
    nothing says where it looked. Cursors that moved without events are a batch without segments.
    """
    staged = staging.keep(iter([b"one", b"two"]), ())
    assert staging.has(staged)
    assert staging.has(staging.keep(iter(()), ()))

    next(tmp_path.glob(f"*/stage/{staged.batch}/1")).unlink()

    assert not staging.has(staged)
    assert not staging.has(StagedBatch("stage", "unknown", 1))
    with pytest.raises(StagingError, match="cannot read from"):
        staging.read(staged.batch, 1)


@pytest.mark.parametrize("damage", [b"", b"x", b"0123456789abcdef", None], ids=str)
def test_a_damaged_segment_is_never_read(staging, tmp_path, damage):
    """Cut, emptied, or with one bit changed: the batch has to be read again."""
    staged = staging.keep(iter([b"one"]), ())
    (file,) = tmp_path.glob(f"*/stage/{staged.batch}/0")
    content = file.read_bytes()
    file.write_bytes(content[:-1] + b"f" if damage is None else damage)

    assert not staging.has(staged)
    with pytest.raises(
        StagingError, match=rf"/{staged.batch}/0' is damaged.*Start the query again"
    ):
        staging.read(staged.batch, 0)
