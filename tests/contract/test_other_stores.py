"""Whoever writes a store for another database finds out whether it is right."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parents[2]

FILE = """
import copy
from pathlib import Path

import pytest

from zeh_spark.publisher import MemoryStore
from zeh_spark.store.batches import RECEIPTS
from zeh_spark.store.interface import now_ms
from zeh_spark.store_contract import *


class MyStore(MemoryStore):
    {mistake}


class MySite:
    slowness = 20

    def __init__(self, directory: Path, clock=now_ms, receipts=RECEIPTS) -> None:
        self.receipts = receipts
        self._store = MyStore(clock=clock, receipts=receipts)

    def open(self):
        return self._store

    def opener(self):
        return None

    def crash(self): ...

    def copy(self):
        state = vars(self._store)
        return copy.deepcopy({{name: state[name] for name in state.keys() - {{"_lock", "now"}}}})

    def restore(self, backup):
        vars(self._store).update(copy.deepcopy(backup))

    def settle(self): ...

    def close(self): ...


@pytest.fixture
def new_site():
    return MySite
"""

MISTAKES = {
    "none": "...",
    "staging is answered wrongly": "def stage(self, feed, call, upload, quota=None):"
    " super().stage(feed, call, upload, quota); return super().stage(feed, call, upload, quota)",
    "receipts are denied": "def receipt(self, *given): return None",
    "positions begin anew": "def feed(self, name):"
    " import dataclasses; found = super().feed(name);"
    " return dataclasses.replace(found, head=0) if found.head > 3 else found",
    "what is gone is not told": "def anchors(self, feed): return {}",
}


@pytest.mark.slow
@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_of_a_store_are_found(tmp_path: Path, mistake: str) -> None:
    """A store that passes is right; one that does something wrong does not pass."""
    (tmp_path / "test_mine.py").write_text(FILE.format(mistake=MISTAKES[mistake]))
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-x", "--timeout=120"),
            "--timeout-method=thread",  # a faulty store can let Hypothesis repeat an endless loop
            *("-p", "no:cacheprovider", "test_mine.py"),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(HERE)},
        capture_output=True,
        text=True,
        check=False,
    )
    passes = mistake == "none"
    assert done.returncode == (0 if passes else 1), done.stdout
    assert " passed" in done.stdout or not passes
