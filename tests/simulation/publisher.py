"""The simulated publisher: the real app on a real store in memory, and the network before it."""

from __future__ import annotations

import asyncio
import contextlib
import io
import itertools
import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import urlsplit

import requests
import urllib3
from requests.adapters import HTTPAdapter
from sqlalchemy import event
from sqlalchemy.engine import Engine
from sqlalchemy.engine.default import DefaultDialect

from tests.contract.sites import SqliteSite
from tests.simulation.world import Died, World
from zeh_spark.publisher import create_app
from zeh_spark.service.sqlite.writer import Writer

HOST = "http://publisher.example"
FEED = "orders"
URL = f"{HOST}/{FEED}"
MOST_STATEMENTS = 40
"""A publisher dies at one of so many SQL statements after the request with which it is to die."""

Answer = tuple[int, list[tuple[str, str]], bytes]


class WriterInPlace(Writer):
    """Writes in the thread that asks for it."""

    def write(self, work: Callable[[Any], Any], *, durable: bool = True) -> Any:
        done: Future[Any] = Future()
        self._connected([(work, done)], durable)
        return done.result()


class Publisher:
    """Serves a feed until it dies, and then again, with what its store has."""

    def __init__(self, world: World, folder: Path, partitions: int) -> None:
        self.world = world
        self._fuse: int | None = None
        self._dead = False
        self._up_at = 0.0
        self._app: Any = None
        self._loop = asyncio.new_event_loop()
        self._site = SqliteSite(folder, lambda: int(world.now * 1000))
        self.store = self._site.open()
        self.store.create(FEED, partitions)
        self.partitions = partitions

    def close(self) -> None:
        self._site.close()
        self._loop.close()

    def deliver(self, method: str, url: str, headers: Any, body: bytes) -> Answer:
        """Return the answer to a request. Raises ConnectionError if there is none."""
        if self.world.now < self._up_at:
            raise requests.ConnectionError("connection refused")
        if self._app is None:
            self._app = create_app(self.store)
        if self.world.chance("publisher dies"):
            self._fuse = self.world.random.randrange(MOST_STATEMENTS)
        return self._died_in(lambda: self._called(method, url, headers, body))

    def act(self, what: str, work: Callable[[Any], object]) -> None:
        """Do what an operator or the upkeep does; perhaps the publisher dies of it."""
        self.world.step(what)
        if self.world.now < self._up_at:
            return
        if self.world.chance("publisher dies"):
            self._fuse = self.world.random.randrange(MOST_STATEMENTS)
        with contextlib.suppress(requests.ConnectionError):
            self._died_in(lambda: work(self.store))

    def restore(self, backup: Any) -> None:
        """Do what `zeh-spark restore` does."""
        self._site.restore(backup)
        self.store, self._app = self._site.open(), None
        self.store.begin_epoch(FEED)
        self.world.restores += 1

    def copy(self) -> Any:
        return self._site.copy()

    def events(self) -> dict[int, list[Any]]:
        """Return the data of all events of each partition, in order, as the publisher has them."""
        found: dict[int, list[Any]] = {}
        for partition in range(self.partitions):
            cursor, data = "_first", []
            while True:
                query = f"n={self.partitions}&cursor{partition}={cursor}&pagesizehint=100000"
                status, _, body = self._called("GET", f"{URL}?{query}", {}, b"")
                assert status == 200, body
                lines = [json.loads(line) for line in body.splitlines()]
                some = [line["data"] for line in lines if "data" in line]
                data += some
                cursor = lines[-1]["cursor"]
                if not some:
                    break
            found[partition] = data
        return found

    def _died_in(self, work: Callable[[], Any]) -> Any:
        try:
            done = work()
        except BaseException:  # of a dead one: asyncio makes others of `Died`
            if not self._dead:
                self._fuse = None
                raise
        self._fuse = None
        if not self._dead:
            return done
        self._dead = False  # whatever the dead one did since then
        self.world.say("the publisher is dead")
        self._loop.close()
        self._loop = asyncio.new_event_loop()
        self._site.crash()
        self.store, self._app = self._site.open(), None
        self._up_at = self.world.now + self.world.random.random() * 3
        raise requests.ConnectionError("connection reset")

    def passes(self, _: str) -> None:
        """Note a statement or a commit; die at that one where the fuse ends, and at all others."""
        if self._fuse is None:
            return
        self._dead = self._dead or self._fuse == 0
        self._fuse -= 1
        if self._dead:
            raise Died

    def _called(self, method: str, url: str, headers: Any, body: bytes) -> Answer:
        parts, sent = urlsplit(url), itertools.chain([body])
        status, fields, content = 0, [], bytearray()

        async def receive() -> dict[str, Any]:
            for each in sent:
                return {"type": "http.request", "body": each, "more_body": False}
            return await asyncio.get_running_loop().create_future()

        async def send(message: dict[str, Any]) -> None:
            nonlocal status, fields
            if message["type"] == "http.response.start":
                status, fields = message["status"], message["headers"]
            else:
                content.extend(message.get("body", b""))

        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method,
            "scheme": "http", "path": parts.path, "raw_path": parts.path.encode(),
            "query_string": parts.query.encode(), "root_path": "", "client": ("10.0.0.1", 5000),
            "server": ("publisher.example", 80), "state": {},
            "headers": [(k.lower().encode(), v.encode()) for k, v in headers.items()]
            + [(b"host", b"publisher.example"), (b"content-length", b"%d" % len(body))],
        }  # fmt: skip
        self._loop.run_until_complete(self._app_now(scope, receive, send))
        return status, [(k.decode(), v.decode()) for k, v in fields], bytes(content)

    @property
    def _app_now(self) -> Any:
        self._app = self._app or create_app(self.store)
        return self._app


class Network(HTTPAdapter):
    """What lies between clients and publisher: loses, delays, doubles and cuts."""

    def __init__(self, world: World, publisher: Publisher) -> None:
        super().__init__()
        self._world, self._publisher = world, publisher

    def send(self, request: Any, *_: Any, **__: Any) -> requests.Response:
        world = self._world
        world.step(f"{request.method} {request.url.removeprefix(URL)}")
        body = request.body or b""

        def deliver() -> Answer:
            return self._publisher.deliver(request.method, request.url, request.headers, body)

        def late() -> None:
            with contextlib.suppress(requests.ConnectionError):
                world.say("late:", request.method, request.url.removeprefix(URL))
                deliver()

        if world.chance("request lost"):
            raise self._silence(request)
        if world.chance("request late"):
            world.late.append(late)
            raise self._silence(request)
        if world.chance("request doubled"):
            late()
        status, fields, content = deliver()
        world.step(f"is answered {status}")
        if world.chance("answer lost"):
            raise self._silence(request)
        headers = {name: value for name, value in fields if name != "content-length"}
        headers["Content-Length"] = str(len(content))
        if content and world.chance("answer cut"):
            content = content[: world.random.randrange(len(content))]
        raw = urllib3.HTTPResponse(
            io.BytesIO(content), headers, status, preload_content=False,
            request_method=request.method,
        )  # fmt: skip
        return self.build_response(request, raw)

    def _silence(self, request: Any) -> requests.ReadTimeout:
        self._world.pause(1.0)
        return requests.ReadTimeout("no answer", request=request)


@contextlib.contextmanager
def served(world: World, folder: Path, partitions: int) -> Iterator[Publisher]:
    """A publisher for the clients of this world; they reach nothing else."""

    async def run_sync(work: Callable[..., Any], *given: Any, **_: Any) -> Any:
        return work(*given)

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch("zeh_spark.service.sqlite.store.Writer", WriterInPlace))
        stack.enter_context(mock.patch("anyio.to_thread.run_sync", run_sync))
        for name, instead in (
            ("token_bytes", world.random.randbytes),
            ("token_hex", lambda size=32: world.random.randbytes(size).hex()),
        ):
            stack.enter_context(mock.patch(f"secrets.{name}", instead))
        publisher = stack.enter_context(contextlib.closing(Publisher(world, folder, partitions)))
        network = Network(world, publisher)
        stack.enter_context(
            mock.patch("zeh_spark.client.http.transport.find_adapter", lambda _: network)
        )
        commit = DefaultDialect.do_commit

        def do_commit(dialect: Any, connection: Any) -> None:
            publisher.passes("before COMMIT")
            commit(dialect, connection)
            publisher.passes("after COMMIT")

        def statement(*given: Any) -> None:
            publisher.passes(given[2])

        stack.enter_context(mock.patch.object(DefaultDialect, "do_commit", do_commit))
        event.listen(Engine, "before_cursor_execute", statement)
        stack.callback(event.remove, Engine, "before_cursor_execute", statement)
        yield publisher
