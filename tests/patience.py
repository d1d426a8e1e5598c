"""How long tests wait for what should happen."""

import threading
import time
from collections.abc import Callable

PATIENCE = 300
"""Seconds: for what hangs, not for what is slow, and below the limit for a whole test."""


def eventually(happens: Callable[[], object], seconds: float = PATIENCE) -> None:
    """Wait until something has happened. Fails if it takes longer."""
    deadline = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < deadline, f"it did not happen within {seconds} s"
        time.sleep(0.01)


class Halt:
    """A function that has been `reached` when it is called, and returns once it may `go` on."""

    def __init__(self) -> None:
        self.reached, self.go = threading.Event(), threading.Event()

    def __call__(self, *_: object) -> None:
        self.reached.set()
        assert self.go.wait(PATIENCE)
