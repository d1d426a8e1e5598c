"""A publisher is restored from an older copy: what readers and writers see, and what helps them."""

import json
from collections import Counter

import pytest

import zeh_spark
from tests.fix_backup import SqliteFile
from tests.fix_datasource import PlainQuery, read_plainly
from tests.fix_publisher import served
from tests.fix_sink import ours, remedy
from tests.fix_spark import Collected
from tests.ports import free_port
from zeh_spark.errors import CheckpointError, PublishError


@pytest.fixture
def port():
    return free_port()


def refused(reader, frame):
    with pytest.raises(Exception) as raised:
        reader.run(frame)
    return ours(raised.value)


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
@pytest.mark.parametrize("place", [SqliteFile], ids=["sqlite"], indirect=True)
def test_a_restore_is_noticed_by_readers_and_writers_and_both_continue(
    place, port, stream, tmp_path, caplog
):
    """F15, F16: nobody loses or doubles an event in silence, also where the feed has grown past a
    reader's cursor; and each continues as the error says. Of a batch that is undone in part, what
    is still there comes again, and a warning says so.
    """
    url = f"http://127.0.0.1:{port}/orders"
    writer, reader, second = Writer(url), Collected(tmp_path / "1"), Collected(tmp_path / "2")

    def feed(**options):
        return stream(**options).load(url)

    with served(place.url, port=port):
        writer.add(0)
        reader.run(feed())
        writer.add(1)
        backup = place.back_up()
        writer.add(2)
        reader.run(feed())
    assert reader.numbers() == Counter(range(30))
    place.restore(backup)

    with served(place.url, port=port):
        shorter = refused(reader, feed(retryTimeout="1s"))
        gap = writer.fail(3)
        option = remedy(gap)
        writer.add(3, **option)
        grown = refused(reader, feed())
        seam = zeh_spark.shared_cursors(str(reader.folder / "checkpoint"), url)
        second.run(feed(startingCursors=seam))
        again = place.back_up()
        writer.add(4, **option)
    assert "its store was restored" in shorter  # or it is a copy that lags
    assert "cursor-of-another-history" in grown
    for said in (shorter, grown):
        assert "zeh_spark.shared_cursors(checkpointLocation, url)" in said
    assert "has published up to batch 1, this is 3" in gap
    assert option.keys() == {"acceptGap"}
    assert second.numbers() == Counter([*range(10, 20), *range(30, 40)])
    assert "Events of it that the feed still has come again" in caplog.text

    place.restore(again)
    with served(place.url, port=port):
        other = remedy(writer.fail(5, **option))
        assert other.keys() == {"acceptGap"}
        assert other != option


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


def test_shared_cursors_of_another_format_are_not_guessed(spark, tmp_path):
    """A checkpoint of a later version is refused by name, as a query refuses it."""
    partitions = {"0": {"cursor": "5.0a1b2c3d", "events": 1, "bytes": 9}}
    offset = {"version": 99, "feed": "orders", "partitionCount": 1, "partitions": partitions}
    for folder, text in (("commits", "v1\n{}"), ("offsets", f"v1\n{{}}\n{json.dumps(offset)}")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "0").write_text(text)

    with pytest.raises(CheckpointError, match="offset of format 99"):
        zeh_spark.shared_cursors(str(tmp_path), "http://localhost/orders", feedId="orders")
