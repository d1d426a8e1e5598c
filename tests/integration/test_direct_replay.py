"""A batch that Spark repeats has the events that it had, or is refused by name."""

import shutil
from contextlib import closing

import pytest

from tests.fix_publisher import new_feed
from tests.fix_stream import position
from zeh_spark.errors import PublisherError, ReplayError
from zeh_spark.publisher import open_store
from zeh_spark.testing import publish, running_publisher


@pytest.fixture
def batch(publisher, start):
    """`batch()`: where a batch of ten events began, and where it ended."""
    publisher.publish(*range(10), partition=0)
    run = start(url=publisher.url, fetch="executors", finite=True)
    assert {0: [*range(10)]} == run.next()
    return run.start, run.offset


@pytest.mark.parametrize(
    ("way", "name", "value"),
    [
        ("executors", "events", 9),
        ("executors", "events", 11),
        ("executors", "digest", "0" * 32),
        ("driver", "events", 9),
        ("driver", "events", 11),
    ],
)
def test_a_batch_that_has_other_events_now_is_refused(publisher, start, batch, way, name, value):
    """The number alone tells it, and so does the digest alone."""
    begin, end = batch
    position(end)[name] = value
    again = start(url=publisher.url, fetch=way, offset=begin)
    with pytest.raises(ReplayError, match=r"partition 0.*replay=accept"):
        again.rows(begin, end)


def test_a_batch_that_ended_elsewhere_is_refused_on_the_drivers_way(publisher, start, batch):
    """As many events are not enough: they have to end where the batch ended."""
    begin, end = batch
    publisher.publish(*range(10, 13), partition=0)
    later = start(url=publisher.url, fetch="executors", finite=True)
    later.next()
    position(end)["cursor"] = position(later.offset)["cursor"]
    with pytest.raises(ReplayError, match="the feed gives 13 now"):
        start(url=publisher.url, fetch="driver", offset=begin).rows(begin, end)


def test_accept_takes_other_events(publisher, start, batch, caplog):
    """I go on deliberately, and the log says what has changed."""
    begin, end = batch
    position(end)["events"] = 9
    again = start(url=publisher.url, fetch="executors", replay="accept", offset=begin)
    assert {0: [*range(10)]} == again.rows(begin, end)
    assert "had 9 events, now it has 10" in caplog.text


@pytest.mark.parametrize("fetch", ["executors", "driver"])
def test_the_same_events_published_again_after_a_restore_are_other_events(start, tmp_path, fetch):
    """Cursors and numbers are equal; the time of the commit is not, and rows show it."""
    file, backup = tmp_path / "feed.db", tmp_path / "backup.db"
    new_feed(file)
    shutil.copy(file, backup)
    ends = []
    for each in (file, backup):
        with closing(open_store(f"sqlite:///{each}")) as store, running_publisher(store) as base:
            publish(store, "orders", [1, 2, 3])
            options = {"url": f"{base}/orders", "feedId": "orders", "fetch": fetch}
            run = start(**options, finite=True)
            assert {0: [1, 2, 3]} == run.next()
            ends.append(run.offset)
            if each == backup:
                again = start(**options, offset=run.start)
                with pytest.raises(ReplayError, match="gives others"):
                    again.rows(run.start, ends[0])

    lost, found = ([position(end)[name] for name in ("cursor", "events", "bytes")] for end in ends)
    assert lost == found


@pytest.mark.parametrize("replay", ["strict", "accept"])
def test_a_batch_that_a_restore_has_undone_names_the_way_on(start, tmp_path, replay):
    """Its end is no cursor of the feed any more: to take what the feed has now, or to begin at the
    end, would be refused as well.
    """
    file, backup = tmp_path / "feed.db", tmp_path / "backup.db"
    new_feed(file)
    shutil.copy(file, backup)
    options = {"feedId": "orders", "fetch": "executors", "replay": replay}
    with closing(open_store(f"sqlite:///{file}")) as store, running_publisher(store) as base:
        publish(store, "orders", [1, 2, 3])
        run = start(url=f"{base}/orders", **options, finite=True)
        assert {0: [1, 2, 3]} == run.next()
    with closing(open_store(f"sqlite:///{backup}")) as store, running_publisher(store) as base:
        for event in (4, 5):
            publish(store, "orders", [event])
        again = start(url=f"{base}/orders", **options, offset=run.start)
        with pytest.raises(PublisherError, match="409 cursor-of-another-history") as raised:
            again.rows(run.start, run.offset)

    assert 0 == raised.value.partition
    assert "zeh_spark.shared_cursors(checkpointLocation, url)" in str(raised.value)
    assert "replay=accept" not in str(raised.value)
