"""The reference implementation of the protocol, `zeroeventhub` from PyPI, as server and as client.

It lives in `.venv-reference`, because its pins do not fit ours; ZEH_REFERENCE_PYTHON names another
Python that has it.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

_TESTS = Path(__file__).parent
_PYTHON = os.environ.get(
    "ZEH_REFERENCE_PYTHON", str(_TESTS.parent / ".venv-reference" / "bin" / "python")
)


@functools.cache
def why_absent() -> str | None:
    """Why tests against the reference skip; None if they run."""
    if not Path(_PYTHON).exists():
        return (
            "reference implementation (zeroeventhub 0.2.3): needs Python 3.11 or later, and "
            "`make .venv-reference/.installed`, or ZEH_REFERENCE_PYTHON"
        )
    found = subprocess.run(
        [_PYTHON, "-c", "import zeroeventhub, uvicorn"], capture_output=True, check=False
    )
    return f"reference implementation: {_PYTHON} cannot import it" if found.returncode else None


@dataclass(frozen=True)
class ReferencePage:
    """What the reference client yielded for one request, until its end or its error."""

    events: list[tuple[int, dict[str, str] | None, Any]]
    checkpoints: list[tuple[int, str]]
    error: str | None


def reference_page(
    url: str,
    partition_count: int,
    cursors: dict[int, str],
    page_size_hint: int | None = None,
    headers: list[str] | None = None,
) -> ReferencePage:
    """Read one page with the reference client; `headers=["_all"]` asks for all."""
    request = {
        "url": url,
        "partition_count": partition_count,
        "cursors": cursors,
        "page_size_hint": page_size_hint,
        "headers": headers,
        "timeout": 60,
    }
    command = [_PYTHON, str(_TESTS / "reference_client.py"), json.dumps(request)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=120)
    page = json.loads(done.stdout)
    return ReferencePage(
        [tuple(event) for event in page["events"]],
        [tuple(checkpoint) for checkpoint in page["checkpoints"]],
        page["error"],
    )


@contextlib.contextmanager
def reference_server(
    *,
    partitions: int = 2,
    events: int = 1000,
    checkpoints: Literal["event", "page"] = "page",
    fail_after: int = 0,
    failures: int = 0,
    rows: Sequence[tuple[dict[str, str] | None, Any]] = (),
) -> Iterator[str]:
    """Serve a feed of `events` events {"id": i} in each partition; yields its URL.

    The first `failures` answers break off after `fail_after` events. `rows` are headers and data of
    other events to serve instead.
    """
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        settings = {
            "partitions": partitions,
            "events": len(rows) or events,
            "rows": rows,
            "checkpoints": checkpoints,
            "fail_after": fail_after,
            "failures": failures,
            "socket": listener.fileno(),
        }
        # It inherits a socket that listens already: a request waits in the queue until it serves.
        command = [_PYTHON, str(_TESTS / "reference_server.py"), json.dumps(settings)]
        process = subprocess.Popen(command, pass_fds=[listener.fileno()])
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/feed/v1"
        finally:
            process.terminate()
            process.wait(30)


@pytest.fixture
def start_reference_server() -> Iterator[Callable[..., str]]:
    """`start_reference_server(events=…, …)`: a feed's URL; skips where the reference is absent."""
    if reason := why_absent():
        pytest.skip(reason)
    with contextlib.ExitStack() as stack:
        yield lambda **settings: stack.enter_context(reference_server(**settings))


@pytest.fixture
def read_with_reference() -> Callable[..., ReferencePage]:
    """`reference_page`; skips where the reference is absent."""
    if reason := why_absent():
        pytest.skip(reason)
    return reference_page
