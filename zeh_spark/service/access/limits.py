"""How much of a publisher its clients may take."""

from __future__ import annotations

from dataclasses import dataclass

from zeh_spark.service.network import MOST_CONNECTIONS


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of a publisher its clients may take.

    Attributes:
        send_timeout: Seconds for which a client may take nothing. After that it is dropped, and its
            connection and memory are freed.
        staging_quota: Bytes that a producer may have uploaded and not committed.
        most_chunks: How many chunks a batch may have: by default those of 250 million events, if
            chunks are full. Other writers of the feed wait while a commit is made, on PostgreSQL
            for at most 10 s. Measured: 200,000 chunks took 5.7 s.
        most_producers: How many producers each client may have begun.
        most_cursor_sets: How many cursor sets each client may have begun: by default about 60 MiB
            if each has 1,024 cursors.
        cache_bytes: Most bytes of answers, as they are sent, that are kept in memory for the next
            readers.
        send_buffer: Most bytes of answers in memory that clients have not taken yet.
        connections: How many connections the server has at most, of whose requests at a time each
            client has a share.
    """

    send_timeout: float = 60.0
    staging_quota: int = 64 << 30
    most_chunks: int = 250_000
    most_producers: int = 100_000
    most_cursor_sets: int = 1000
    cache_bytes: int = 64 << 20
    send_buffer: int = 128 << 20
    connections: int = MOST_CONNECTIONS


DEFAULTS = Limits()
