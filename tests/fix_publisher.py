"""A running publisher: the real server over a real store, on a port of its own."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests

from tests import postgresql
from zeh_spark.publisher import Store, open_store
from zeh_spark.store.batches import RECEIPTS
from zeh_spark.testing import publish, running_publisher

HERE = Path(__file__).parents[1]


@dataclass(frozen=True)
class Answer:
    """An answer, its lines parsed."""

    status: int
    headers: Any
    lines: list[dict[str, Any]]

    @property
    def problem(self) -> dict[str, Any]:
        (document,) = self.lines
        return document

    @property
    def data(self) -> list[Any]:
        return [line["data"] for line in self.lines if "data" in line]

    @property
    def cursors(self) -> dict[int, str]:
        """The last cursor of each partition."""
        return {line["partition"]: line["cursor"] for line in self.lines if "cursor" in line}


@dataclass(frozen=True)
class Publisher:
    """A feed `orders` with two partitions, at `url`."""

    store: Store
    base: str
    store_url: str

    @property
    def url(self) -> str:
        return f"{self.base}/orders"

    def publish(self, *events: object, partition: int | None = None) -> None:
        """One batch."""
        publish(self.store, "orders", events, partition=partition)

    def get(self, query: str = "", *, path: str = "/orders", **options: Any) -> Answer:
        url = f"{self.base}{path}?{query}"
        response = requests.request(options.pop("method", "GET"), url, timeout=30, **options)
        lines = [json.loads(line) for line in response.content.split(b"\n") if line]
        return Answer(response.status_code, response.headers, lines)


@pytest.fixture
def receipts() -> int:
    """How many the test's publisher keeps of a producer."""
    return RECEIPTS


@pytest.fixture
def publisher(tmp_path: Path, receipts: int) -> Iterator[Publisher]:
    """One for this test."""
    with _publisher(tmp_path, receipts) as running:
        yield running


@pytest.fixture(scope="module")
def quiet_publisher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Publisher]:
    """One for all tests of a module that publish nothing."""
    with _publisher(tmp_path_factory.mktemp("quiet")) as running:
        yield running


@contextmanager
def _publisher(directory: Path, receipts: int = RECEIPTS) -> Iterator[Publisher]:
    url = store_url(directory)
    with closing(open_store(url, receipts=receipts)) as store:
        store.create("orders", 2)
        with running_publisher(store) as base:
            yield Publisher(store, base, url)


@functools.cache
def store_url(directory: Path) -> str:
    """A store of the directory's own: SQLite, or PostgreSQL with ZEH_TEST_STORE=postgresql."""
    if os.environ.get("ZEH_TEST_STORE") == "postgresql":
        server = postgresql.shared()
        return server.url(server.create_database())
    return f"sqlite:///{directory / 'feeds.db'}"


@contextmanager
def served(
    store: Path | str, *words: str, port: int = 0
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`zeh-spark serve` on a store, a SQLite file or a URL: its base URL, and the process. Killed
    at the end.
    """
    url = store if isinstance(store, str) else f"sqlite:///{store}"
    with _serve("--store", url, "--port", str(port), *words) as running:
        yield running


@contextmanager
def served_tables(file: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`zeh-spark serve` with a file of settings."""
    with _serve("--config", str(file), "--port", "0") as running:
        yield running


@contextmanager
def _serve(*words: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    command = [sys.executable, "-m", "zeh_spark.cli", "serve", *words]
    with subprocess.Popen(command, cwd=HERE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            yield process.stdout.readline().split(" at ")[1].split(";")[0], process
        finally:
            process.kill()
