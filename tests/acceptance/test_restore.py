"""What readers and writers of a feed see when its publisher is restored from an older copy, and
that what they are advised works: once.
"""

import json
import shutil
from types import SimpleNamespace

import pytest

import zeh_spark
from tests.fix_publisher import served
from tests.fix_sink import Sink, ours, remedy
from tests.patience import PATIENCE
from tests.ports import free_port


@pytest.fixture
def port():
    return free_port()


class Reader:
    """A query that appends what it reads to a folder."""

    def __init__(self, spark, url, folder):
        self.spark, self.url, self.folder = spark, url, folder

    def run(self, checkpoint="reader", **options):
        frame = self.spark.readStream.format("zeroeventhub").options(**options).load(self.url)
        query = (
            frame.writeStream.format("parquet")
            .option("path", str(self.folder / f"{checkpoint}-read"))
            .option("checkpointLocation", self.checkpoint(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(PATIENCE)

    def fail(self, **options):
        with pytest.raises(Exception) as raised:
            self.run(**options)
        return ours(raised.value)

    def checkpoint(self, name="reader"):
        return str(self.folder / name)

    def numbers(self, checkpoint="reader"):
        rows = self.spark.read.parquet(str(self.folder / f"{checkpoint}-read")).collect()
        return sorted(json.loads(row.data)["i"] for row in rows)


@pytest.mark.slow
def test_a_restore_is_noticed_by_readers_and_writers_and_both_continue(
    place, port, spark, inbox, tmp_path
):
    """F15, F16: nobody loses or doubles an event in silence, also where the feed has grown past a
    reader's cursor; and each continues as the error says.
    """
    url = f"http://127.0.0.1:{port}/orders"
    sink = Sink(tmp_path, SimpleNamespace(url=url))
    reader = Reader(spark, url, tmp_path)

    with served(place.url, port=port):
        inbox.add(range(100), range(100, 200))
        sink.run(inbox.rows(spark))
        reader.run()
        backup = place.back_up()
        inbox.add(range(200, 300))
        sink.run(inbox.rows(spark))
        reader.run()
    assert reader.numbers() == [*range(300)]
    place.restore(backup)

    with served(place.url, port=port):
        shorter = reader.fail(retryTimeout="1s")
        inbox.add(range(300, 400))
        gap = sink.fail(inbox.rows(spark))
        option = remedy(gap)
        sink.run(inbox.rows(spark), **option)
        grown = reader.fail()
        seam = zeh_spark.shared_cursors(reader.checkpoint(), url)
        reader.run("reader-2", startingCursors=seam)
        again = place.back_up()
        inbox.add(range(400, 500))
        sink.run(inbox.rows(spark), **option)
    assert "its store was restored" in shorter  # or it is a copy that lags
    assert "cursor-of-another-history" in grown
    for said in (shorter, grown):
        assert "zeh_spark.shared_cursors(checkpointLocation, url)" in said
    assert "has published up to batch 1, this is 3" in gap
    assert option.keys() == {"acceptGap"}
    assert reader.numbers("reader-2") == [*range(300, 400)]

    place.restore(again)
    with served(place.url, port=port):
        inbox.add(range(500, 600))
        second = remedy(sink.fail(inbox.rows(spark), **option))
        assert second.keys() == {"acceptGap"}
        assert second != option
        sink.stop()


@pytest.mark.slow
def test_a_checkpoint_that_repeats_what_is_missing_brings_it_back(
    place, port, spark, inbox, tmp_path
):
    """The other way on, without a gap: the writer goes back to an older copy of its checkpoint."""
    url = f"http://127.0.0.1:{port}/orders"
    sink = Sink(tmp_path, SimpleNamespace(url=url))
    with served(place.url, port=port):
        inbox.add(range(100))
        sink.run(inbox.rows(spark))
        backup = place.back_up()
        shutil.copytree(sink.checkpoint, tmp_path / "older")
        inbox.add(range(100, 200))
        sink.run(inbox.rows(spark))
    place.restore(backup)

    with served(place.url, port=port):
        inbox.add(range(200, 300))
        assert "batch-gap" in sink.fail(inbox.rows(spark))
        sink.run(inbox.rows(spark), tmp_path / "older")
        rows = spark.read.format("zeroeventhub").load(url).collect()
    assert sorted(json.loads(row.data)["i"] for row in rows) == [*range(300)]
