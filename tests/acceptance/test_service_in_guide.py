"""The service in the guide about own tables: it is complete, and stops while readers wait."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from tests.docs.test_examples import blocks
from tests.fix_cli import call
from tests.fix_metrics import Scrape
from tests.patience import PATIENCE, eventually
from tests.ports import free_port

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guides" / "outbox.md"
WAIT = 60
"""Seconds for which a reader waits: the most that a publisher allows."""


@pytest.fixture
def process(tmp_path: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The guide's service on the guide's table, as uvicorn runs it."""
    examples = blocks(GUIDE)
    table = next(each.text for each in examples if "CREATE TABLE outbox" in each.text)
    [service] = [each for each in examples if each.file == "shop_service.py"]
    lines = [line for line in service.text.splitlines() if line]
    assert len(lines) <= 10
    (tmp_path / "shop_service.py").write_text(service.text)
    (tmp_path / "make.py").write_text(table)
    subprocess.run([sys.executable, "make.py"], cwd=tmp_path, check=True)
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    words = "--data body --partition-by order_id --partitions 4 --time created_at".split()
    ddl = call("ddl", "outbox", "--url", url, *words).stdout
    (tmp_path / "ddl.py").write_text(
        f"import sqlite3\nsqlite3.connect('shop.db').executescript({ddl!r})"
    )
    subprocess.run([sys.executable, "ddl.py"], cwd=tmp_path, check=True)
    port = free_port()
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    command = [sys.executable, "-m", "uvicorn", "shop_service:app", "--port", f"{port}"]
    running = subprocess.Popen(command, cwd=tmp_path, env=environment)
    yield f"http://127.0.0.1:{port}/feeds", running
    running.kill()
    running.wait()


def is_served(base: str) -> bool:
    try:
        return requests.get(f"{base}/orders?n=1&cursor0=_first", timeout=PATIENCE).ok
    except requests.ConnectionError:
        return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_stops_while_a_reader_waits(
    process: tuple[str, subprocess.Popen[bytes]], number: signal.Signals
) -> None:
    """A deployment does not wait for readers: they get a whole answer, and come again."""
    base, running = process
    eventually(lambda: is_served(base), PATIENCE)
    answers: list[requests.Response] = []
    query = f"n=1&cursor0=_last&wait={WAIT}"
    reader = threading.Thread(
        target=lambda: answers.append(requests.get(f"{base}/orders?{query}", timeout=2 * WAIT))
    )
    reader.start()
    eventually(lambda: Scrape(base)("zeh_waiting_readers", feed="orders") == 1, PATIENCE)

    running.send_signal(number)

    running.wait(WAIT / 2)
    reader.join(PATIENCE)
    assert [200] == [each.status_code for each in answers]
    assert re.fullmatch(r'\{"partition":0,"cursor":"[^"]+"\}\n', answers[0].text)
