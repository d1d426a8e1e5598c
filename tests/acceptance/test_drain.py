"""`drain`: the feed's end on every Spark, whatever a run brings."""

import pytest
from pyspark.errors import StreamingQueryException

import zeh_spark
from tests.fix_raw_server import ok, refused
from tests.patience import PATIENCE
from tests.scratch_store import ScratchStore
from zeh_spark.errors import OptionError
from zeh_spark.testing import publish, running_publisher


@pytest.fixture
def url():
    """The address of a feed of 400 events in 20 chunks."""
    store = ScratchStore(orders=4)
    for begin in range(0, 400, 80):
        publish(store, "orders", [{"i": i} for i in range(begin, begin + 80)])
    with running_publisher(store) as base:
        yield f"{base}/orders"


@pytest.fixture
def run_with(stream, tmp_path):
    """`run_with(write, …)`: a function that starts a run of a query with foreachBatch."""

    def made(write, **options):
        def start():
            return (
                stream(**options)
                .load()
                .writeStream.foreachBatch(write)
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .trigger(once=True)
                .start()
            )

        return start

    return made


def test_draining_reads_everything_in_single_runs(run_with, url, capsys):
    """drain() is AvailableNow for Spark 4.0 and 4.1, also where the sink has the batch already."""
    rows, crashes = {}, [True]

    def write(frame, number):
        if number not in rows:  # as to_delta: the table tells which batches it has
            rows[number] = frame.collect()
            if crashes:
                crashes.clear()
                raise RuntimeError("crash between the table's commit and Spark's")

    start = run_with(write, url=url, maxEventsPerTrigger="150")

    with pytest.raises(StreamingQueryException, match="crash between"):
        start().awaitTermination()
    runs = zeh_spark.drain(start, timeout=PATIENCE, live=True)

    assert f"run 1  {url}  batch " in capsys.readouterr().err
    assert sum(map(len, rows.values())) == 400
    assert runs > 3


def test_draining_needs_the_progress_of_a_run(run_with, url, spark):
    """Without it, a run that read events would look like one at the feed's end."""
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", "1")
    start = run_with(lambda *_: None, url=url)

    try:
        with pytest.raises(OptionError, match="numRecentProgressUpdates is less than 2"):
            zeh_spark.drain(start, timeout=PATIENCE)
    finally:
        spark.conf.unset("spark.sql.streaming.numRecentProgressUpdates")


@pytest.mark.slow
def test_draining_goes_on_where_a_publisher_skips(run_with, raw_server):
    """A publisher that filters may move the cursor for long before there is an event."""

    def page(request):
        at = request.query["cursor0"]
        if at == "_last":
            return ok(b'{"partition":0,"cursor":"500"}\n')
        number = -1 if at == "_first" else int(at)
        if number >= 251:
            return ok(b'{"partition":0,"cursor":"500"}\n')
        event = b'{"partition":0,"data":{"id":1}}\n' if number == 250 else b""
        return ok(event + b'{"partition":0,"cursor":"%d"}\n' % (number + 1))

    raw_server.discovery = refused(400)
    raw_server.respond = page
    rows = []

    start = run_with(
        lambda frame, _: rows.extend(frame.collect()),
        url=raw_server.url,
        partitionCount="1",
        retryTimeout="4s",
    )

    runs = zeh_spark.drain(start, timeout=PATIENCE)

    assert ['{"id":1}'] == [each.data for each in rows]
    assert runs >= 4
