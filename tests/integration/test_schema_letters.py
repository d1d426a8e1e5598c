"""Rows that break the feed's schema become dead letters: on real publishers, without Spark.

Each row is once on the feed or once a dead letter, whatever dies, and whatever the schema is then.
"""

from __future__ import annotations

import json
import random
from collections import Counter

import pyarrow as pa
import pytest
import requests

from tests.fix_cli import call
from tests.fix_dead_letters import QUERY, Two, direct, served
from tests.fix_publish import Caller, Who, rows
from tests.fix_sink import lost
from zeh_spark.client.http.publish_client import BatchCall, TaskDone
from zeh_spark.errors import PublishError, UnavailableError, ZeroEventHubError
from zeh_spark.service.access.disk import Disk
from zeh_spark.service.app import upload_validation
from zeh_spark.spark.sink.options import sink_options
from zeh_spark.spark.sink.row_layout import RowLayout
from zeh_spark.spark.sink.writer import StreamWriter, stage
from zeh_spark.wire.upload_format import upload_body

ROWS = [f'{{"i":{n}}}' for n in range(12)]
NOT_JSON = '{"i":'
TASKS = [ROWS[::2], [NOT_JSON, *ROWS[1::2]]]
OTHER_TASKS = [ROWS[5:], ROWS[:5], [NOT_JSON]]


def set_most(two: Two, most: int) -> None:
    schema = {"properties": {"i": {"type": "integer", "maximum": most}}}
    two.main.store.set_schema("orders", json.dumps(schema).encode(), compatible=False)


def check_split(two: Two, most: int) -> None:
    """Rows up to `most` are on the feed, the others and NOT_JSON are dead letters, each once."""
    dead = Counter(each["row"]["data"] for each in two.letters())
    assert Counter(ROWS[: most + 1]) == Counter(two.events())
    assert Counter([*ROWS[most + 1 :], NOT_JSON]) == dead


@pytest.fixture
def ruled(two: Two) -> Two:
    set_most(two, 5)
    return two


# What becomes a dead letter


def test_rows_that_break_the_schema_are_dead_letters_with_their_place(ruled):
    """The others are published, in the same batch; the reason names the place in the row (CN-07)"""
    ruled.publish(0, *TASKS)
    ruled.publish(1, [ROWS[3]])

    reasons = {each["row"]["data"]: each["reason"] for each in ruled.letters()}
    assert "the feed's schema: /i: '7 is greater than the maximum of 5'" == reasons[ROWS[7]]
    assert {NOT_JSON, *ROWS[6:]} == reasons.keys()
    assert [(0, 6), (1, 1)] == ruled.batches(ruled.url)
    assert [(0, 7), (1, 0)] == ruled.batches(ruled.dead_url)


@pytest.mark.parametrize("some", [ROWS[:6], ROWS[6:], [], [NOT_JSON]])
def test_a_task_may_have_rows_of_one_kind_only(ruled, some):
    """All of them wrong, none of them wrong, or none at all (CN-07)."""
    ruled.publish(0, some, [ROWS[0]])
    good = {*some} & {*ROWS[:6]}
    assert Counter([*good, ROWS[0]]) == Counter(ruled.events())
    assert Counter({*some} - good) == Counter(each["row"]["data"] for each in ruled.letters())


@pytest.mark.parametrize("placed", ["key", "partition", "anywhere"])
def test_a_dead_letter_is_the_row_that_was_refused(placed, two):
    """Over many uploads, chunks and partitions: with its own key, headers and fields (CN-07)."""
    two.main.store.set_schema("orders", b'{"properties": {"wrong": {"const": false}}}')
    chance = random.Random(7)
    numbers = range(9000)
    wrong = {n for n in numbers if chance.random() < (0.9 if 2000 < n < 4000 else 0.05)}
    columns = {
        "data": pa.array([{"i": n, "wrong": n in wrong, "x": f"{n:0200}"} for n in numbers]),
        "headers": pa.array([[("h", f"h{n}")] for n in numbers], pa.map_(pa.string(), pa.string())),
    }
    if placed == "key":
        columns["key"] = pa.array([f"k{n % 7}" for n in numbers])
    if placed == "partition":
        columns["partition"] = pa.array([None if n % 3 else n % 2 for n in numbers], pa.int32())
    frame = pa.RecordBatch.from_pydict(columns)
    frames = [frame.slice(begin, 700) for begin in range(0, 9000, 700)]
    options, layout = two.options(uploadBytes="64k"), RowLayout(tuple(columns), text=False)
    batch = BatchCall("p", QUERY, "run", 0)
    staged = [
        stage(options, layout, batch, TaskDone(task, 0), iter(frames[task::2])) for task in (0, 1)
    ]
    StreamWriter(options, layout).commit(staged, 0)

    assert two.main.count("PUT ") > 6
    found = [each["row"] for each in two.letters()]
    data = [json.loads(each["data"]) for each in found]
    assert Counter(wrong) == Counter(each["i"] for each in data)
    for row, event in zip(found, data, strict=True):
        assert {"h": f"h{event['i']}"} == row["headers"]
        assert row.get("key") == (f"k{event['i'] % 7}" if placed == "key" else None)
        only = event["i"] % 2 if placed == "partition" and event["i"] % 3 == 0 else None
        assert row.get("partition") == only
    assert Counter(set(numbers) - wrong) == Counter(json.loads(each)["i"] for each in two.events())


def test_a_wrong_row_that_was_repaired_is_published_again(ruled):
    """As any other dead letter (CN-07)."""
    ruled.publish(0, [ROWS[2], ROWS[9]])
    (line,) = call("dead-letters", direct(ruled.dead, "dead")).stdout.splitlines()
    done = call("replay-dead", ruled.url, stdin=line.replace("9}", "4}"))
    assert "Published 1 dead letter" in done.stdout
    assert Counter([ROWS[2], ROWS[4]]) == Counter(ruled.events())


# Crashes, and the schema since


@pytest.mark.parametrize("then", [5, 3, 9], ids=["same", "narrower", "wider"])
@pytest.mark.parametrize("feed", ["main", "dead"])
def test_a_batch_that_is_published_adds_nothing_whatever_the_schema_is_now(feed, then, ruled):
    """The driver has died before Spark noted the batch. The schema may have changed since, and the
    rows come in other tasks (CN-07)."""
    ruled.publish(0, *TASKS)
    set_most(ruled, then)
    ruled.publish(0, *OTHER_TASKS)
    getattr(ruled, feed).once("POST .*/commit", after=lost)
    with pytest.raises(UnavailableError):
        ruled.publish(0, *TASKS)
    check_split(ruled, 5)


@pytest.mark.parametrize("then", [5, 9], ids=["same", "wider"])
@pytest.mark.parametrize("feed", ["main", "dead"])
def test_a_batch_is_split_as_its_dead_letters_were(feed, then, ruled):
    """They are committed, and the rows are not. A wider schema would take more rows: they are dead
    letters already (CN-07)."""
    fate = {"after": lost} if feed == "dead" else {"before": lost}
    getattr(ruled, feed).once("POST .*/commit", **fate)
    with pytest.raises(UnavailableError):
        ruled.publish(0, *TASKS)
    assert [] == ruled.events() and 7 == len(ruled.letters())
    set_most(ruled, then)

    ruled.publish(0, *OTHER_TASKS)

    check_split(ruled, 5)
    ruled.publish(1, [ROWS[8]])
    assert (ROWS[8] in ruled.events()) == (then == 9)  # the next batch has the new version


def test_a_schema_that_refuses_more_than_the_dead_letters_is_named(ruled):
    """The dead letters are committed by a version, and the next one refuses other rows: I am told
    both, and what to do. After that, each row is there once (CN-07)."""
    ruled.main.once("POST .*/commit", before=lost)
    with pytest.raises(UnavailableError):
        ruled.publish(0, *TASKS)
    set_most(ruled, 3)

    for _ in range(2):
        with pytest.raises(PublishError) as refused:
            ruled.publish(0, *OTHER_TASKS)
    said = str(refused.value)
    assert "breaks version 2 of the feed's schema" in said
    assert "they are those of version 1: until it is published, the feed needs a" in said
    assert [] == ruled.events()
    set_most(ruled, 5)
    ruled.publish(0, *OTHER_TASKS)
    check_split(ruled, 5)


def test_a_first_schema_between_the_two_commits_is_named(two):
    """The dead letters were committed without a schema (CN-07)."""
    two.main.once("POST .*/commit", before=lost)
    with pytest.raises(UnavailableError):
        two.publish(0, *TASKS)
    set_most(two, 5)
    with pytest.raises(PublishError, match="ask the feed's owner to change its schema"):
        two.publish(0, *TASKS)
    assert [NOT_JSON] == [each["row"]["data"] for each in two.letters()]
    two.main.store.set_schema("orders", b"{}", compatible=False)
    two.publish(0, *TASKS)
    check_split(two, 11)


def test_tasks_that_split_by_two_versions_are_no_batch(ruled):
    """The schema changed between two tasks: nothing is published, and I run it again (CN-07)."""
    staged = ruled.staged(0, TASKS[0])
    set_most(ruled, 9)
    staged += ruled.staged(0, TASKS[0], TASKS[1])[1:]
    with pytest.raises(ZeroEventHubError, match=r"disagree about it.*Run the batch again"):
        ruled.commit(0, staged)
    assert ([], []) == (ruled.events(), ruled.letters())
    ruled.publish(0, *TASKS)
    check_split(ruled, 9)


@pytest.mark.parametrize("then", [3, 9], ids=["narrower", "wider"])
def test_a_schema_that_changes_while_a_task_runs(then, ruled):
    """The task uses the version with which it began. If the new one refuses more, I am told to run
    the batch again (CN-07).
    """
    ruled.main.once("PUT ", before=lambda: set_most(ruled, then))
    if then == 3:
        with pytest.raises(PublishError, match=r"version 2 .*; run the batch again"):
            ruled.publish(0, *TASKS)
        assert ([], []) == (ruled.events(), ruled.letters())
        ruled.publish(0, *TASKS)
        check_split(ruled, 3)
    else:
        ruled.publish(0, *[[*TASKS[0], *TASKS[1]]])
        check_split(ruled, 5)


def test_an_upload_whose_answer_is_lost_is_sent_again(ruled):
    """And what was taken out is told again (CN-07)."""
    ruled.main.once("PUT ", after=lost)
    ruled.publish(0, *TASKS, retryTimeout="1m")
    assert 3 == ruled.main.count("PUT ")
    check_split(ruled, 5)


def test_a_batch_that_was_published_without_dead_letters_is_not_split(ruled):
    """`deadLetterUrl` is new, and the schema was changed: its rows are on the feed (CN-07)."""
    options = sink_options({"url": ruled.url, "producerId": "p"}, streaming=True)
    batch = BatchCall("p", QUERY, "run", 0)
    table = pa.RecordBatch.from_pydict({"data": ROWS[:6]})
    staged = stage(options, ruled.layout, batch, TaskDone(0, 0), iter([table]))
    StreamWriter(options, ruled.layout).commit([staged], 0)
    set_most(ruled, 3)
    ruled.publish(0, ROWS[:6])
    assert (Counter(ROWS[:6]), []) == (Counter(ruled.events()), ruled.letters())


# What the publisher answers


def test_a_restored_dead_letter_feed_gets_the_same_dead_letters_again(ruled):
    """Its backup is from before a batch that the feed has."""
    ruled.publish(0, *TASKS)
    with served("dead", 3) as restored:
        again = ruled.but(dead=restored)
        again.publish(0, *OTHER_TASKS)
        check_split(again, 5)


def test_a_full_disk_refuses_no_split_batch_that_is_published(ruled, monkeypatch):
    ruled.publish(0, *TASKS)
    monkeypatch.setattr(Disk, "_room", lambda _: 0)
    ruled.publish(0, *OTHER_TASKS)
    check_split(ruled, 5)


def test_the_receipt_tells_the_version_and_its_chain_holds(ruled):
    """An operator sees by which version a batch was split, and the audit passes (CN-07)."""
    ruled.publish(0, *TASKS)
    for url in (ruled.url, ruled.dead_url):
        (receipt,) = requests.get(f"{url}/producers/p/batches?limit=9").json()["receipts"]
        assert 1 == receipt["schemaVersion"]
    for gateway, feed in ((ruled.main, "orders"), (ruled.dead, "dead")):
        assert 0 == call("audit", direct(gateway, feed)).returncode


def test_a_version_that_is_not_there_is_refused(ruled):
    """Perhaps a restore has undone it (CN-07)."""
    caller = Caller(direct(ruled.main, "orders"))
    path, query = f"{Who().path}/uploads/r.0.0.0", f"{Who().query()}&schemaVersion=7"
    refused = caller.call("PUT", path, query, upload_body(rows({"i": 1})))
    assert (404, "no-schema") == refused.short
    assert "no schema of version 7" in refused.document["detail"]


def test_no_more_is_taken_out_than_memory_allows(ruled, monkeypatch):
    """I hear which option to lower (CN-07)."""
    monkeypatch.setattr(upload_validation, "MAX_TAKEN_OUT", 3)
    ruled.publish(0, ROWS[:9])
    with pytest.raises(PublishError, match="over 3 events break the schema: lower uploadBytes"):
        ruled.publish(1, ROWS[:10])
    assert 9 == len(ruled.events()) + len(ruled.letters())
