"""Which batch a task writes, where its rows go, and what the driver commits; without Spark."""

import pickle
import uuid
from collections import Counter
from dataclasses import replace

import pyarrow as pa
import pytest
import requests
from pyspark.sql import types as T

from tests.cases import each_case
from tests.fix_raw_server import refused
from zeh_spark.client.http.publish_client import BatchCall, TaskDone
from zeh_spark.errors import OptionError, PublishError, ZeroEventHubError
from zeh_spark.spark.sink.options import sink_options
from zeh_spark.spark.sink.row_layout import layout
from zeh_spark.spark.sink.writer import BatchWriter, Publishing, StagedTask, StreamWriter, stage
from zeh_spark.wire.upload_format import Content, content_of

URL = "http://127.0.0.1:1/orders"
QUERY, RUN = str(uuid.uuid4()), str(uuid.uuid4())
NUMBERS = layout(T.StructType([T.StructField("i", T.LongType())]))


def stream_options(url=URL, **given):
    return sink_options({"url": url, "producerId": "p", **given}, streaming=True)


def batch_options(url=URL, **given):
    return sink_options({"url": url, "producerId": "p", **given}, streaming=False)


def frames(*numbers):
    """Rows as Spark hands them over."""
    return iter([pa.RecordBatch.from_pydict({"i": pa.array(each)}) for each in numbers])


def rests(*numbers):
    return [b'"headers":{},"data":{"i":%d}}' % each for each in numbers]


# Which batch


@each_case(
    ("options", "expected"),
    [
        (
            stream_options(keepFirst="a:1:0123abcd"),
            BatchCall("p", QUERY, RUN, 17, {"keepFirst": "a:1:0123abcd"}),
        ),
        (
            stream_options(startingSequence="1:20, 0:7"),
            BatchCall("p", QUERY, RUN, 17, starting={0: 7, 1: 20}),
        ),
        (batch_options(batchId="stream"), BatchCall("p", QUERY, RUN, 17)),
        (batch_options(batchId="Stream"), BatchCall("p", QUERY, RUN, 17)),
        (batch_options(batchId="day"), BatchCall("p#day", "batch", "", 0)),
    ],
)
def test_a_batch_is_the_streams_or_a_named_one(options, expected):
    """Known by query, run and number, which Spark tells its tasks; remedies travel with it. A named
    batch is its own producer, also inside foreachBatch, where Spark's numbers are there too.
    """
    found = Publishing(options, NUMBERS)._batch("17", QUERY, RUN)

    assert expected == replace(found, run=expected.run and found.run)


@each_case("group", [None, "my group"])
def test_without_a_run_of_sparks_the_writers_own_is_taken(group):
    """In foreachBatch a user may set another job group: fencing weakens, safety does not."""
    writer = Publishing(stream_options(), NUMBERS)

    found = writer._batch("17", QUERY, group)

    assert uuid.UUID(found.run) != uuid.UUID(RUN)
    assert found == pickle.loads(pickle.dumps(writer))._batch("17", QUERY, group)


def test_a_batch_of_no_name_is_another_one_each_time():
    """batchId=none: each write adds; all of its tasks agree."""
    one, other = (Publishing(batch_options(batchId="none"), NUMBERS) for _ in range(2))

    copy = pickle.loads(pickle.dumps(one))

    assert one._batch(None, None, None) == copy._batch(None, None, None)
    assert one._batch(None, None, None).producer != other._batch(None, None, None).producer


@each_case(("number", "query"), [(None, None), ("3", None), (None, QUERY)])
def test_a_write_that_takes_the_streams_name_needs_a_stream(number, query):
    """One of Spark's properties alone may be the user's own."""
    with pytest.raises(OptionError, match=r"'batchId' is 'stream'.*not in a foreachBatch"):
        Publishing(batch_options(batchId="stream"), NUMBERS)._batch(number, query, None)


# What crosses processes


@each_case("kind", [StreamWriter, BatchWriter])
def test_writers_travel_with_their_run(kind):
    """Spark pickles them for tasks and the commit; messages to the driver have no secret."""
    writer = kind(stream_options(token="hush-1"), NUMBERS)
    batch = writer._batch("3", QUERY, RUN)
    message = StagedTask(batch, 2, TaskDone(1, 7, 2, Content(5, 6)))

    assert vars(writer) == vars(pickle.loads(pickle.dumps(writer)))
    assert message == pickle.loads(pickle.dumps(message))
    assert b"hush" not in pickle.dumps(message)


# What the driver does


def staged(number=3, task=0, partitions=2, query=QUERY):
    return StagedTask(BatchCall("p", query, RUN, number), partitions, TaskDone(task, task))


CONTINUOUS = "continuous trigger.* Nothing was published"


@each_case(
    ("messages", "why"),
    [
        ([], CONTINUOUS),
        ([None, None], CONTINUOUS),
        ([staged(), None], CONTINUOUS),
        ([staged(), staged(number=4, task=1)], "disagree about it"),
        ([staged(), staged(task=1, query="q")], "disagree about it"),
        ([staged(), staged(task=1, partitions=3)], "disagree about it"),
        ([staged(number=4)], "commits batch 3, but its tasks wrote batch 4"),
    ],
)
def test_a_commit_without_the_messages_of_its_tasks_is_refused(messages, why):
    """With the continuous trigger Spark commits what it never gave to the sink. Tasks agree about
    the batch and the feed's partitions, and what they read from properties is what Spark commits.
    """
    with pytest.raises(ZeroEventHubError, match=why):
        StreamWriter(stream_options(), NUMBERS).commit(messages, 3)


def test_an_abort_asks_once_and_without_messages_not_at_all(raw_server):
    """Spark waits for it, and after q.stop() too the publisher cleans up by itself."""
    raw_server.script(refused(503))
    writer = StreamWriter(stream_options(raw_server.url), NUMBERS)

    for messages in ([], [None, None], [staged(), None]):
        writer.abort(messages, 3)

    (asked,) = raw_server.requests
    assert ("DELETE", {"run": RUN}) == (asked.method, asked.query)


# With a publisher


def written(publisher, number=0, *tasks, query=QUERY, run=RUN, **given):
    """Stage what the tasks have, as (task, attempt, frames); the messages."""
    options = stream_options(publisher.url, retryTimeout="5s", **given)
    batch = BatchCall("p", query, run, number, options.overrides)
    return [
        stage(options, NUMBERS, batch, TaskDone(task, attempt), frames(*each))
        for task, attempt, *each in tasks
    ]


def commit(publisher, messages, number=0):
    StreamWriter(stream_options(publisher.url), NUMBERS).commit(messages, number)


def numbers_of(publisher):
    answer = publisher.get("n=2&cursor0=_first&cursor1=_first&pagesizehint=99999")
    return Counter(each["i"] for each in answer.data)


def test_what_was_staged_shows_once_it_is_committed(publisher):
    """Whole, of the attempts that are named (F1, F2): the task that failed, and the twin that lost,
    stay away. The tasks of a batch that is committed send nothing, and the commit compares what
    they counted (F4); other rows are refused (F9).
    """
    written(publisher, 0, (0, 4, range(7)))
    messages = written(publisher, 0, (0, 5, range(10), range(10, 15)), (1, 6, range(15, 20)))
    assert Counter() == numbers_of(publisher)

    commit(publisher, messages)

    assert Counter(range(20)) == numbers_of(publisher)
    assert content_of(rests(*range(15))) == messages[0].done.content
    assert [1, 1] == [each.done.uploads for each in messages]
    messages = written(publisher, 0, (0, 7, range(19, 8, -1)), (1, 8, range(9)), run="another")
    commit(publisher, messages)
    assert [0, 0] == [each.done.uploads for each in messages]
    with pytest.raises(PublishError) as raised:
        commit(publisher, written(publisher, 0, (0, 9, range(21))))
    assert "batch-conflict" == raised.value.problem
    assert Counter(range(20)) == numbers_of(publisher)


def test_an_abort_lets_go_of_what_was_staged(publisher):
    """And of nothing that is committed."""
    writer = StreamWriter(stream_options(publisher.url), NUMBERS)
    aborted = written(publisher, 0, (0, 1, range(10)))
    writer.abort(aborted, 0)
    with pytest.raises(PublishError) as raised:
        writer.commit(aborted, 0)
    again = written(publisher, 0, (0, 2, range(10)))
    writer.commit(again, 0)

    writer.abort(again, 0)

    assert "upload-missing" == raised.value.problem
    assert Counter(range(10)) == numbers_of(publisher)


def test_uploads_that_were_lost_stop_the_query_and_a_restart_repeats_them(publisher):
    """As a database's crash does. Their tasks have ended: Spark runs them again, as told."""
    messages = written(publisher, 0, (0, 1, range(5)), (1, 2, range(5, 10)))
    publisher.store.release("orders", "p", 0, messages[0].batch.run)

    with pytest.raises(PublishError, match="start the query again, which repeats the batch"):
        commit(publisher, messages)
    commit(publisher, written(publisher, 0, (0, 3, range(10)), run="restarted"))

    assert Counter(range(10)) == numbers_of(publisher)


def test_a_feed_with_other_partitions_is_refused(publisher):
    """Before anything is sent."""
    with pytest.raises(OptionError, match=r"'partitionCount' is 3, but the feed .* has 2"):
        written(publisher, 0, (0, 0, range(1)), partitionCount="3")

    assert requests.get(f"{publisher.url}/producers", timeout=10).json()["producers"] == []
