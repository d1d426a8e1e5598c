"""Cut the body of an answer into intervals while its bytes arrive. `wire` says what a line is.

Rule for editors: the result must not depend on how the network cut the bytes. Pure: bytes in,
values out. Runs on the driver and on executors.
"""

from __future__ import annotations

import msgspec

from zeh_spark.errors import PublisherError
from zeh_spark.wire import hashes, wire

LINE_BYTES = 64 << 20
"""Most bytes of a line. A small packed answer may hold a line of gigabytes."""

_BOM = b"\xef\xbb\xbf"


class PageScanner:
    """Cuts the body of one answer into intervals, as its bytes arrive.

    It finds checkpoints by searching bytes, and parses only lines that may be one. Events are
    counted and hashed, not parsed. The same bytes give the same intervals, however the network cut
    them.

    Attributes:
        tail_events: the number of events after the last checkpoint.
        tail_bytes: the bytes of those events' lines.
    """

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.ignored = 0
        self.unknown = b""
        self.checkpoints = 0
        self.tail_events = 0
        self.tail_bytes = 0
        self._tail: list[bytes] = []
        self._digest = 0
        self._partial: list[bytes] = []
        self._partial_bytes = 0
        self._last_line = b""
        self._started = False

    @property
    def held_bytes(self) -> int:
        """The number of bytes after the last checkpoint."""
        return self.tail_bytes + self._partial_bytes

    @property
    def tail(self) -> bytes:
        """The event lines after the last checkpoint."""
        return b"".join(self._tail)

    def feed(self, data: bytes) -> list[wire.Interval]:
        """Return the intervals that these bytes complete.

        Raises PublisherError if a checkpoint is not valid, or of another partition; or a line is
        longer than `LINE_BYTES`.
        """
        end = data.rfind(b"\n") + 1
        if not end:
            self._partial.append(data)
            self._partial_bytes += len(data)
            if self._partial_bytes > LINE_BYTES:
                raise PublisherError(
                    f"partition {self.partition}: a line of the answer is longer than "
                    f"{LINE_BYTES:,} bytes. Check that this is the address of a feed, and tell "
                    f"the publisher's owner",
                    partition=self.partition,
                    anchor="bytes-came-without-a-checkpoint",
                )
            return []
        block = b"".join((*self._partial, memoryview(data)[:end]))
        self._partial = [data[end:]]
        self._partial_bytes = len(data) - end
        return self._scan(block)

    def close(self) -> list[wire.Interval]:
        """Return the intervals that the end of the body completes.

        Call it only if the body ended as its framing says. Raises PublisherError if the last line
        that is not blank is not JSON: by such a line a publisher reports an error. Intervals that
        were returned before stay valid.
        """
        rest = b"".join(self._partial)
        self._partial, self._partial_bytes = [], 0
        if rest.strip():
            self._check_last(rest)
            return self._scan(rest + b"\n")
        self._check_last(self._last_line)
        return []

    def _check_last(self, line: bytes) -> None:
        line = line.strip()
        if not line.removeprefix(_BOM):
            return
        try:
            wire.decode_object(line.removeprefix(_BOM))
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as exc:
            raise PublisherError(
                f"partition {self.partition}: the publisher ended its answer with a line that is "
                f"not JSON ({wire.why_not(line, exc)}), which is how it reports an error after the "
                f"answer has begun: {wire.excerpt(line)}",
                partition=self.partition,
                body=wire.excerpt(line),
            ) from None

    def _scan(self, block: bytes) -> list[wire.Interval]:
        if not self._started:
            block = block.removeprefix(_BOM)
            self._started = True
        self._last_line = _last_line(block) or self._last_line
        intervals = []
        begin = search = 0
        while (found := block.find(b'"cursor"', search)) >= 0:
            line_begin = block.rfind(b"\n", begin, found) + 1 or begin
            search = block.index(b"\n", found) + 1
            cursor = wire.checkpoint_cursor(block[line_begin:search], self.partition)
            if cursor is None:
                continue
            self._add_events(block[begin:line_begin])
            self.checkpoints += 1
            digest = self._digest % hashes.MODULUS
            intervals.append(wire.Interval(self.tail, self.tail_events, cursor, digest))
            self._tail, self.tail_events, self.tail_bytes, self._digest = [], 0, 0, 0
            begin = search
        self._add_events(block[begin:])
        return intervals

    def _add_events(self, lines: bytes) -> None:
        if not lines:
            return
        each = lines.split(b"\n")
        each.pop()  # what split adds behind the last line
        if b"\r" in lines or [line for line in each if b'"data"' not in line]:
            each = self._only_events(each)
            lines = b"".join([line + b"\n" for line in each])
        if each:
            self._tail.append(lines)
            self._digest += hashes.sum_of(each)
            self.tail_events += len(each)
            self.tail_bytes += len(lines)

    def _only_events(self, lines: list[bytes]) -> list[bytes]:
        kept = []
        for line in lines:
            line = line.rstrip(b"\r")  # only that: other blocks keep the spaces of such lines
            if not line.strip():
                continue
            if b'"data"' in line or not wire.is_unknown(line):
                kept.append(line)
            else:
                self.ignored += 1
                self.unknown = self.unknown or line
        return kept


def _last_line(block: bytes) -> bytes:
    last = block[block.rfind(b"\n", 0, len(block) - 1) + 1 :].strip()
    return last or block.rstrip().rpartition(b"\n")[2]
