"""Stores that were killed at each point of an act, by `crash_publisher`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests import postgresql
from tests.fix_publisher import HERE
from tests.programs import crash_publisher as crash
from zeh_spark.publisher import Store, open_store


def reopened(url: str) -> closing[Store]:
    return closing(open_store(url))


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.campaign)])
def crash_place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """For `crash_publisher`."""
    if request.param == "sqlite":
        yield str(tmp_path)
        return
    postgresql.needed()
    server = postgresql.shared()
    prefix = server.create_database()
    yield server.url(prefix)
    names = server.execute(f"SELECT datname FROM pg_database WHERE datname ~ '^{prefix}(_|$)'")
    for (name,) in names:
        server.drop_database(name)


def crashed(act: str, place: str) -> list[tuple[str, str]]:
    """The stores of an act that died at each of its points, in order; the last one lived."""
    command = [sys.executable, "-m", "tests.programs.crash_publisher", act, place]
    said = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=True).stdout
    points = said.splitlines()
    assert "done" == points[-1]
    return [(f"{at}: {name}", crash.url_of(place, at)) for at, name in enumerate(points)]
