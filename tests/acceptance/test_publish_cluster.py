"""What the sink promises when processes are killed, publishers and drivers.

The letters and numbers are those of the failure modes, see tests/README.md.
"""

import json
import os
import shutil
import threading
from collections import Counter
from contextlib import closing

import pytest
from pyspark.errors import StreamingQueryException

from tests.fix_dead_letters import letters_of
from tests.fix_publisher import store_url
from tests.fix_sink import CALLS, UPLOADING, call_of, lost, remedy
from tests.patience import PATIENCE
from zeh_spark.publisher import open_store


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


DEATHS = [*((call, "before") for call in CALLS), ("commit", "after")]


@pytest.mark.kill
@pytest.mark.slow
def test_a_publisher_that_is_away_for_a_while_is_waited_for(sink, killable, inbox, spark):
    """It is killed at each call, in a batch of its own, and comes back: the query continues by
    itself. F14: also after a commit, which is durable though its answer was never sent.
    """
    sink.target, publisher = killable
    inbox.add(*(range(i, i + 300) for i in range(0, 1500, 300)))
    back = []

    def leave():
        publisher.kill()
        back.append(threading.Timer(1, publisher.start))
        back[-1].start()
        lost()

    for batch, (call, moment) in enumerate(DEATHS, 1):
        sink.target.gateway.once(call_of(call, batch), **{moment: leave})

    sink.run(inbox.rows(spark), retryTimeout="5m")

    sink.target.check_once(range(1500))
    assert len(back) == len(DEATHS)
    assert sink.target.gateway.count(f"PUT .*/batches/{len(DEATHS)}/") == 1
    for each in back:
        each.join()


STAGES = [("orders", call, "after") for call in CALLS]
STAGES += [
    ("orders", "commit", "before"),
    ("dead", "commit", "before"),
    ("dead", "commit", "after"),
]
"""Where a driver dies: the publisher has nothing of the batch then, one upload, all of it; or all
uploads. The dead letters are published first."""


@pytest.mark.kill
@pytest.mark.slow
def test_each_row_is_published_once_when_the_driver_is_killed(
    sink, inbox, spark, program, tmp_path
):
    """F3, F4: SIGKILL at each stage, also of dead letters. They continue from checkpoints.
    Some rows are no JSON, others break the feed's schema (CN-07).
    """
    odd, wrong = set(range(0, 3000, 7)), set(range(0, 3000, 11))
    with closing(open_store(store_url(tmp_path / "store"))) as store:
        store.set_schema("orders", b'{"properties": {"i": {"not": {"multipleOf": 11}}}}')
    inbox.add(range(1000), range(1000, 2000), range(2000, 3000), pad=200, broken=odd)
    broken = odd | wrong
    options = {**UPLOADING, "deadLetterUrl": sink.target.feed("dead")}
    producers = {"-".join(stage).replace(" ", "-"): stage for stage in STAGES}
    checkpoints = {name: tmp_path / name for name in producers}
    driver = program(sink.target.url, checkpoints=checkpoints, options=options, restarts=50)
    places = [
        (call_of(call, producer=name).replace(".*", f".*/{feed}/.*", 1), moment)
        for name, (feed, call, moment) in producers.items()
    ]

    driver.run_until_killed(sink.target.gateway, places)
    for name, checkpoint in checkpoints.items():
        sink.run(inbox.rows(spark).repartition(3), checkpoint, producerId=name, **options)

    events = sink.target.events()
    once = {(name, i) for name in producers for i in set(range(3000)) - broken}
    assert Counter((each.stamp[0], each.data["i"]) for each in events) == Counter(once)
    sink.target.check_stamps(events)
    found = Counter(
        (each["producer"], int(each["row"]["data"].split(":")[1].split(",")[0]))
        for each in letters_of(f"{sink.target.publisher}/dead")
    )
    assert found == Counter((name, i) for name in producers for i in broken)
    for feed in ("orders", "dead"):
        assert {name: [0, 1, 2] for name in producers} == {
            name: [each["batch"] for each in sink.target.receipts(name, feed)] for name in producers
        }


@pytest.mark.slow
def test_two_drivers_that_restart_for_ever_make_progress(sink, inbox, spark, program):
    """F7, A3: at the same time, on one checkpoint and on copies of one; the one that is behind is
    stopped, by Spark or by the fence, and comes back; both end.
    """
    checkpoints = {name: sink.folder / name for name in ("one", "copies")}
    inbox.add(range(100))
    for name, checkpoint in checkpoints.items():
        sink.run(inbox.rows(spark), checkpoint, producerId=name)
    other = shutil.copytree(checkpoints["copies"], sink.folder / "other")
    inbox.add(*(range(i, i + 100) for i in range(100, 900, 100)))
    twin = program(sink.target.url, checkpoints={**checkpoints, "copies": other}, restarts=50)
    holds = {name: sink.target.gateway.hold(call_of("look up", 1, name)) for name in checkpoints}
    twin.start()

    failures = []
    for name, (come, go) in holds.items():
        assert come.wait(PATIENCE)
        go.set()
        failures += run_with_restarts(sink, inbox.rows(spark), checkpoints[name], producerId=name)
    failures += [
        json.loads(line.removeprefix("failed: "))
        for line in twin.wait().splitlines()
        if line.startswith("failed: ")
    ]

    sink.target.check_once([*range(900), *range(900)])
    # Spark's own failures, over files of a checkpoint that two write, have many forms.
    ours = [each for each in failures if "zeh_spark." in each or "zeh_spark/" in each]
    assert [] == [each for each in ours if "was overtaken" not in each]


def run_with_restarts(sink, frame, checkpoint, **options):
    failures = []
    while True:
        try:
            sink.run(frame, checkpoint, **options)
            return failures
        except StreamingQueryException as exc:
            failures.append(str(exc))  # ours, or Spark's own: either of the two may be behind
            assert len(failures) < 50, failures
