"""Report a reader's position to the publisher, so that a feed's retention can wait for it.

The publisher keeps it under a name (spec "cursorset"), which it binds to the reader: the checkpoint
of a query, or the cursors of a reader without Spark. By its identity two readers with one name are
distinguished, and the second one is refused.

Rule for editors: report what was committed, never more: programs wait for it, to know that their
events are where the reader writes them. Reading does not depend on it: if a position cannot be
kept, that is a warning. Runs wherever feeds are read, in Spark on the driver.
"""

from __future__ import annotations

import logging
import random
import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from typing import TypeAlias
from urllib.parse import quote, urlencode

from zeh_spark.client.http.responses import TransientError, without_request_id
from zeh_spark.client.http.retry import backoff
from zeh_spark.client.http.transport import Transport
from zeh_spark.client.options.reading_options import ReadingOptions
from zeh_spark.errors import ZeroEventHubError
from zeh_spark.wire import wire

_AT_A_TIME = 100
"""The number of cursors in a request, so that its URL stays short."""

_IDLE_SECONDS = 60.0
"""Seconds without a new position after which the thread ends. The next position starts another."""

_KEPT_SECONDS = 60.0
"""Seconds after which a position is sent again although it has not moved.

A publisher that was restored, or whose operator has deleted the name, no longer has it. Retention
and `wait_for` would wait for quiet partitions for ever.
"""

_LOG_SECONDS = 60.0
"""Seconds after which the same warning is logged again."""

log = logging.getLogger(__name__)

_Position: TypeAlias = tuple[Mapping[int, str], int, str | None]
"""The cursors by partition, the number of partitions, and the reader's identity."""


class PositionReporter:
    """Reports the newest position, in a thread that begins with the first one, and ends when idle.

    Without the option `cursorSet` it reports nothing. Without an answer it tries again, until the
    publisher has kept the position or a newer one. One that is refused is sent again when the
    reader gives it again, as a query does at each trigger; one that was kept, a minute later.
    """

    def __init__(self, options: ReadingOptions) -> None:
        self._name = options.cursor_set
        self._transport = Transport(replace(options, retry_timeout=0.0))
        self._new_reader = secrets.token_hex(8)
        self._news = threading.Condition()
        self._newest: _Position | None = None
        self._sent: _Position | None = None
        self._stopped = False
        self._thread: threading.Thread | None = None

    def reader(self, known: str | None) -> str | None:
        """Return the reader's identity: the `known` one, or a new one.

        It is made when `cursorSet` is set for the first time. Until then there is none.
        """
        return known or (self._new_reader if self._name else None)

    def keep(self, cursors: Mapping[int, str], n: int, reader: str | None) -> None:
        """Report a position, in some of n partitions, without waiting for the answer."""
        if self._name is None:
            return
        with self._news:
            self._newest = {**cursors}, n, reader
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="zeh-cursors", daemon=True)
                self._thread.start()
            self._news.notify_all()

    def wait(self, seconds: float = 5.0) -> None:
        """Wait until the newest position was kept or refused, for at most so many seconds."""
        with self._news:
            self._news.wait_for(lambda: self._newest is None, seconds)

    def stop(self) -> None:
        """End the retries: another run of the reader may report newer positions."""
        with self._news:
            self._stopped = True
            self._news.notify_all()

    def _run(self) -> None:
        kept: dict[int, str] = {}
        kept_since = time.monotonic()
        named: str | None = None
        told: tuple[str, float] | None = None
        failures = 0
        while True:
            with self._news:
                pause = backoff(failures, random.random()) if failures else _IDLE_SECONDS
                self._news.wait_for(lambda: self._stopped or self._newest is not self._sent, pause)
                if self._newest is None or (self._stopped and failures):
                    self._newest = self._thread = None
                    self._news.notify_all()
                    return
                cursors, n, reader = self._sent = self._newest
            if reader != named or time.monotonic() - kept_since > _KEPT_SECONDS:
                kept, named, kept_since = {}, reader, time.monotonic()
            moved = {
                partition: cursor
                for partition, cursor in cursors.items()
                if cursor not in {kept.get(partition), wire.LAST}
                # The name may have positions of a reader without an identity, on which retention
                # would rely. So one with an identity also tells that it has read nothing.
                and (cursor != wire.FIRST or named is not None)
            }
            try:
                self._send(moved, n, reader, is_subset=len(cursors) < n)
                kept.update(moved)
                told, failures = None, 0
            except (TransientError, ZeroEventHubError) as exc:
                failures = failures + 1 if isinstance(exc, TransientError) else 0
                why = without_request_id(str(exc))
                if told is None or told[0] != why or time.monotonic() - told[1] > _LOG_SECONDS:
                    log.warning(
                        "the publisher did not keep this reader's position under cursorSet %r: %s",
                        self._name,
                        exc,
                    )
                    told = why, time.monotonic()
            with self._news:
                if not failures:
                    self._newest = None if self._newest is self._sent else self._newest
                    self._sent = None
                    self._news.notify_all()

    def _send(
        self, cursors: Mapping[int, str], n: int, reader: str | None, *, is_subset: bool
    ) -> None:
        kind = wire.SUBSET_CONSUMER if is_subset else ""
        headers = {wire.CONSUMER_HEADER: f"{kind}spark:{reader}"} if reader else None
        rest = iter(cursors.items())
        # The publisher knows the partitions of a subset by its first request.
        while some := dict(islice(rest, None if is_subset else _AT_A_TIME)):
            given = {f"cursor{partition}": cursor for partition, cursor in some.items()}
            given |= {"n": str(n), "pagesizehint": "0", "cursorset": str(self._name)}
            query = urlencode(given, quote_via=quote, safe="")
            self._transport.request("GET", "", query, headers=headers).close()
