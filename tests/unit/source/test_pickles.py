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


def test_a_stream_readers_copy_decodes(tmp_path):
    """A task needs nothing but the reader and its partition, which carries bytes, or the place of a
    staged segment. Spark runs it again for each action, from its own copy of the partition.
    """
    staging = Staging(str(tmp_path), "stage")
    batch = staging.keep(iter([payload()])).batch
    for partition in (
        SegmentPartition(payload()),
        SegmentPartition(staging=staging, batch=batch, segment=0),
    ):
        travelling = pickle.dumps((StreamReader(OPTIONS, DECODER), partition))
        reader, copy = pickle.loads(travelling)
        for _ in range(2):
            assert [["1", "2"]] == [each.column("data").to_pylist() for each in reader.read(copy)]


def test_a_batch_reader_travels_with_what_its_tasks_need():
    """Its tasks fetch: address, token, headers."""
    reader = BatchReader(OPTIONS, DECODER)

    assert vars(reader) == vars(pickle.loads(pickle.dumps(reader)))
    assert "hush" not in repr(reader)


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
    """What Spark pickles comes out equal; what Spark and loggers print shows no secret."""
    assert value == pickle.loads(pickle.dumps(value))
    assert "hush" not in repr(value)


@each_case("kind", [StreamReader, BatchReader])
def test_a_wrong_schema_is_raised_by_the_first_call(kind):
    """An error while Spark makes the reader would hide behind another one of Spark's."""
    reader = kind(OPTIONS, OptionError("the schema's column is not ours", option="schema"))

    with pytest.raises(OptionError, match="not ours"):
        reader.initialOffset() if kind is StreamReader else reader.partitions()
