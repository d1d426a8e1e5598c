"""What the sink promises when processes are killed, publishers and drivers, and on a cluster.

The letters and numbers are those of the failure modes, see tests/README.md.
"""

import json
import os
import shutil
import threading

import pytest
from pyspark.errors import StreamingQueryException

from tests.fix_sink import CALLS, UPLOADING, lost, remedy
from tests.patience import PATIENCE


@pytest.mark.slow
def test_a_task_that_fails_half_way_is_repeated(target, inbox, program, tmp_path):
    """F1: what the first attempt has uploaded already is not published."""
    inbox.add(range(10_000), pad=200)
    uploaded = tmp_path / "uploaded"
    target.gateway.once("PUT .*[.]0[.][0-9]+[.]0$", after=uploaded.touch)
    driver = program(
        target.url, master="local[2,4]", tasks=2, clumsy=str(uploaded), options=UPLOADING,
        conf={"spark.sql.execution.arrow.maxRecordsPerBatch": 1000},
    )  # fmt: skip

    driver.start()
    driver.wait()

    target.check_once(range(10_000))
    assert len(target.gateway.attempts(task=0)) == 2


@pytest.mark.kill
def test_a_publisher_that_is_killed_after_a_commit_is_asked_later(sink, killable, inbox, spark):
    """F14: batch 1 is durable though its answer was never sent; the query comes back to it."""
    sink.target, publisher = killable
    inbox.add(range(300), range(300, 600), range(600, 900))
    sink.target.gateway.once(CALLS["commit"], after=lambda: (publisher.kill(), lost()))

    sink.fail(inbox.rows(spark), retryTimeout="300ms")
    publisher.start()
    sink.run(inbox.rows(spark))

    sink.target.check_once(range(900))
    assert sink.target.gateway.count("PUT .*/batches/1/") == 1


@pytest.mark.skipif("ZEH_TEST_STORE" in os.environ, reason="the backup is a copy of SQLite's file")
def test_a_restored_publisher_is_noticed(sink, killable, inbox, spark, tmp_path):
    """F15: batches 2 and 3 are missing there, and batch 4 is not taken in silence."""
    sink.target, publisher = killable
    inbox.add(range(300), range(300, 600))
    sink.run(inbox.rows(spark))
    publisher.kill()
    shutil.copytree(publisher.folder, tmp_path / "backup")
    publisher.start()
    inbox.add(range(600, 700), range(700, 800))
    sink.run(inbox.rows(spark))
    publisher.kill()
    shutil.copytree(tmp_path / "backup", publisher.folder, dirs_exist_ok=True)
    publisher.start()
    inbox.add(range(800, 900))

    said = sink.fail(inbox.rows(spark))
    sink.run(inbox.rows(spark), **remedy(said))

    assert "producer 'spark' has published up to batch 1, this is 4: a restore of the" in said
    assert remedy(said)["acceptGap"].endswith("1:4")
    sink.target.check_once([*range(600), *range(800, 900)])


@pytest.mark.kill
@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS)
def test_a_publisher_that_is_away_for_a_while_is_waited_for(call, sink, killable, inbox, spark):
    """It is killed in a batch and comes back: the query continues by itself."""
    sink.target, publisher = killable
    inbox.add(range(300), range(300, 600), range(600, 900))
    back = threading.Timer(1, publisher.start)
    sink.target.gateway.once(CALLS[call], before=lambda: (publisher.kill(), back.start(), lost()))

    sink.run(inbox.rows(spark))

    sink.target.check_once(range(900))
    back.join()


@pytest.mark.kill
@pytest.mark.parametrize(
    ("call", "moment"),
    [
        pytest.param("upload", "after", marks=pytest.mark.slow),
        pytest.param("commit", "before", marks=pytest.mark.slow),
        ("commit", "after"),
    ],
    ids=["while tasks upload", "before the commit", "after the commit"],
)
def test_each_row_is_published_once_when_the_driver_is_killed(
    call, moment, sink, inbox, spark, program
):
    """F3, F4: SIGKILL, then the query continues from the checkpoint."""
    inbox.add(range(3000), range(3000, 6000), range(6000, 9000), pad=200)
    driver = program(sink.target.url, options=UPLOADING)
    sink.target.gateway.once(CALLS[call], **{moment: lambda: (driver.kill(), lost())})

    driver.start()
    driver.wait(-9)
    sink.run(inbox.rows(spark))

    sink.target.check_once(range(9000))
    assert sink.target.batches() == [0, 1, 2]


@pytest.mark.slow
@pytest.mark.parametrize("place", ["one checkpoint", "copies"])
def test_two_drivers_that_restart_for_ever_make_progress(place, sink, inbox, spark, program):
    """F7, A3: at the same time; the one that is behind is stopped, by Spark or by the fence, and
    comes back; both end.
    """
    inbox.add(range(100))
    sink.run(inbox.rows(spark))
    other = sink.checkpoint
    if place == "copies":
        other = shutil.copytree(sink.checkpoint, sink.folder / "other")
    inbox.add(*(range(i, i + 100) for i in range(100, 900, 100)))
    twin = program(sink.target.url, checkpoint=str(other), restarts=50)
    come, go = sink.target.gateway.hold("GET .*/batches/1$")
    twin.start()
    assert come.wait(PATIENCE)

    go.set()
    failures = run_with_restarts(sink, inbox.rows(spark))
    failures += [
        json.loads(line.removeprefix("failed: "))
        for line in twin.wait().splitlines()
        if line.startswith("failed: ")
    ]

    sink.target.check_once(range(900))
    # Spark's own failures, over files of a checkpoint that two write, have many forms.
    ours = [each for each in failures if "zeh_spark." in each or "zeh_spark/" in each]
    assert [] == [each for each in ours if "was overtaken" not in each]


def run_with_restarts(sink, frame):
    failures = []
    while True:
        try:
            sink.run(frame)
            return failures
        except StreamingQueryException as exc:
            failures.append(str(exc))  # ours, or Spark's own: either of the two may be behind
            assert len(failures) < 50, failures


@pytest.mark.kill
@pytest.mark.slow
def test_a_cluster_publishes_each_row_once_through_a_crash(cluster, sink, inbox, spark, program):
    """F4, F10: each task spreads its rows over all partitions; the driver is killed after a commit,
    and the query continues elsewhere, in other tasks.
    """
    inbox.add(range(3000), range(3000, 6000), range(6000, 9000), pad=200)
    conf = {"spark.speculation": "true", "spark.speculation.interval": "10ms"}
    driver = program(sink.target.url, master=cluster, tasks=4, conf=conf, options=UPLOADING)
    gateway = sink.target.gateway
    gateway.once(CALLS["commit"], after=lambda: (driver.kill(), lost()))

    driver.start()
    driver.wait(-9)
    sink.run(inbox.rows(spark))

    sink.target.check_once(range(9000))
    assert sink.target.batches() == [0, 1, 2]
    assert all(gateway.attempts(task) for task in range(4))
