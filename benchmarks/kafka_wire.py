"""As much of Kafka's protocol as it takes to send any sequence number under any producer id.

A client of Kafka's does not let its user choose them. One connection to a broker of one node.
"""

from __future__ import annotations

import socket
import struct
import time
from typing import Any, NamedTuple

ERRORS = {
    0: "NONE",
    45: "OUT_OF_ORDER_SEQUENCE_NUMBER",
    46: "DUPLICATE_SEQUENCE_NUMBER",
    47: "INVALID_PRODUCER_EPOCH",
    59: "UNKNOWN_PRODUCER_ID",
    90: "PRODUCER_FENCED",
}
_NOT_YET = {3, 6, 14, 15, 16, 51}  # the topic or the coordinator is being made
_TRANSACTIONAL = 0x10


class Who(NamedTuple):
    producer: int
    epoch: int


class Kafka:
    """A connection. `topic` has one partition, and is made by the broker's own tools."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), 30)

    def init_producer(self, transactional: str | None = None) -> Who:
        """Get a producer id, with the next epoch if it has a transactional id."""

        if transactional:  # makes the coordinator's topic
            self._retried(lambda: self._call(10, 1, _text(transactional) + b"\1", ">4xh"))

        def ask() -> tuple[int, Who]:
            error, *who = self._call(
                22, 0, _text(transactional) + struct.pack(">i", 60_000), ">4xhqh"
            )
            return error, Who(*who)

        return self._retried(ask)[1]

    def join_transaction(self, transactional: str, who: Who, topic: str) -> str:
        """Add the topic's partition to the producer's transaction; return the error's name."""
        body = _text(transactional) + struct.pack(">qh", *who) + _topic(topic)
        form = f">4x4x2x{len(topic)}x4x4xh"
        return _name(self._retried(lambda: self._call(24, 0, body, form))[0])

    def commit_transaction(self, transactional: str, who: Who) -> str:
        """End the producer's transaction; return the error's name."""
        body = _text(transactional) + struct.pack(">qhb", *who, 1)
        return _name(self._retried(lambda: self._call(26, 0, body, ">4xh"))[0])

    def produce(
        self, topic: str, who: Who, sequence: int, *events: str, transactional: str | None = None
    ) -> tuple[str, int]:
        """Send one batch; return the error's name and the offset in the answer."""
        batch = _batch(who, sequence, events, _TRANSACTIONAL if transactional else 0)
        body = _text(transactional) + struct.pack(">hi", -1, 30_000)
        body += _topic(topic) + struct.pack(">i", len(batch)) + batch
        form = f">4x2x{len(topic)}x4x4xhq"
        error, offset = self._retried(lambda: self._call(0, 3, body, form))
        return _name(error), offset

    def end(self, topic: str) -> int:
        """Return how many events the topic has."""
        body = struct.pack(">i", -1) + _topic(topic) + struct.pack(">q", -1)
        form = f">4x2x{len(topic)}x4x4xh8xq"
        return int(self._retried(lambda: self._call(2, 1, body, form))[1])

    def _retried(self, ask: Any) -> Any:
        deadline = time.monotonic() + 60
        while (answer := ask())[0] in _NOT_YET and time.monotonic() < deadline:
            time.sleep(0.1)
        assert answer[0] not in _NOT_YET, f"still {answer} after 60 s"
        return answer

    def _call(self, key: int, version: int, body: bytes, form: str) -> tuple[Any, ...]:
        request = struct.pack(">hhi", key, version, 7) + _text("zeh") + body
        self._socket.sendall(struct.pack(">i", len(request)) + request)
        (size,) = struct.unpack(">i", self._receive(4))
        return struct.unpack_from(form, self._receive(size), 4)

    def _receive(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            more = self._socket.recv(size - len(found))
            assert more, "the broker has closed the connection"
            found += more
        return found


def _name(error: int) -> str:
    return ERRORS.get(error, str(error))


def _text(value: str | None) -> bytes:
    if value is None:
        return struct.pack(">h", -1)
    return struct.pack(">h", len(value)) + value.encode()


def _topic(name: str) -> bytes:
    """One topic with its partition 0, as all requests begin with it."""
    return struct.pack(">i", 1) + _text(name) + struct.pack(">ii", 1, 0)


def _batch(who: Who, sequence: int, events: tuple[str, ...], attributes: int) -> bytes:
    """Return a record batch of the format 2."""
    records = b""
    for offset, event in enumerate(events):
        value = event.encode()
        record = b"\0" + _varint(0) + _varint(offset) + _varint(-1)
        record += _varint(len(value)) + value + _varint(0)
        records += _varint(len(record)) + record
    now = int(1000 * time.time())
    facts = (attributes, len(events) - 1, now, now, *who, sequence, len(events))
    rest = struct.pack(">hiqqqhii", *facts) + records
    head = struct.pack(">ibI", -1, 2, _crc32c(rest))
    return struct.pack(">qi", 0, len(head) + len(rest)) + head + rest


def _varint(value: int) -> bytes:
    left, found = (value << 1) ^ (value >> 63), bytearray()
    while left > 127:
        found.append(left & 127 | 128)
        left >>= 7
    return bytes([*found, left])


def _crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF
