"""A real publisher in this process, for tests and examples. Needs the extra `publisher`.

    store = open_store(f"sqlite:///{tmp_path}/feeds.db")
    store.create("orders", partitions=2)
    with running_publisher(store) as url:
        publish(store, "orders", [{"id": 1}])
        spark.read.format("zeroeventhub").load(f"{url}/orders")

Rule for editors: do not import pytest here, because tests of users may not have it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from starlette.types import ASGIApp

from zeh_spark.errors import ZeroEventHubError
from zeh_spark.publisher import create_app
from zeh_spark.service.app.server import Server, listen
from zeh_spark.service.reads.feed import Feed
from zeh_spark.service.store.interface import Store
from zeh_spark.tools.loading import one_batch
from zeh_spark.wire.batch_uploader import BatchUploader
from zeh_spark.wire.upload_format import checked_rest


@contextmanager
def running_publisher(
    feeds: Store | Mapping[str, Feed], app: ASGIApp | None = None
) -> Iterator[str]:
    """Serve feeds on a free port of 127.0.0.1, in a thread, until the `with` statement ends.

    Args:
        feeds: A store, or feeds by name, as `create_app` takes them.
        app: The application to serve instead, if it mounts a publisher somewhere.

    Yields:
        The publisher's URL; the feed `orders` is at `{url}/orders`.

    Raises:
        ZeroEventHubError: The publisher did not start within 30 seconds.
    """
    publisher = create_app(feeds)
    listener = listen("127.0.0.1", 0)
    server = Server(app or publisher, publisher.state.stop)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        if not server.ready.wait(30):
            raise ZeroEventHubError(
                "the publisher did not start within 30 s. Look at its log for the reason."
            )
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)
        listener.close()


def publish(
    store: Store, feed: str, events: Iterable[object], *, partition: int | None = None
) -> None:
    """Publish events to a feed of a store, as the next batch of the producer `test`.

    Args:
        store: The store.
        feed: The feed's name. It has to exist.
        events: The data of the events, as `json.dumps` takes it.
        partition: The stored partition for all of them; None spreads them evenly.

    Raises:
        StoreError: There is no such feed. The store's `create` makes it.
        TypeError, ValueError: The data of an event cannot be JSON, for example NaN, or the feed has
            no such partition.
    """
    partitions = store.feed(feed).partitions
    if partition is not None and not 0 <= partition < partitions:
        raise ValueError(f"partition is {partition}, and {feed!r} has 0 to {partitions - 1}")

    def fill(batch: BatchUploader) -> None:
        for number, event in enumerate(events):
            to = number % partitions if partition is None else partition
            data = json.dumps(event, allow_nan=False).encode()
            batch.add([checked_rest(to, {}, data)], to)

    one_batch.publish(store, feed, one_batch.next_batch(store, feed, "test"), fill)
