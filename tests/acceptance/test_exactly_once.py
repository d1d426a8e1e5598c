"""The first promise: each event once, through any crash, or an error that says what to do."""

import shutil
from collections import Counter
from contextlib import closing

import pytest

from tests.fix_raw_server import NO_IDENTITY, ok
from tests.scratch_store import ScratchStore
from zeh_spark.protocol import wire
from zeh_spark.publisher import open_store
from zeh_spark.testing import publish, running_publisher

PARTITIONS = 3
pytestmark = pytest.mark.kill


@pytest.fixture
def orders():
    """A feed of 900 events in many small chunks; gives the store and the feed's URL."""
    store = ScratchStore()
    store.create("orders", PARTITIONS)
    add(store, range(900))
    with running_publisher(store) as url:
        yield store, f"{url}/orders"


def add(store, numbers):
    for begin in range(numbers.start, numbers.stop, 60):
        publish(store, "orders", [{"i": i} for i in range(begin, min(begin + 60, numbers.stop))])


def check_refused(streaming, done, *words):
    """A run failed with these words, and its table stayed empty."""
    assert done.returncode == 1
    for each in words:
        assert each in done.stderr
    assert streaming.table.rows() == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "way",
    [
        pytest.param({"fetch": "executors"}, id="executors"),
        pytest.param({"fetch": "driver"}, id="driver"),
        pytest.param({"stagingLocation": "staging"}, id="staged", marks=pytest.mark.campaign),
    ],
)
def test_each_event_arrives_once_when_the_driver_is_killed(orders, job, tmp_path, way):
    """A job that is killed in three batches, at each stage, while the feed grows, continues without
    loss or doubles, whoever fetches.
    """
    store, url = orders
    if "stagingLocation" in way:
        way = {"stagingLocation": str(tmp_path / "staging")}
    streaming = job(url=url, maxEventsPerTrigger="200", **way)

    streaming.run(crash=(1, "planned"))
    add(store, range(900, 1000))
    streaming.run(crash=(2, "tasks"))
    add(store, range(1000, 1200))
    streaming.run(crash=(3, "written"))
    streaming.run()

    assert streaming.table.numbers() == Counter(range(1200))


@pytest.mark.slow
@pytest.mark.parametrize("way", ["executors", pytest.param("driver", marks=pytest.mark.campaign)])
def test_each_event_arrives_once_when_the_first_batch_is_killed(orders, job, way):
    """Spark does not log where the first batch began; it is repeated all the same."""
    store, url = orders
    streaming = job(url=url, maxEventsPerTrigger="200", fetch=way)

    streaming.run(crash=(0, "planned"))
    add(store, range(900, 1000))
    streaming.run(crash=(0, "written"))
    streaming.run()

    assert streaming.table.numbers() == Counter(range(1000))


@pytest.mark.slow
def test_the_reference_publisher_is_read_once_through_a_crash(start_reference_server, job):
    """What holds for our publisher holds for the reference one."""
    url = start_reference_server(partitions=2, events=1000, checkpoints="page")
    streaming = job(url=url, partitionCount="2", pageSizeHint="90", maxEventsPerTrigger="500")

    streaming.run(crash=(1, "tasks"))
    streaming.run()

    once = {(partition, f'{{"id": {i}}}') for partition in range(2) for i in range(1000)}
    assert Counter(streaming.table.rows()) == Counter(once)


@pytest.mark.slow
def test_each_event_arrives_once_when_who_fetches_changes_after_each_crash(orders, job):
    """The option changes in both directions, each time with a batch pending."""
    store, url = orders
    streaming = job(url=url, maxEventsPerTrigger="200", fetch="executors")

    for batch, (way, stage) in enumerate(
        [("driver", "planned"), ("executors", "written"), ("driver", "tasks")]
    ):
        streaming.run(crash=(batch, stage))
        add(store, range(900 + 100 * batch, 1000 + 100 * batch))
        streaming.options["fetch"] = way
    streaming.run()

    assert streaming.table.numbers() == Counter(range(1200))


@pytest.mark.slow
@pytest.mark.parametrize("way", ["executors", "driver"])
def test_a_batch_that_the_feed_no_longer_gives_is_refused(job, tmp_path, way):
    """After a crash the feed, restored from a backup, has other events: the job stops and says what
    can be done.
    """
    with closing(open_store(f"sqlite:///{tmp_path}/orders.db")) as store:
        store.create("orders", PARTITIONS)
    shutil.copy(tmp_path / "orders.db", tmp_path / "backup.db")
    with closing(open_store(f"sqlite:///{tmp_path}/orders.db")) as store:
        publish(store, "orders", [{"i": i} for i in range(900)])
        with running_publisher(store) as url:
            streaming = job(
                url=f"{url}/orders", maxEventsPerTrigger="200", feedId="orders", fetch=way
            )
            streaming.run(crash=(0, "planned"))

    with closing(open_store(f"sqlite:///{tmp_path}/backup.db")) as restored:
        publish(restored, "orders", [{"i": i} for i in range(500, 1400)])
        with running_publisher(restored) as url:
            streaming.options["url"] = f"{url}/orders"
            done = streaming.attempt()

    check_refused(
        streaming,
        done,
        "ReplayError: [ZEH_REPLAY] partition ",
        "'stagingLocation'",
        "replay=accept",
    )


@pytest.mark.slow
def test_another_feed_under_the_name_is_refused(orders, job):
    """Its cursors would mean other events; the job stops with both ids and says what to do."""
    _, url = orders
    streaming = job(url=url, maxEventsPerTrigger="200", feedId="orders")
    streaming.run(crash=(0, "planned"))
    other = ScratchStore()
    other.create("orders", PARTITIONS)
    publish(other, "orders", [{"i": i} for i in range(900)])

    with running_publisher(other) as url:
        streaming.options["url"] = f"{url}/orders"
        done = streaming.attempt()

    said = (
        "CheckpointError: [ZEH_CHECKPOINT] the checkpoint belongs",
        "serves another feed",
        "'url'",
    )
    check_refused(streaming, done, *said)


@pytest.mark.slow
def test_an_unfit_batch_passes_with_replay_accept(raw_server, job):
    """What the error advises takes what the feed gives now, up to where the batch ended."""
    raw_server.discovery = NO_IDENTITY
    raw_server.respond = feed_of(range(100))
    streaming = job(url=raw_server.url, partitionCount="1", maxEventsPerTrigger="60")
    streaming.run(crash=(1, "planned"))
    left = [*range(70), *range(80, 120)]
    raw_server.respond = feed_of(left)
    assert (
        "ReplayError: [ZEH_REPLAY] partition 0: Spark has to repeat" in streaming.attempt().stderr
    )

    streaming.options["replay"] = "accept"
    streaming.run()

    assert streaming.table.numbers() == Counter(left)


def feed_of(numbers):
    """A feed that holds these numbers; a cursor is the number after it."""

    def respond(request):
        cursor = request.query["cursor0"]
        at = {"_first": 0, "_last": max(numbers) + 1}.get(cursor)
        at = int(cursor) if at is None else at
        lines = [
            wire.event_line(0, {}, b'{"i":%d}' % i) + b"\n" + wire.checkpoint_line(0, str(i + 1))
            for i in numbers
            if i >= at
        ]
        return ok(b"".join(lines) or wire.checkpoint_line(0, str(at)))

    return respond
