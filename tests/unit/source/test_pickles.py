"""What crosses processes, and what must not."""

from __future__ import annotations

import pickle

import pytest

from tests.cases import each_case
from zeh_spark.client.feed_client import PageRequest
from zeh_spark.decoding.lines import Decoder
from zeh_spark.errors import OptionError
from zeh_spark.options.given import parse
from zeh_spark.protocol.feed_identity import Epoch, FeedIdentity
from zeh_spark.source.batch import BatchReader, FeedPartition
from zeh_spark.source.offsets import Position
from zeh_spark.source.options import SourceOptions
from zeh_spark.source.segments import Segment, pack
from zeh_spark.source.staging import SegmentPartition, Staging
from zeh_spark.source.stream import StreamReader

IDENTITY = FeedIdentity("9f86d081884c7d65", (Epoch("9f86d081884c7d65"),))
DECODER = Decoder(("partition", "data"), "_corrupt_record", False)
OPTIONS = parse(
    SourceOptions,
    {
        "url": "https://orders.example/feed?key=hush-1",
        "token": "hush-2",
        "http.secret.header.X-Key": "hush-3",
        "partitionCount": "1",
    },
)


def payload():
    segment = Segment()
    segment.add(0, b'{"data":1}\n{"data":2}\n')
    return pack(segment)


def test_a_stream_reader_takes_no_address_and_no_secret_along():
    """Executors decode; what they need not know they do not get, also after the query has begun."""
    reader = StreamReader(OPTIONS, DECODER)
    reader.initialOffset()

    travelling = pickle.dumps(reader)

    assert not [each for each in (b"hush", b"orders.example") if each in travelling]


def test_a_stream_readers_copy_decodes():
    """A task needs nothing but the reader and its partition."""
    reader, partition = pickle.loads(
        pickle.dumps((StreamReader(OPTIONS, DECODER), SegmentPartition(payload())))
    )

    assert ["1", "2"] == [row for batch in reader.read(partition) for row in _data(batch)]


def test_a_staged_segments_copy_decodes(tmp_path):
    """A staged partition carries a place, not bytes."""
    staging = Staging(str(tmp_path), "stage")
    staged = staging.keep(iter([payload()]))
    partition = SegmentPartition(staging=staging, batch=staged.batch, segment=0)
    copy = pickle.loads(pickle.dumps(partition))

    rows = [row for batch in StreamReader(OPTIONS, DECODER).read(copy) for row in _data(batch)]

    assert ["1", "2"] == rows


def test_reading_again_gives_the_same():
    """Spark runs a task again for each action, from its own copy of the partition."""
    reader, partition = StreamReader(OPTIONS, DECODER), SegmentPartition(payload())

    assert list(reader.read(partition)) == list(reader.read(partition))


def test_a_batch_reader_travels_with_what_its_tasks_need():
    """Its tasks fetch: address, token, headers."""
    copy = pickle.loads(pickle.dumps(BatchReader(OPTIONS, DECODER)))

    assert vars(BatchReader(OPTIONS, DECODER)) == vars(copy)


@each_case(
    "value",
    [
        FeedPartition(PageRequest(0, "c", 1, 10, ("a",)), "t", exact=True),
        FeedPartition(PageRequest(0, "c", 1, 10), None, exact=False, feed=IDENTITY),
        SegmentPartition(b"payload"),
        SegmentPartition(b"payload", feed=IDENTITY),
        OPTIONS,
        DECODER,
        Position("c", 1, 2, "d"),
    ],
)
def test_values_travel(value):
    """What Spark pickles comes out equal."""
    assert value == pickle.loads(pickle.dumps(value))


@each_case("kind", [StreamReader, BatchReader])
def test_a_wrong_schema_is_raised_by_the_first_call(kind):
    """An error while Spark makes the reader would hide behind another one of Spark's."""
    reader = kind(OPTIONS, OptionError("the schema's column is not ours", option="schema"))

    with pytest.raises(OptionError, match="not ours"):
        reader.initialOffset() if kind is StreamReader else reader.partitions()


@each_case(
    "value",
    [OPTIONS, SegmentPartition(b"bytes"), BatchReader(OPTIONS, DECODER)],
)
def test_nothing_shows_a_secret(value):
    """Spark and loggers print such values."""
    assert "hush" not in repr(value)


def _data(batch):
    return batch.column("data").to_pylist()
