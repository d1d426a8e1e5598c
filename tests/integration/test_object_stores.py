"""`stagingLocation` in object stores, whose servers speak the protocols of S3, Google and Azure."""

import json
import logging
import pickle

import pytest

from tests.fix_raw_server import refused
from tests.fix_stream import Log
from tests.ports import free_port
from zeh_spark.errors import StagingError
from zeh_spark.spark.source.staging import Staging
from zeh_spark.wire.option_values import parse_location

STORES = ["s3", "gcs", pytest.param("azure", marks=pytest.mark.campaign)]


def staging_of(store, **changed):
    return Staging(parse_location(store.location(**changed)), "stage")


@pytest.mark.parametrize("object_store", STORES, indirect=True)
def test_a_batch_in_an_object_store_is_delivered_again(object_store, feed, start):
    """After a crash, with the publisher gone: from the store, on any machine that can read it."""
    location = object_store.location()
    scripted = feed(Log(20))
    done = start(scripted, stagingLocation=location)
    done.until(20)
    done.reader.stop()
    scripted.before = lambda partition, cursor, query: refused(404, "gone")

    run = start(scripted, done.offset, stagingLocation=location)

    assert {0: list(range(20))} == run.rows(done.start, done.offset)


@pytest.mark.parametrize("object_store", STORES, indirect=True)
def test_batches_that_are_done_or_half_written_are_deleted(object_store, feed, start):
    """Nothing piles up in the bucket; what others keep there stays."""
    location = object_store.location()
    Staging(parse_location(location), "theirs").keep([b"one"], ())
    scripted = feed(Log(20))
    done = start(scripted, stagingLocation=location)
    done.until(20)
    done.reader.stop()
    stage = done.offset["stage"]
    Staging(parse_location(location), stage).keep([b"half", b"written"], ())
    scripted.logs[0].count = 30

    run = start(scripted, done.offset, stagingLocation=location)
    run.until(10)
    run.reader.commit(done.offset)
    run.reader.commit(done.offset)

    mine = [each for each in object_store.names() if not each.startswith("theirs/")]
    assert [f"{stage}/{run.offset['batch']}/0"] == mine
    assert len(object_store.names()) == 2


@pytest.mark.parametrize("object_store", STORES, indirect=True)
def test_credentials_are_nowhere_to_be_seen(object_store, feed, start, caplog):
    """Not in what tasks get, in offsets, in logs and in errors."""
    caplog.set_level(logging.DEBUG)
    run = start(feed(Log(5)), stagingLocation=object_store.location())
    end = run.reader.latestOffset(run.offset, run.limit)
    partitions = pickle.dumps(run.reader.partitions(run.offset, end))
    with pytest.raises(StagingError) as missing:
        staging_of(object_store).read("batch", 0)
    with pytest.raises(StagingError) as refused:
        staging_of(object_store, bucket="nowhere").probe()

    shown = json.dumps(end) + partitions.decode("latin-1") + caplog.text
    shown += "".join(f"{each.value}{each.value!r}" for each in (missing, refused))
    assert [] == [secret for secret in object_store.secrets if secret in shown]


@pytest.mark.parametrize("object_store", STORES, indirect=True)
def test_a_wrong_bucket_fails_before_the_first_batch(object_store, feed, start):
    """It is not created: its name is a mistake."""
    for _ in range(2):
        run = start(feed(Log(5)), stagingLocation=object_store.location(bucket="nowhere"))
        with pytest.raises(StagingError, match=r"cannot write to '.*nowhere.*'.*\. Check that the"):
            run.next()


def test_missing_rights_fail_before_the_first_batch(object_store, feed, start):
    """The error says what the credentials have to allow."""
    run = start(feed(Log(5)), stagingLocation=object_store.location())
    object_store.lock(True)
    try:
        with pytest.raises(StagingError) as caught:
            run.next()
    finally:
        object_store.lock(False)

    said = str(caught.value)
    assert "option 'stagingLocation': cannot write to 's3://bucket/a%20folder/staging?" in said
    assert "403" in said or "INVALID_ACCESS_KEY" in said.upper().replace(" ", "_")
    assert said.endswith("driver and executors may list, read, write and delete there")
    assert not any(secret in said for secret in object_store.secrets)


@pytest.mark.slow  # the clients of S3 and Azure try again for 6 s
@pytest.mark.parametrize("object_store", STORES, indirect=True)
def test_a_store_that_cannot_be_reached_fails_before_the_first_batch(object_store, feed, start):
    """Within seconds, and not after Google's 15 minutes."""
    away = object_store.location(address=f"127.0.0.1:{free_port()}")
    run = start(feed(Log(5)), stagingLocation=away)

    with pytest.raises(StagingError, match=r"onnect.*\. Check that the bucket or container exists"):
        run.next()
