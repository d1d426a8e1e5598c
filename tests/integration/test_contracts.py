"""A feed's schema: what breaks it is refused, with its place, and readers get it."""

from __future__ import annotations

import json
from contextlib import closing

import pytest
import requests

from tests.fix_cli import Run, published
from tests.fix_publish import Caller, Who, commit_of, events_of, rows
from tests.integration.test_kept_answers import Replaceable
from tests.integration.test_publish_uploads import Wire
from tests.patience import eventually
from tests.scratch_store import ScratchStore
from tests.store_contract.writers import FEED
from zeh_spark import feed_schema
from zeh_spark.errors import OptionError, PublisherError, PublishError, StoreError
from zeh_spark.publish import Producer
from zeh_spark.service.store.contracts import MAX_BYTES, NAMED, fault, validator
from zeh_spark.testing import running_publisher
from zeh_spark.wire.upload_format import upload_body

ORDER = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "required": ["id", "amount"],
    "properties": {
        "id": {"type": "integer"},
        "amount": {"type": "number", "minimum": 0},
        "lines": {"type": "array", "items": {"type": "object", "required": ["sku"]}},
    },
    "additionalProperties": False,
}
GOOD = {"id": 1, "amount": 9.9}


def text(**changes: object) -> bytes:
    return json.dumps({**ORDER, **changes}).encode()


@pytest.fixture
def orders(publisher):
    publisher.store.set_schema(FEED, text())
    return publisher


# What is refused


def test_a_feed_with_a_schema_takes_no_event_that_breaks_it(run: Run, store_url, tmp_path):
    """I say once what an order is. A service with a bug hears which order is wrong, where, and
    why; nothing of its batch is published, and it publishes the repaired batch (CN-02).
    """
    (tmp_path / "order.schema.json").write_bytes(text())
    assert 0 == run("create", "orders", "--schema", "order.schema.json").returncode
    with published(store_url) as base, Producer(f"{base}/orders", "till-7") as producer:
        with pytest.raises(PublishError) as refused, producer.batch() as batch:
            batch.add(GOOD, partition=2)
            batch.add({"id": 2, "amount": 1, "lines": [{"sku": "a"}, {"pcs": 3}]}, partition=2)
        with producer.batch() as batch:
            batch.add(GOOD)
        assert (1, 0) == (producer.last.events, producer.last.batch)
    assert (422, "wrong-events") == (refused.value.status, refused.value.problem)
    (wrong,) = refused.value.facts["events"]
    assert (2, 1, "/lines/1") == (wrong["partition"], wrong["line"], wrong["path"])
    said = str(refused.value)
    for part in ("1 event of this upload breaks version 1", '"id":2', "/lines/1: ", "sku",
                 "repair or filter", "nothing of the upload was kept"):  # fmt: skip
        assert part in said
    loaded = run("load", "orders", "-", stdin='{"id": "x", "amount": 1}')
    assert (1, True) == (loaded.returncode, "/id: " in loaded.stderr)
    assert 0 == run("load", "orders", "-", stdin='{"id": 7, "amount": 1}').returncode


def test_each_wrong_event_is_named(orders, caller):
    """By its chunk and line, so that a client can leave it out; as many as clients read (CN-02)."""
    chunks = [*rows(GOOD, {"id": 1}, GOOD, {}), *rows(GOOD, [1], partition=1)]
    reply = caller.upload(Who(), chunks)
    assert (422, "wrong-events") == reply.short
    named = [(e["chunk"], e["line"], e["partition"], e["path"]) for e in reply.document["events"]]
    assert [(0, 1, 0, ""), (0, 3, 0, ""), (1, 1, 1, "")] == named
    assert "3 events of this upload break version 1" in reply.document["detail"]
    long = "\n" * 3000
    many = caller.upload(Who(), rows(*[{"id": n, long: {}, "amount": 1} for n in range(NAMED + 1)]))
    assert len(json.dumps(many.document, ensure_ascii=False)) < 64 << 10
    assert (True, True) == ("or more" in many.document["detail"], 1 < len(many.document["events"]))
    assert {} == orders.store.staged()


@pytest.mark.parametrize("data", [b'"\\ud800"', b"1e999", b"[" * 200 + b"]" * 200, b"1" * 400])
def test_odd_json_is_judged_like_any_other(orders, caller, data):
    """It may be refused, and never ends the publisher (CN-02)."""
    assert 422 == caller.upload(Who(), rows(data)).status
    orders.store.set_schema(FEED, b"{}")
    assert caller.upload(Who(), rows(data)).status in {201, 422}
    assert 201 == caller.upload(Who(), rows(GOOD), name="0.1.0").status


# While it changes


def test_a_publisher_that_runs_takes_the_new_schema(orders, caller):
    """Without a restart, from the next upload on (CN-03)."""
    more = {**GOOD, "note": "hi"}
    assert "wrong-events" == caller.upload(Who(), rows(more)).short[1]
    wider = {**ORDER["properties"], "note": {"type": "string"}}
    orders.store.set_schema(FEED, text(properties=wider))
    assert (200, "committed") == caller.publish(Who(), more).short
    orders.store.set_schema(FEED, text(), compatible=False)
    assert (422, 3) == (caller.upload(Who(1), rows(more)).status, 3)
    assert (200, "committed") == caller.publish(Who(1), GOOD).short


def test_a_repeated_batch_is_recognized_after_the_schema_has_changed(publisher, caller):
    """My writer has lost the answer: it hears that the batch is published (CN-04)."""
    chunks = rows({"old": 1})
    receipt = caller.publish(Who(), {"old": 1}).document["receipt"]
    publisher.store.set_schema(FEED, text())
    upload, commit = caller.upload(Who(), chunks), caller.commit(Who(), chunks)
    assert [(200, "already-committed")] * 2 == [upload.short, commit.short]
    assert receipt == upload.document["receipt"] == commit.document["receipt"]


def test_a_batch_that_is_committed_while_an_upload_comes_is_recognized(publisher, caller):
    """Its other attempt was quicker, and the schema has changed since (CN-04)."""
    body = upload_body(rows({"old": 1}))
    with closing(Wire(publisher.base)) as wire:
        wire.promise(Who(), len(body), "Expect: 100-continue\r\n")
        assert wire.socket.recv(1000).startswith(b"HTTP/1.1 100 ")  # it is wanted
        caller.upload(Who(), rows({"old": 1}), name="0.1.0")
        attempts = [{"task": 0, "attempt": 1, "uploads": 1, "events": 1}]
        done = {**commit_of(rows({"old": 1})), "attempts": attempts}
        assert (200, "committed") == caller.commit(Who(), **done).short
        publisher.store.set_schema(FEED, text())
        assert 422 == caller.upload(Who(1), rows({"old": 1})).status  # the publisher knows it
        wire.socket.sendall(body)
        assert (200, "already-committed") == wire.reply().short


def test_a_batch_that_was_uploaded_before_the_schema_is_run_again(publisher, caller):
    """Its events were not checked: it is refused, and the same batch again is checked (CN-04)."""
    caller.upload(Who(), chunks := rows(GOOD))
    publisher.store.set_schema(FEED, text())
    refused = caller.commit(Who(), chunks)
    assert ((409, "schema-changed"), 1) == (refused.short, refused.document["schemaVersion"])
    assert (200, "committed") == caller.publish(Who().but(run="r2"), GOOD).short
    assert 1 == len(events_of(publisher.store))


# What a schema may be


@pytest.mark.parametrize(
    ("document", "says"),
    [
        (b'{"properties": {"id": {"type": "integr"}}}', r"/properties/id/type: .*integr"),
        (
            b'{"$ref": "https://example.com/order.json"}',
            r"https://example\.com/order\.json.*Retrieval is disabled",
        ),
        (b'{"$ref": "#/$defs/order"}', r"'/\$defs/order' does not exist"),
        (b'{"pattern": "(?=a)b"}', r'/pattern: "\(\?=a\)b"'),
        (b'{"$schema": "http://json-schema.org/draft-07/schema#"}', r"/\$schema is .*draft-07"),
        (b"[1]", "no JSON object"),
        (b'{"type"', "no JSON object"),
        (b'{"title": "%s"}' % (b"x" * MAX_BYTES), r"has 262,\d+ bytes, at most 262,144"),
    ],
)
def test_a_document_that_is_no_schema_is_refused(document, says):
    """I hear where, before anything is created; nothing is fetched for it (CN-01)."""
    with pytest.raises(StoreError, match=f"schema is refused: .*{says}.*Correct the document"):
        validator(document)


def test_patterns_take_linear_time():
    """A pattern that takes for ever elsewhere does not stop the publisher (CN-01)."""
    check = validator(b'{"pattern": "^(a+)+$"}')
    assert fault(check, b'"%b!"' % (b"a" * 60_000)) is not None


# What readers get


def test_readers_get_the_schema(orders, run):
    """By its address, which discovery tells; again only if it has changed (CN-05)."""
    told = requests.get(orders.url).json()["feed"]
    got = requests.get(f"{orders.url}/schema")
    assert (1, ORDER, "1") == (told["schemaVersion"], got.json(), got.headers["ZEH-Schema-Version"])
    assert got.headers["Content-Type"].startswith("application/schema+json")
    unchanged = {"If-None-Match": got.headers["ETag"]}
    assert 304 == requests.get(f"{orders.url}/schema", headers=unchanged).status_code
    orders.store.set_schema(FEED, text(required=["id"]))
    after = requests.get(f"{orders.url}/schema", headers=unchanged)
    assert (200, ["id"]) == (after.status_code, after.json()["required"])
    assert ORDER == requests.get(f"{orders.url}/schema?version=1").json()
    for query, status in (("version=3", 404), ("version=x", 400)):
        assert status == requests.get(f"{orders.url}/schema?{query}").status_code


def test_a_version_that_a_restore_gives_another_document_is_not_mistaken_for_the_first():
    """The publisher runs on, as after a failover to a standby without the newest schema (CN-01)."""
    one, other = ScratchStore(orders=1), ScratchStore(orders=1)
    schema = one.set_schema("orders", b'{"properties": {"id": {"type": "integer"}}}')
    eventually(lambda: other.now() > schema.time)
    other.set_schema("orders", b'{"properties": {"id": {"type": "string"}}}')
    store = Replaceable(one)
    with running_publisher(store) as base:
        with Producer(f"{base}/orders", "shop").batch() as batch:
            batch.add({"id": 1})
        store.inner = other
        with (
            pytest.raises(PublishError, match="breaks version 1 of the feed's schema"),
            Producer(f"{base}/orders", "shop").batch() as batch,
        ):
            batch.add({"id": 1})
        assert 0 == other.feed("orders").events


def test_a_feed_without_a_schema_says_so(publisher):
    """(CN-05)"""
    missing = Caller(publisher.url).call("GET", "/schema")
    assert (404, "no-schema") == missing.short
    assert "schemaVersion" not in requests.get(publisher.url).json()["feed"]


def test_a_program_gets_the_columns_of_a_feed(orders):
    """Of the version that I name, or of the latest; a feed without them says so (CN-05)."""
    pytest.importorskip("pyspark")
    orders.store.set_schema(FEED, text(properties={"id": {}}), compatible=False)
    told = [feed_schema(orders.url, version=each).simpleString() for each in (1, None)]
    assert told == ["struct<id:bigint,amount:double,lines:array<string>>", "struct<id:string>"]
    with pytest.raises(PublisherError, match="no schema of version 7") as missing:
        feed_schema(orders.url, version=7)
    assert 404 == missing.value.status
    assert "'url'" not in f"{missing.value}", "its address is right"
    orders.store.set_schema(FEED, b"{}", compatible=False)
    with pytest.raises(OptionError, match="names no fields"):
        feed_schema(orders.url)


def test_the_operator_sees_and_changes_the_schema(run: Run, tmp_path):
    """A version that refuses earlier events needs a word of mine (CN-03)."""
    (tmp_path / "order.json").write_bytes(text())
    (tmp_path / "less.json").write_bytes(text(required=["id"]))
    create = ("create", "orders", "--if-not-exists", "--schema")
    (tmp_path / "bad.json").write_bytes(b'{"type": 1}')
    assert "/type" in run("create", "orders", "--schema", "bad.json").stderr
    assert "has no schema" in [run("create", "orders"), run("schema", "orders")][1].stderr
    assert "keep version 1 of its schema" in run(*create, "order.json").stdout
    assert 0 == run(*create, "order.json").returncode
    assert ORDER == json.loads(run("schema", "orders").stdout)
    assert "has version 2 of its schema" in run("schema", "orders", "less.json").stdout
    refused = run("schema", "orders", "order.json")
    assert (1, True) == (refused.returncode, "--compatibility none" in refused.stderr)
    said = run("schema", "orders", "order.json", "--compatibility", "none")
    assert "has version 3 of its schema" in said.stdout
    assert 3 == run("admin-log").stdout.count("set-schema")
