"""Every test of this folder that wants a store runs against each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine

from tests.contract.sites import SITES
from tests.store_contract.fixtures import clock, opened, receipts, site, store, world
from tests.store_contract.site import Site

__all__ = ["clock", "opened", "receipts", "site", "store", "world"]


@pytest.fixture(params=list(SITES))
def new_site(request: pytest.FixtureRequest) -> type[Site]:
    return SITES[request.param]


Trace = Callable[[], list[str]]


@pytest.fixture
def sent(tmp_path: Path) -> Iterator[Trace]:
    """Return what was sent since the last call, over all connections that are made from now on."""
    statements: list[str] = []
    traces: list[Any] = []

    def connected(connection: Any, _: object) -> None:
        if hasattr(connection, "set_trace_callback"):
            connection.set_trace_callback(statements.append)
            return
        traces.append((tmp_path / f"trace{len(traces)}").open("w+b", buffering=0))
        connection.pgconn.trace(traces[-1].fileno())

    def take() -> list[str]:
        taken = statements[:]
        statements.clear()
        for trace in traces:
            trace.seek(0)
            lines = [line.split("\t") for line in trace.read().decode("latin-1").splitlines()]
            # A message is answered as a whole: the client waits for each Query and each Sync.
            waits = (["F", "Query"], ["F", "Sync"])
            taken += [" ".join(line[4:]) for line in lines if line[1:4:2] in waits]
            trace.seek(0)
            trace.truncate()
        return taken

    event.listen(Engine, "connect", connected)
    yield take
    event.remove(Engine, "connect", connected)
    for trace in traces:
        trace.close()
