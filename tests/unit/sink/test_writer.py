"""Which batch a task writes, where its rows go, and what the driver commits; without Spark."""

from __future__ import annotations

import pickle
import uuid
from collections import Counter

import pyarrow as pa
import pytest
import requests
from pyspark.sql import types as T

from tests.cases import each_case
from zeh_spark.client.publish_client import BatchCall, TaskDone
from zeh_spark.errors import OptionError, PublishError, RowError, ZeroEventHubError
from zeh_spark.protocol.upload_format import Content, content_of
from zeh_spark.sink.options import sink_options
from zeh_spark.sink.row_layout import RowLayout, layout
from zeh_spark.sink.writer import BatchWriter, Publishing, StagedTask, StreamWriter, stage

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


def test_a_streams_batch_is_known_by_query_run_and_number():
    """What Spark tells its tasks."""
    found = Publishing(stream_options(), NUMBERS)._batch("17", QUERY, RUN)

    assert BatchCall("p", QUERY, RUN, 17) == found


@each_case("group", [None, "my group"])
def test_without_a_run_of_sparks_the_writers_own_is_taken(group):
    """In foreachBatch a user may set another job group: fencing weakens, safety does not."""
    writer = Publishing(stream_options(), NUMBERS)

    found = writer._batch("17", QUERY, group)

    assert uuid.UUID(found.run) != uuid.UUID(RUN)
    assert found == pickle.loads(pickle.dumps(writer))._batch("17", QUERY, group)


def test_a_named_batch_is_its_own_producer():
    """Also inside foreachBatch, where Spark's numbers are there too."""
    found = Publishing(batch_options(batchId="day"), NUMBERS)._batch("17", QUERY, RUN)

    assert ("p#day", "batch", 0) == (found.producer, found.incarnation, found.number)


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


@each_case("stream", ["stream", "Stream"])
def test_a_write_in_foreach_batch_is_the_streams_batch(stream):
    found = Publishing(batch_options(batchId=stream), NUMBERS)._batch("17", QUERY, RUN)

    assert BatchCall("p", QUERY, RUN, 17) == found


def test_remedies_travel_with_the_batch():
    found = Publishing(stream_options(keepFirst="a:1:0123abcd"), NUMBERS)._batch("1", QUERY, RUN)

    assert {"keepFirst": "a:1:0123abcd"} == found.overrides


# What crosses processes


@each_case("kind", [StreamWriter, BatchWriter])
def test_writers_travel_with_their_run(kind):
    """Spark pickles them for each task, and for the commit."""
    writer = kind(stream_options(token="hush-1"), NUMBERS)

    assert vars(writer) == vars(pickle.loads(pickle.dumps(writer)))


def test_messages_travel():
    """From task to driver."""
    message = StagedTask(
        BatchCall("p", QUERY, RUN, 3, {"keepFirst": "a"}), 2, TaskDone(1, 7, 2, Content(5, 6))
    )

    assert message == pickle.loads(pickle.dumps(message))


def test_messages_take_no_secret_along():
    """They are kept in Spark's driver."""
    batch = Publishing(stream_options(token="hush-secret"), NUMBERS)._batch("3", QUERY, RUN)

    assert b"hush" not in pickle.dumps(StagedTask(batch, 2, TaskDone(0, 0)))


# What the driver does


def staged(number=3, task=0, partitions=2, query=QUERY):
    return StagedTask(BatchCall("p", query, RUN, number), partitions, TaskDone(task, task))


@each_case("messages", [[], [None, None], [staged(), None]])
def test_a_commit_without_all_messages_is_refused(messages):
    """The continuous trigger: Spark commits what it never gave to the sink."""
    with pytest.raises(ZeroEventHubError, match=r"continuous trigger.* Nothing was published"):
        StreamWriter(stream_options(), NUMBERS).commit(messages, 3)


@each_case(
    "other", [staged(number=4, task=1), staged(task=1, query="q"), staged(task=1, partitions=3)]
)
def test_tasks_that_disagree_are_refused(other):
    """About the batch, or the feed's partitions."""
    with pytest.raises(ZeroEventHubError, match="disagree about it"):
        StreamWriter(stream_options(), NUMBERS).commit([staged(), other], 3)


def test_another_number_than_sparks_is_refused():
    """What tasks read from properties has to be what Spark commits."""
    with pytest.raises(ZeroEventHubError, match="commits batch 4, but its tasks wrote batch 3"):
        StreamWriter(stream_options(), NUMBERS).commit([staged()], 4)


@each_case("messages", [[], [None, None]])
def test_an_abort_without_messages_is_nothing(messages):
    """After q.stop(): the publisher cleans up by itself."""
    StreamWriter(stream_options(), NUMBERS).abort(messages, 3)


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
    """Whole, of the tasks that are named."""
    messages = written(publisher, 0, (0, 5, range(10), range(10, 15)), (1, 6, range(15, 20)))
    before = numbers_of(publisher)

    commit(publisher, messages)

    assert Counter() == before
    assert Counter(range(20)) == numbers_of(publisher)
    assert content_of(rests(*range(15))) == messages[0].done.content
    assert [1, 1] == [each.done.uploads for each in messages]


def test_an_attempt_that_is_not_named_stays_away(publisher):
    """F1, F2: the task that failed, and the twin that lost."""
    written(publisher, 0, (0, 5, range(7)))
    messages = written(publisher, 0, (0, 6, range(10)))

    commit(publisher, messages)

    assert Counter(range(10)) == numbers_of(publisher)


def test_a_batch_that_is_committed_is_only_counted(publisher):
    """F4: its tasks send nothing, and the commit compares what they counted."""
    commit(publisher, written(publisher, 0, (0, 1, range(10))))

    messages = written(publisher, 0, (0, 2, range(9, 4, -1)), (1, 3, range(5)), run="another")
    commit(publisher, messages)

    assert [0, 0] == [each.done.uploads for each in messages]
    assert Counter(range(10)) == numbers_of(publisher)


def test_a_committed_batch_with_other_rows_is_refused(publisher):
    """F9."""
    commit(publisher, written(publisher, 0, (0, 1, range(10))))

    with pytest.raises(PublishError) as raised:
        commit(publisher, written(publisher, 0, (0, 2, range(11))))

    assert "batch-conflict" == raised.value.problem
    assert Counter(range(10)) == numbers_of(publisher)


def test_an_abort_lets_go_of_what_was_staged(publisher):
    """And of nothing that is committed."""
    options = stream_options(publisher.url)
    aborted = written(publisher, 0, (0, 1, range(10)))
    StreamWriter(options, NUMBERS).abort(aborted, 0)
    with pytest.raises(PublishError) as raised:
        commit(publisher, aborted)
    messages = written(publisher, 0, (0, 2, range(10)))
    commit(publisher, messages)

    StreamWriter(options, NUMBERS).abort(messages, 0)

    assert "upload-missing" == raised.value.problem
    assert Counter(range(10)) == numbers_of(publisher)


def test_uploads_that_were_lost_stop_the_query_and_a_restart_repeats_them(publisher):
    """As after a crash of the database. The rows are with tasks that have ended, so Spark has to
    run them again, and the error says how.
    """
    messages = written(publisher, 0, (0, 1, range(5)), (1, 2, range(5, 10)))
    publisher.store.release("orders", "p", 0, messages[0].batch.run)

    with pytest.raises(PublishError, match="start the query again, which repeats the batch"):
        commit(publisher, messages)
    commit(publisher, written(publisher, 0, (0, 3, range(10)), run="restarted"))

    assert Counter(range(10)) == numbers_of(publisher)


def test_an_abort_asks_once(raw_server):
    """Spark waits for it, and the publisher cleans up by itself."""
    from tests.fix_raw_server import refused

    raw_server.script(refused(503))
    writer = StreamWriter(stream_options(raw_server.url), NUMBERS)

    writer.abort([staged(), None], 3)

    (asked,) = raw_server.requests
    assert ("DELETE", {"run": RUN}) == (asked.method, asked.query)


def test_a_bad_row_leaves_nothing_behind(publisher):
    """F23: the row is counted over the task's frames."""
    text = RowLayout(("data",), text=True)
    batches = [["1", "2"], ["3", "{"]]
    given = iter([pa.RecordBatch.from_pydict({"data": each}) for each in batches])

    with pytest.raises(RowError) as raised:
        stage(
            stream_options(publisher.url),
            text,
            BatchCall("p", QUERY, RUN, 0),
            TaskDone(0, 0),
            given,
        )

    assert raised.value.row == 3
    assert Counter() == numbers_of(publisher)


def test_a_feed_with_other_partitions_is_refused(publisher):
    """Before anything is sent."""
    with pytest.raises(OptionError, match=r"'partitionCount' is 3, but the feed .* has 2"):
        written(publisher, 0, (0, 0, range(1)), partitionCount="3")

    assert requests.get(f"{publisher.url}/producers", timeout=10).json()["producers"] == []
