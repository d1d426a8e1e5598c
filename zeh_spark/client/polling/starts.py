"""Where a new query starts: the cursors that `_last`, or a time, means when it begins.

Rule for editors: they are asked for once. The offset of the query's first batch keeps them, so that
a restart does not choose again.

Runs on the driver.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from zeh_spark.client.http import direct_client
from zeh_spark.client.http.feed_client import FeedClient, PageRequest
from zeh_spark.client.polling.end_probes import first_checkpoint
from zeh_spark.wire import wire


def chosen(
    client: FeedClient, cursors: list[str], since: int | None, request: PageRequest, threads: int
) -> list[str]:
    """Return the concrete cursors at which a query starts.

    `_first` stays, because a feed may be empty. `since` is the time to start at instead, in ms
    since 1970. Raises OptionError if the publisher cannot tell where the feed was at that time.
    """
    if since is not None:
        return direct_client.cursors_at(client.transport, len(cursors), since)

    def resolve(partition: int, cursor: str) -> str:
        if cursor != wire.LAST:
            return cursor
        return first_checkpoint(client, replace(request, partition=partition, cursor=cursor))

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(resolve, range(len(cursors)), cursors))
