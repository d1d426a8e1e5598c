"""What the sink promises: each row on the feed once, in whole batches, through whatever happens.

The letters and numbers are those of the failure modes, see tests/README.md.
"""

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
import requests

import zeh_spark
from tests.fix_sink import CALLS, PARTITIONS, UPLOADING, call_of, lost
from tests.fix_spark import to_the_end
from tests.patience import PATIENCE

# Tasks

JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(("first", "again"), [(1, 3), (3, 1)])
def test_a_repeated_batch_adds_nothing_whatever_its_tasks(first, again, sink, inbox, spark):
    """F4, F10: Spark has forgotten that batch 1 was done, and brings it again in other tasks."""
    inbox.add(range(300), range(300, 600))
    sink.run(inbox.rows(spark).repartition(first))
    uploads = sink.target.gateway.count("PUT .*/batches/1/")
    sink.forget(1)
    inbox.add(range(600, 900))

    sink.run(inbox.rows(spark).repartition(again))

    sink.target.check_once(range(900))
    assert sink.target.batches() == [0, 1, 2]
    assert sink.target.gateway.count("PUT .*/batches/1/") == uploads


def test_tasks_of_a_worker_share_a_connection(target, spark, write):
    """Many small tasks do not cost my publisher, or the way to it, a connection each."""
    write(spark.range(24).selectExpr("id AS i").repartition(12), batchId="small")

    target.check_once(range(24))
    connections = {each.connection for each in target.gateway.asked("PUT ")}
    assert 12 == target.gateway.count("PUT ")
    assert len(connections) < 6  # two tasks run at a time


@pytest.mark.slow
def test_uploads_continue_while_a_task_reads(target, spark, write, tmp_path):
    """F20: a task sends what it has before it has read all; the driver only names attempts."""
    uploaded = tmp_path / "uploaded"
    target.gateway.once("PUT ", after=uploaded.touch)
    frame = spark.range(150_000).selectExpr("id AS i", "sha2(string(id), 256) AS x").coalesce(2)
    waiting = frame.mapInArrow(partial(wait_for_an_upload, str(uploaded)), frame.schema)

    write(waiting, batchId="large", **UPLOADING)

    target.check_once(range(150_000))
    assert target.gateway.count("PUT ") > 50
    (commit,) = target.gateway.asked("POST .*/commit")
    assert len(commit.raw) < 1000


def wait_for_an_upload(uploaded, batches):
    from time import sleep

    for number, batch in enumerate(batches):
        for _ in range(2000):
            if number < 10 or Path(uploaded).exists():
                break
            sleep(0.01)
        else:
            raise TimeoutError("no upload came")
        yield batch


# Answers and publishers


def test_a_lost_answer_is_asked_for_again(sink, inbox, spark):
    """F5: the publisher did it, and nobody heard so; the query does not notice. F17: then all that
    was sent is sent once more, the newest first, and nothing is added.
    """
    calls = batches_of_calls(inbox)
    for call in calls:
        sink.target.gateway.once(call, after=lost)

    sink.run(inbox.rows(spark))

    sink.target.check_once(range(1200))
    assert [2, 2, 2] == [sink.target.gateway.count(call) for call in calls]

    for late in reversed(sink.target.gateway.asked("^(PUT|POST)")):
        url = sink.target.publisher + late.target
        answer = requests.request(
            late.method, url, data=late.raw[late.head :], headers=JSON, timeout=30
        )
        assert answer.json()["status"] == "already-committed"
    sink.target.check_once(range(1200))


def test_a_query_that_gave_up_continues(sink, inbox, spark):
    """F5, F6: with no time to ask again the query fails and Spark aborts; it is started again."""
    for call in batches_of_calls(inbox):
        sink.target.gateway.once(call, after=lost)

        said = sink.fail(inbox.rows(spark), retryTimeout="0s")

        where = f"UnavailableError: the publisher of {sink.target.url} does not answer"
        assert said.startswith(where)
    sink.run(inbox.rows(spark))

    sink.target.check_once(range(1200))


def batches_of_calls(inbox):
    """Four batches; gives each call of one of the last three, as the gateway notes it."""
    inbox.add(*(range(i, i + 300) for i in range(0, 1200, 300)))
    return [call_of(call, batch) for batch, call in enumerate(CALLS, 1)]


# Drivers and checkpoints


def test_a_query_that_is_stopped_in_a_batch_continues(sink, inbox, spark):
    """q.stop() in tasks and a commit: the batch comes again; late requests change nothing."""
    late = []
    for call in batches_of_calls(inbox):
        come, go = sink.target.gateway.hold(call)
        query = sink.start(inbox.rows(spark))
        assert come.wait(PATIENCE)
        if "commit" in call:
            threading.Timer(0.5, go.set).start()
        query.stop()
        late.append(go)
    sink.run(inbox.rows(spark))
    for go in late:
        go.set()

    sink.target.check_once(range(1200))
    assert sink.target.batches() == [0, 1, 2, 3]


def test_two_copies_of_a_checkpoint_that_take_turns_publish_once(sink, inbox, spark):
    """F7, F13: each is rolled back, repeats what the other has published, and continues."""
    inbox.add(range(100))
    sink.run(inbox.rows(spark))
    other = shutil.copytree(sink.checkpoint, sink.folder / "other")

    for turn in range(1, 5):
        inbox.add(range(turn * 100, turn * 100 + 100))
        sink.run(inbox.rows(spark), sink.checkpoint if turn % 3 else other)

    sink.target.check_once(range(500))
    assert sink.target.batches() == [0, 1, 2, 3, 4]


# Rows, and where they come from


def test_empty_batches_are_published_too(sink, inbox, spark):
    """F19: a batch without rows leaves no gap behind."""
    inbox.add(range(5), range(10, 12), range(5, 9), range(12, 14))

    sink.run(inbox.rows(spark).where("get_json_object(data, '$.i') >= 10"))

    sink.target.check_once(range(10, 14))
    assert [each["events"] for each in sink.target.receipts("spark")] == [0, 2, 0, 2]


def test_a_stream_continues_the_numbers_of_another_system(sink, inbox, spark):
    """Its first event in a partition has the number that I name; dead letters have none (EH-13)."""
    inbox.add(range(3), range(3, 6), broken=[1, 4])
    letters = {"deadLetterUrl": sink.target.feed("dead")}
    frame = inbox.rows(spark).selectExpr("data", "0 AS partition")
    for _ in range(2):  # the option may stay
        sink.run(frame, startingSequence="0:1000,2:7", **letters)
        inbox.add(range(6, 9))

    numbers = [each.stamp[2] for each in sink.target.events()]
    assert numbers == list(range(1000, 1007))
    assert {each.stamp[2] for each in sink.target.events("dead")} <= {0, 1}
    assert len(sink.target.events("dead")) == 2
    said = sink.fail(frame, startingSequence="0:5", **letters)
    assert "is to begin with number 5 in partition 0, and it began with 1000 there" in said


def test_a_named_write_adds_its_rows_once(target, spark, write):
    """The same rows again under their batchId, in other tasks: nothing is added."""
    frame = spark.range(1000).selectExpr("id AS i")

    write(frame.repartition(3), batchId="2026-11-20")
    write(frame.repartition(2), batchId="2026-11-20")
    write(spark.range(1000, 1500).selectExpr("id AS i"), batchId="2026-11-21")

    target.check_once(range(1500))
    assert target.batches("spark#2026-11-20") == [0]

    for _ in range(2):
        write(spark.range(1500, 1600).selectExpr("id AS i"), batchId="none")  # each time
        write(spark.range(0).selectExpr("id AS i"), batchId="quiet")  # a day without rows

    target.check_once([*range(1600), *range(1500, 1600)])
    assert [each["events"] for each in target.receipts("spark#quiet")] == [0]


@pytest.mark.slow
def test_a_write_in_a_thread_that_has_registered(target, spark, write):
    """Spark searches the format in the thread's active session, which a new one has not."""

    def publish(number):
        zeh_spark.register(spark)
        write(spark.range(number, number + 10).selectExpr("id AS i"), batchId=str(number))

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(publish, range(0, 40, 10)))

    target.check_once(range(40))


@pytest.mark.slow
def test_a_relay_keeps_order_and_stamps_anew(sink, spark, write, stream):
    """Feed to Spark to feed: each partition in its order, its own headers, new stamps."""
    rows = spark.range(0, 3000, 1, 1).selectExpr(
        "map('kind', string(id % 7)) AS headers",
        "INT(id % 3) AS partition",
        "struct(id AS i) AS data",
    )
    write(rows, batchId="first")
    came = sink.target.events()
    options = {"url": f"{sink.target.publisher}/orders", "maxEventsPerTrigger": "700"}

    frame = stream(**options).load()
    to_the_end(lambda: sink.start(frame, url=sink.target.feed("copy"), producerId="relay"))

    sink.target.check_once(range(3000), "copy")
    copied = sink.target.events("copy")
    assert in_order(copied) == in_order(came)
    assert {each.headers["zeh-producer"] for each in copied} == {"relay"}
    assert len(sink.target.receipts("relay", "copy")) > 2


def in_order(events):
    return {
        partition: [
            (each.data["i"], each.headers["kind"]) for each in events if each.partition == partition
        ]
        for partition in range(PARTITIONS)
    }


def test_rows_of_one_key_stay_together_and_in_order(target, spark, write):
    """Repartitioned by key and sorted within, as the documentation says."""
    frame = spark.range(2000).selectExpr("id AS i", "string(id % 50) AS key")

    write(frame.repartition(4, "key").sortWithinPartitions("key", "i"), batchId="keyed")

    target.check_once(range(2000))
    events = target.events()
    assert len({(each.data["key"], each.partition) for each in events}) == 50
    for key in range(50):
        numbers = [each.data["i"] for each in events if each.data["key"] == str(key)]
        assert numbers == sorted(numbers)
