"""The first promise: each event once, through any crash, or an error that says what to do.

Queries of all kinds run side by side in one driver. It is killed while their feeds grow, each time
when every query is at another stage, and then they run to their ends.
"""

import json
import shutil
from collections import Counter

import pytest

from tests import fix_reference
from tests.fix_killed import into_files, run_to_the_end, run_until_killed
from tests.fix_object_stores import used
from tests.fix_publisher import new_feed, open_feeds
from tests.fix_spark import Table, in_batches
from tests.fix_stream import Feed, Log
from tests.programs.several_queries import PLACES
from zeh_spark.testing import publish, running_publisher

STAGES = PLACES["into_files"]
BATCHES = [0, 0, 2]
"""In which the driver is killed. Spark does not log where the first one began."""

QUERIES = {
    "executors": {"maxEventsPerTrigger": "200", "fetch": "executors"},
    "changing": {"maxEventsPerTrigger": "200", "fetch": "executors"},
    "staged": {"maxEventsPerTrigger": "40", "partitionCount": "1"},
    "inline": {"maxEventsPerTrigger": "100", "inline": "true"},
    "reference": {"maxEventsPerTrigger": "400", "partitionCount": "2", "pageSizeHint": "90"},
}


@pytest.fixture
def orders(tmp_path):
    """A feed of 900 events in many small chunks; gives the store and the feed's URL."""
    with open_feeds(tmp_path / "orders.db", orders=3) as store:
        add(store, range(900))
        with running_publisher(store) as url:
            yield store, f"{url}/orders"


@pytest.fixture
def reference():
    """The address of a feed of the reference publisher; None if that is absent."""
    if fix_reference.why_absent():
        yield None
    else:
        with fix_reference.reference_server(partitions=2, events=1000) as url:
            yield url


def add(store, numbers):
    for begin in range(numbers.start, numbers.stop, 60):
        publish(store, "orders", [{"i": i} for i in range(begin, min(begin + 60, numbers.stop))])


@pytest.mark.kill
@pytest.mark.slow
@pytest.mark.spark
def test_each_event_arrives_once_when_the_driver_is_killed(
    orders, reference, raw_server, s3_server, tmp_path
):
    """Whoever fetches, also if that changes with each batch that is pending, and if rows come with
    the plan. A batch that is staged in S3 needs the feed no more, and shows no credentials. What
    holds for our publisher holds for the reference one.
    """
    store, url = orders
    scripted = Feed(raw_server, [Log(240, each=10)])
    urls = {"staged": scripted.server.url, "reference": reference}
    jobs = {
        name: into_files(tmp_path / name, urls.get(name, url), **given)
        for name, given in QUERIES.items()
    }
    jobs["staged"]["options"]["stagingLocation"] = s3_server.location()
    if not reference:
        del jobs["reference"]
    assert len(BATCHES) == len(STAGES)  # so that each query dies once at each stage

    with used(s3_server) as bucket:
        for run, batch in enumerate(BATCHES):
            stages = 2 * (STAGES[run:] + STAGES[:run])
            places = (f"{batch} {stage}" for stage in stages)
            killed = zip(jobs.values(), places, strict=False)
            run_until_killed(tmp_path, ({**job, "place": place} for job, place in killed))
            planned = (tmp_path / "staged/checkpoint/offsets" / str(batch)).read_text()
            end = json.loads(planned.splitlines()[-1])["partitions"]["0"]["cursor"]
            scripted.logs[0].gone_below = int(end[1:])
            add(store, range(100 * (run + 9), 100 * (run + 10)))
            jobs["changing"]["options"]["fetch"] = ("driver", "executors")[run % 2]
        run_to_the_end(tmp_path, jobs.values())
        left = bucket.names()

    tables = {name: Table(tmp_path / name / "table") for name in jobs}
    for name in ("executors", "changing", "inline"):
        assert tables[name].numbers() == Counter(range(1200)), name
    assert Counter(int(data) for _, data in tables["staged"].rows()) == Counter(range(240))
    if reference:
        once = {(partition, f'{{"id": {i}}}') for partition in range(2) for i in range(1000)}
        assert Counter(tables["reference"].rows()) == Counter(once)
    assert len({each.split("/")[1] for each in left}) <= 1
    shown = "".join(each.read_text("latin-1") for each in tmp_path.rglob("*") if each.is_file())
    assert [] == [secret for secret in bucket.secrets if secret in shown]


def test_a_batch_that_the_feed_no_longer_gives_is_refused(stream, tmp_path):
    """After a crash a restored feed has other events: the job stops and says what can be done."""
    rows = []

    def run(store, crash=False):
        def keep(batch, _):
            if crash:
                raise RuntimeError("the driver dies here")
            rows.extend(batch.collect())

        with running_publisher(store) as base:
            feed = stream(url=f"{base}/orders", feedId="orders").load()
            with pytest.raises(Exception) as raised:
                in_batches(feed, keep, tmp_path / "checkpoint").awaitTermination()
        return str(raised.value)

    new_feed(tmp_path / "orders.db", partitions=3)
    shutil.copy(tmp_path / "orders.db", tmp_path / "backup.db")
    with open_feeds(tmp_path / "orders.db") as store:
        add(store, range(900))
        assert "the driver dies here" in run(store, crash=True)
    with open_feeds(tmp_path / "backup.db") as restored:
        add(restored, range(500, 1400))
        said = run(restored)

    assert rows == []
    for each in ("PublisherError: ", "409 cursor-of-another-history", "zeh_spark.shared_cursors("):
        assert each in said
