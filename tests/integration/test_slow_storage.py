"""A publisher whose storage of old events hangs serves new events, and stops as it is told."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.patience import PATIENCE, Halt, eventually
from tests.scratch_store import ScratchStore
from zeh_spark import testing
from zeh_spark.service.app.server import Running, Server
from zeh_spark.service.network.draining import StopTimes
from zeh_spark.service.retention.segments import offload
from zeh_spark.service.segments.block_reader import CALLERS
from zeh_spark.service.segments.objects import Objects
from zeh_spark.testing import publish, running_publisher

EVER = 1 << 60


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ScratchStore:
    """A store whose feed `orders` has 8 old events in objects, and a new one."""
    monkeypatch.setattr("zeh_spark.service.store.packs.PACK_CHUNKS", 4)
    store = ScratchStore(orders=1)
    for number in range(9):
        publish(store, "orders", [number])
    while store.seal("orders", EVER):
        pass
    assert 1 == offload(store, "orders", Objects(str(tmp_path / "cold")), EVER)[0]
    store.block_reader.threads._seconds = PATIENCE
    return store


@pytest.fixture
def halt(monkeypatch: pytest.MonkeyPatch) -> Iterator[Halt]:
    """Where each read of an object waits."""
    halt, real = Halt(), Objects.read

    def read(*given: Any) -> bytes:
        halt()
        return real(*given)

    monkeypatch.setattr(Objects, "read", read)
    yield halt
    halt.go.set()


def chunks(base: str, body: bytes, client: str) -> int:
    """Ask for chunks from an address of one's own, and return the status of the answer."""
    host = base.removeprefix("http://")
    connection = http.client.HTTPConnection(host, source_address=(client, 0), timeout=PATIENCE)
    connection.request("POST", "/orders/chunks", body)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status


def test_new_events_are_read_while_many_wait_for_the_same_old_ones(store, halt) -> None:
    """A backfill of several readers does not stop the others."""
    with store.snapshot("orders") as log:
        before_new = log.scan(7, 8, 1)[0].cursor
    wanted = {"partition": 0, "from": f"0.{log.tags[0]}", "to": before_new}
    body = json.dumps({"n": 1, "ranges": [wanted]}).encode()
    with running_publisher(store) as base, ThreadPoolExecutor(3 * CALLERS) as pool:
        clients = [f"127.0.1.{each}" for each in range(1, 3 * CALLERS + 1)]
        asked = [pool.submit(chunks, base, body, each) for each in clients]
        assert halt.reached.wait(PATIENCE)
        new = requests.get(f"{base}/orders?n=1&cursor0={before_new}", timeout=60)
        assert 8 == json.loads(new.text.splitlines()[0])["data"]
        eventually(lambda: sum(each.done() for each in asked) == 2 * CALLERS)
        assert [503] * (2 * CALLERS) == [each.result() for each in asked if each.done()]
        halt.go.set()
        assert CALLERS == [each.result() for each in asked].count(200)


def test_who_waits_for_storage_when_it_stops_is_cut_off(store, halt, monkeypatch) -> None:
    """A client tries again elsewhere, as after a crash. 500 would tell it that something broke."""
    running = Running(times=StopTimes(grace=0.1))
    monkeypatch.setattr(testing, "Server", partial(Server, running=running))
    with ThreadPoolExecutor(1) as pool:
        with running_publisher(store) as base:
            asked = pool.submit(requests.get, f"{base}/orders?n=1&cursor0=_first", timeout=PATIENCE)
            assert halt.reached.wait(PATIENCE)
        with pytest.raises(requests.ConnectionError):
            asked.result()
        halt.go.set()
