"""The clock of a database, for all the publishers that share it.

Between two reads of the database's clock, this machine's steady clock counts on: setting this
machine's clock changes nothing. Runs in the publisher and in commands that write.
"""

from __future__ import annotations

import time

from sqlalchemy import Connection, text

from zeh_spark.service.store.interface import now_ms

_NOW = text("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint")

_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""It also counts while the machine sleeps, where the system has such a clock."""


class DatabaseClock:
    """Returns the database's time in ms since 1970, when it is called. `look` comes first."""

    def __init__(self) -> None:
        self._ahead = 0  # of the steady clock, in ms

    def __call__(self) -> int:
        """Return the time in ms since 1970."""
        return _steady() + self._ahead

    def look(self, connection: Connection) -> None:
        """Read the database's clock. It is as precise as half of the way there and back."""
        began = _steady()
        now = int(connection.execute(_NOW).scalar_one())
        between = (began + _steady()) // 2
        self._ahead = now - between

    def skew(self, connection: Connection) -> int:
        """Look, and return by how many ms this machine's clock is ahead of the database's."""
        self.look(connection)
        return now_ms() - self()


def _steady() -> int:
    return time.clock_gettime_ns(_STEADY) // 1_000_000
