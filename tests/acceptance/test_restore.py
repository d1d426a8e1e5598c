"""What readers and writers of a feed see when its publisher is restored from an older copy, and
that what they are advised works: once.
"""

import json

import pytest

import zeh_spark
from tests.fix_datasource import PlainQuery, read_plainly
from tests.fix_publisher import served
from tests.fix_sink import ours, remedy
from tests.patience import PATIENCE
from tests.ports import free_port
from zeh_spark.errors import PublishError


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


class Writer(PlainQuery):
    """A query that publishes ten events in each batch: those of batch 1 are 10 to 19."""

    def add(self, *batches, **options):
        for batch in batches:
            rows = [{"i": i} for i in range(batch * 10, batch * 10 + 10)]
            self.publish(batch, rows, retryTimeout="20s", **options)

    def fail(self, batch, **options):
        with pytest.raises(PublishError) as raised:
            self.add(batch, **options)
        return str(raised.value).partition("\n")[0]


@pytest.mark.slow
def test_a_restore_is_noticed_by_readers_and_writers_and_both_continue(
    place, port, spark, tmp_path
):
    """F15, F16: nobody loses or doubles an event in silence, also where the feed has grown past a
    reader's cursor; and each continues as the error says.
    """
    url = f"http://127.0.0.1:{port}/orders"
    writer, reader = Writer(url), Reader(spark, url, tmp_path)

    with served(place.url, port=port):
        writer.add(0, 1)
        reader.run()
        backup = place.back_up()
        writer.add(2)
        reader.run()
    assert reader.numbers() == [*range(30)]
    place.restore(backup)

    with served(place.url, port=port):
        shorter = reader.fail(retryTimeout="1s")
        gap = writer.fail(3)
        option = remedy(gap)
        writer.add(3, **option)
        grown = reader.fail()
        seam = zeh_spark.shared_cursors(reader.checkpoint(), url)
        reader.run("reader-2", startingCursors=seam)
        again = place.back_up()
        writer.add(4, **option)
    assert "its store was restored" in shorter  # or it is a copy that lags
    assert "cursor-of-another-history" in grown
    for said in (shorter, grown):
        assert "zeh_spark.shared_cursors(checkpointLocation, url)" in said
    assert "has published up to batch 1, this is 3" in gap
    assert option.keys() == {"acceptGap"}
    assert reader.numbers("reader-2") == [*range(30, 40)]

    place.restore(again)
    with served(place.url, port=port):
        second = remedy(writer.fail(5, **option))
        assert second.keys() == {"acceptGap"}
        assert second != option


def test_a_checkpoint_that_repeats_what_is_missing_brings_it_back(place, port):
    """The other way on, without a gap: the writer goes back to an older copy of its checkpoint."""
    url = f"http://127.0.0.1:{port}/orders"
    writer = Writer(url)
    with served(place.url, port=port):
        writer.add(0)
        backup = place.back_up()
        writer.add(1)
    place.restore(backup)

    with served(place.url, port=port):
        assert "batch-gap" in writer.fail(2)
        writer.add(1, 2)
        rows = read_plainly(url, "data")
    assert sorted(json.loads(row["data"])["i"] for row in rows) == [*range(30)]
