"""A producer's receipts as a DataFrame. Runs on the driver."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession

from zeh_spark.client.http.publish_client import PublishClient, PublishedRange
from zeh_spark.client.options.client_options import ClientOptions
from zeh_spark.client.options.given import parse
from zeh_spark.errors import OptionError

_SCHEMA = (
    "batch BIGINT, incarnation STRING, run STRING, events BIGINT, digest STRING, time TIMESTAMP, "
    "ranges ARRAY<STRUCT<partition: INT, first: BIGINT, last: BIGINT, cursor: STRING>>, "
    "positions STRUCT<first: BIGINT, last: BIGINT>"
)

_PAGE = 100


def receipts(
    url: str, producer: str, *, spark: SparkSession | None = None, **options: object
) -> DataFrame:
    """Return the publisher's receipts of a producer's batches: what was published, and when.

    The publisher keeps the newest 1,000 receipts of a producer. They are read at once.

    Args:
        url: The feed's address.
        producer: The producer's name (`producerId`); `P#K` for the batch of `df.write` that has the
            name K (`batchId`).
        spark: The Spark session; by default the active one.
        **options: Options of the format that say how to reach the publisher, like `token`.

    Returns:
        A row for each committed batch, the newest first: batch, the number of the batch;
        incarnation, of a stream the id of its query; run, the id of one start of the writer;
        events, their number; digest, of their contents; time, of the commit; ranges, the first and
        last sequence number in each partition, and the feed's cursor after them; positions, those
        of the batch in the feed, NULL without events.

    Raises:
        OptionError: An option is not valid, or there is no Spark session.
        PublishError: The publisher refuses to answer.
        PublisherError: The address is not that of a publisher of zeh_spark.
        UnavailableError: The publisher did not answer within `retryTimeout`.
    """
    session = spark or SparkSession.getActiveSession()
    if session is None:
        raise OptionError("there is no active Spark session. Give one as spark=…", option="spark")
    client = PublishClient(parse(ClientOptions, {"url": url, **options}))
    found: list[_Receipt] = []
    while some := client.receipts(producer, _PAGE, found[-1].number if found else None):
        found += client.converted(some, list[_Receipt], "a list of receipts")
    return session.createDataFrame([_row(each) for each in found], _SCHEMA)


class _Receipt(msgspec.Struct):
    """A receipt in an answer; a publisher's `StoredReceipt`."""

    number: int
    batch: int
    incarnation: str
    run: str
    events: int
    digest: str
    time: int
    ranges: list[PublishedRange]
    positions: tuple[int, int] | None


def _row(receipt: _Receipt) -> tuple[Any, ...]:
    ranges = [msgspec.structs.astuple(each) for each in receipt.ranges]
    time = datetime.fromtimestamp(receipt.time / 1000, timezone.utc)
    batch, positions = receipt.batch, receipt.positions
    return (
        batch, receipt.incarnation, receipt.run, receipt.events, receipt.digest, time, ranges,
        positions,
    )  # fmt: skip
