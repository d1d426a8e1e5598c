"""Find the newest cursors that a checkpoint and a restored feed both have.

Rule for editors: return only cursors that the query has committed. Runs on the driver.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Set
from urllib.parse import quote, urlencode

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from zeh_spark.client.http.discovery import discover
from zeh_spark.client.http.transport import Transport
from zeh_spark.client.options.given import parse
from zeh_spark.errors import CheckpointError, PublisherError
from zeh_spark.spark.source.offsets import check_identity, is_of_a_feed, reached, source_offsets
from zeh_spark.spark.source.options import SourceOptions
from zeh_spark.wire import wire
from zeh_spark.wire.feed_identity import FeedIdentity

log = logging.getLogger(__name__)

_GONE = {409, 410}
_AGAIN = (
    "partition %d: the feed no longer has all that the query read after %r. Events of it that the "
    "feed still has come again: compare their zeh-feed, zeh-producer, zeh-partition and "
    "zeh-sequence, or merge by a key"
)


def shared_cursors(checkpointLocation: str, url: str, **options: str) -> str:
    """Return the newest cursors that a checkpoint's query has committed and the feed still knows.

    Use it for a feed whose publisher was restored: the events after these cursors are those that
    the feed has now. Give the result as `startingCursors` to a query with a new checkpoint.

    A cursor is the end of a batch. If the restore took back a part of the batch after it, the
    events of the other part come again; a warning in the log names these partitions.

    Args:
        checkpointLocation: the checkpoint of the query.
        url: the feed's address.
        **options: options of the format, like `token`. Give those of the query; a `feedId` is
            needed if the query had one.

    Returns:
        A cursor for every partition as JSON, like `{"0": "17.0a1b2c3d", "1": "_first"}`.

    Raises:
        OptionError: an option is not valid.
        CheckpointError: no cursor is shared, or the checkpoint has no committed batch of this feed.
        PublisherError: the publisher refuses, or breaks the protocol.
        UnavailableError: the publisher did not answer within `retryTimeout`.
    """
    parsed = parse(SourceOptions, {"url": url, **options})
    transport, seen = Transport(parsed), 0
    known: dict[int, str] = {}
    newest: dict[int, str] = {}
    partitions: Set[int] = frozenset()
    identity: FeedIdentity | None = None
    for cursors, count, feed in committed(checkpointLocation, parsed.feed):
        seen, partitions = seen + 1, cursors.keys()
        if identity is None:
            found = discover(transport, count, has_identity=bool(feed))
            identity = found.named(parsed.feed)
        check_identity(feed, identity, parsed.url)
        for partition, cursor in cursors.items():
            if partition not in known and _knows(transport, count, partition, cursor):
                known[partition] = cursor
                if cursor != newest.setdefault(partition, cursor):
                    log.warning(_AGAIN, partition, cursor)
            newest.setdefault(partition, cursor)
        if known.keys() >= partitions:
            return json.dumps({str(each): known[each] for each in partitions})
    if not seen:
        raise CheckpointError(
            f"the checkpoint {checkpointLocation} has no committed batch that reads "
            f"{parsed.feed!r}. If the query had the option feedId, give it here, too",
            expected=parsed.feed,
        )
    lost = [each for each in partitions if each not in known]
    raise CheckpointError(
        f"none of the {seen} committed batches that the checkpoint {checkpointLocation} remembers "
        f"has a cursor that the feed knows in partition {lost[0]}. Start a new checkpoint from "
        f"'first', or from cursors of your own",
        expected=known,
    )


def committed(checkpoint: str, feed: str) -> Iterator[tuple[dict[int, str], int, str | None]]:
    """Yield the cursors of a query's committed batches, the newest batch first.

    `feed` is its name: the option `feedId`, or its URL. Each item has the cursors by partition, the
    number of partitions, and the feed's own id, None if the publisher told none. Raises
    CheckpointError if it is no checkpoint of a query that has committed a batch.
    """
    spark = SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()

    def files(folder: str) -> dict[int, str]:
        texts = spark.read.text(f"{checkpoint}/{folder}", wholetext=True)
        rows = texts.select(F.col("_metadata.file_name").alias("name"), "value").collect()
        return {int(row.name): row.value for row in rows if row.name.isdigit()}

    try:
        done = files("commits")
    except AnalysisException as exc:
        raise CheckpointError(
            f"{checkpoint} is no checkpoint of a query that has committed a batch. Check the path: "
            f"{exc}"
        ) from exc
    for number, text in sorted(files("offsets").items(), reverse=True):
        for offset in source_offsets(text) if number in done else ():
            if is_of_a_feed(offset) and offset["feed"] == feed and offset["partitionCount"]:
                at = reached(offset)
                yield at.positions, offset["partitionCount"], None if at.id == feed else at.id


def _knows(transport: Transport, n: int, partition: int, cursor: str) -> bool:
    if cursor == wire.FIRST:
        return True
    given = {"n": str(n), f"cursor{partition}": cursor, "pagesizehint": "0"}
    query = urlencode(given, quote_via=quote, safe="")
    try:
        transport.retry().call(lambda: transport.request("GET", query=query).close())
    except PublisherError as exc:
        if exc.status not in _GONE:
            raise
        return False
    return True
