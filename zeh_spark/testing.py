"""A real publisher in this process, for tests and examples. Needs the extra `publisher`.

with running_publisher(store) as url:
    spark.read.format("zeroeventhub").load(f"{url}/orders")
"""

from __future__ import annotations

import json
import socket
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from zeh_spark.errors import ZeroEventHubError
from zeh_spark.publisher import Feed, Store, create_app
from zeh_spark.publisher.chunks import Chunker


@contextmanager
def running_publisher(
    feeds: Store | Mapping[str, Feed], app: ASGIApp | None = None
) -> Iterator[str]:
    """Serve feeds on a free port of 127.0.0.1, in a thread; gives the URL that feeds' names follow.

    `app`: what to serve instead, if it mounts the publisher somewhere.
    """
    publisher = create_app(feeds)
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        app or publisher, lifespan="off", log_config=None, timeout_graceful_shutdown=1
    )
    server = _Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        if not server.ready.wait(30):
            raise ZeroEventHubError("the publisher did not start within 30 s")
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        publisher.state.stop()
        thread.join(30)
        listener.close()


def publish(
    store: Store, feed: str, events: Iterable[object], *, partition: int | None = None
) -> None:
    """Add events, anything that json.dumps takes, as one batch: spread evenly, or into one partition."""
    partitions = store.feed(feed).partitions
    chunker, batch = Chunker(), uuid.uuid4().hex
    chunks = []
    for number, event in enumerate(events):
        to = number % partitions if partition is None else partition
        chunks += chunker.add(to, {}, json.dumps(event, allow_nan=False).encode())
    chunks += chunker.close()
    store.commit(feed, batch, store.stage(batch, chunks))


class _Server(uvicorn.Server):
    """Says when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()
