"""The contract for schemas: their versions, and batches that are uploaded before a change."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.store_contract.writers import FEED, call, chunk, data, declared, refused, upload
from zeh_spark.errors import StoreError
from zeh_spark.service.store.batches import StagingResult, Upload
from zeh_spark.service.store.contracts import FeedSchema

ONE, TWO = upload(chunk(0, b"1")), upload(chunk(0, b"2"), task=1)
INTEGER, NUMBER = b'{"type": "integer"}', b'{"type": "number"}'


def checked(sent: Upload, schema: FeedSchema) -> Upload:
    """Return the upload as one that was checked with a version of the feed's schema."""
    return replace(sent, schema_version=schema.version, schema_time=schema.time)


def test_a_schema_has_versions(store):
    """I see the latest and earlier ones, and the log tells who set them (CN-01)."""
    store.create("parcels", 1)
    first = store.set_schema("parcels", INTEGER)
    second = store.set_schema("parcels", NUMBER)
    again = store.set_schema("parcels", NUMBER)
    third = store.set_schema("parcels", INTEGER, compatible=False)
    assert [(1, 1), (2, 1), (3, 3)] == [(e.version, e.since) for e in (first, second, third)]
    assert (second, third, first) == (again, store.schema("parcels"), store.schema("parcels", 1))
    assert [None, None] == [store.schema(FEED), store.schema("parcels", 4)]
    told = [each.details for each in store.acts() if each.action == "set-schema"]
    assert [{"version": e.version, "since": e.since} for e in (third, second, first)] == told


def test_a_version_that_refuses_earlier_events_is_refused(store):
    """Nothing is changed, unless I say that it need not be compatible (CN-03)."""
    store.set_schema(FEED, NUMBER)
    with pytest.raises(
        StoreError, match=r"may refuse events .* keeps version 1.*compatibility none"
    ):
        store.set_schema(FEED, INTEGER)
    assert NUMBER == store.schema(FEED).document
    with pytest.raises(StoreError, match="/type: "):
        store.set_schema(FEED, b'{"type": "text"}')
    assert 1 == store.schema(FEED).version


def test_an_upload_is_kept_if_it_was_checked_with_the_version_of_the_feed(store):
    """Also an upload that was checked before the version changed is checked again (CN-04)."""
    store.set_schema(FEED, INTEGER)
    assert StagingResult.UNCHECKED is store.stage(FEED, call(), ONE)
    schema = store.set_schema(FEED, NUMBER)
    lost = replace(schema, time=schema.time - 1)  # in a failover
    for other in (replace(schema, version=1), lost):
        assert StagingResult.UNCHECKED is store.stage(FEED, call(), checked(ONE, other))
    assert {} == store.staged()
    assert StagingResult.NEW is store.stage(FEED, call(), checked(ONE, schema))


@pytest.mark.parametrize("after", [NUMBER, b'{"type": "integer", "maximum": 5}'])
def test_a_batch_over_a_change_is_published_if_its_events_keep_the_new_version(store, after):
    """Compatible versions disturb nobody; otherwise I run the batch again (CN-04)."""
    old = checked(ONE, store.set_schema(FEED, INTEGER))
    store.stage(FEED, call(), old)
    new = checked(TWO, store.set_schema(FEED, after, compatible=after == NUMBER))
    store.stage(FEED, call(), new)
    if after == NUMBER:
        store.commit(FEED, call(), declared(old, new))
        assert [b"1", b"2"] == data(store)
    else:
        assert "schema-changed" == refused(store.commit, FEED, call(), declared(old, new)).name
        assert [] == data(store)


def test_events_that_were_uploaded_without_a_check_are_refused(store):
    """The feed got its schema between their upload and their commit (CN-04)."""
    store.stage(FEED, call(), ONE)
    store.set_schema(FEED, INTEGER)
    assert "uploaded without a check" in str(refused(store.commit, FEED, call(), declared(ONE)))


def test_a_repetition_is_recognized_whatever_the_schema_is_now(store):
    """What is published stays published: no version refuses it (CN-04)."""
    store.stage(FEED, call(), ONE)
    receipt, _ = store.commit(FEED, call(), declared(ONE))
    store.set_schema(FEED, b'{"type": "string"}')
    assert receipt == store.stage(FEED, call(), ONE)
    assert (receipt, False) == store.commit(FEED, call(), declared(ONE))
