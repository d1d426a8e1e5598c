"""Take served lines apart: into their stamps, and the content as it was stored. Pure.

This is the counterpart of `wire.served_lines`, which puts the stamps of a chunk in front of
each line's own headers, the sequence number last. So all lines of a chunk begin with the same
bytes, up to a number that grows by one.

Rule for editors: `content` runs no Python code for each line. Bytes that are not exactly as
expected go to `_slowly`, which checks each line and names the first wrong one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from operator import itemgetter

from zeh_spark.wire import wire
from zeh_spark.wire.upload_format import Content, content_of

_HEAD = re.compile(
    rb'\{"partition":(?P<served>\d+),"headers":\{'
    rb'"zeh-producer":"(?P<producer>[^"\\]*)","zeh-batch":"(?P<batch>\d+)",'
    rb'"zeh-partition":"(?P<partition>\d+)","zeh-time":"(?P<time>\d+)",'
    rb'"zeh-sequence":"(?P<sequence>\d+)"'
)
_REST = b'"headers":{'
"""What the rest of a stored line begins with; its own headers follow."""


class OddLineError(ValueError):
    """A line that a publisher of `zeh_spark` does not serve."""

    def __init__(self, reason: str, *, stamped: bool = True) -> None:
        super().__init__(reason)
        self.stamped = stamped


@dataclass(frozen=True, slots=True)
class Stamps:
    """The stamps of a chunk, from its first line.

    Args:
        begin: The bytes that each line begins with, up to its sequence number.
        served: The partition that was asked for (`partition` of the line).
        partition: The stored partition (`zeh-partition`).
        time: The time of the commit in ms since 1970.
    """

    begin: bytes
    served: int
    partition: int
    time: int
    producer: str
    batch: int
    sequence: int


def stamps_of(lines: bytes) -> Stamps:
    """Return the stamps of a chunk's lines, from the first of them.

    Raises OddLineError if it has not all of them.
    """
    match = _HEAD.match(lines)
    if not match:
        line = lines.partition(b"\n")[0]
        stamped = b'"zeh-partition"' in line
        reason = f"a line without the publisher's stamps: {wire.excerpt(line)}"
        raise OddLineError(reason, stamped=stamped)
    served, partition, time, batch, sequence = (
        int(match[each]) for each in ("served", "partition", "time", "batch", "sequence")
    )
    begin = lines[: match.start("sequence")]
    producer = match["producer"].decode(errors="replace")
    return Stamps(begin, served, partition, time, producer, batch, sequence)


def content(lines: bytes, stamps: Stamps) -> Content:
    """Return count and digest of a chunk's lines as they were stored, without stamps.

    Raises OddLineError for the first line that has other stamps, or whose number is not one more
    than that of the line before.
    """
    served = lines.split(b"\n")
    if served.pop():
        return _slowly(lines, stamps)
    # Whether the lines have headers of their own.
    headers = served[0][len(stamps.begin) :].partition(b'"')[2].startswith(b",")
    form = stamps.begin.replace(b"%", b"%%") + (b'%d",' if headers else b'%d"')
    begins = list(map(form.__mod__, range(stamps.sequence, stamps.sequence + len(served))))
    own = list(map(bytes.removeprefix, served, begins))
    cut = len(lines) - len(served) - sum(map(len, own)) == sum(map(len, begins))
    if not cut or not (headers or set(map(itemgetter(slice(1)), own)) == {b"}"}):
        return _slowly(lines, stamps)  # also if only some have headers of their own
    return content_of(list(map(_REST.__add__, own)))


def _slowly(lines: bytes, stamps: Stamps) -> Content:
    """Do what `content` does, line by line. Raises OddLineError for the first wrong line."""
    rests: list[bytes] = []
    for number, line in enumerate(lines.removesuffix(b"\n").split(b"\n"), stamps.sequence):
        expected = stamps.begin + b'%d"' % number
        end = line[len(expected) : len(expected) + 1]
        if not line.startswith(expected) or end not in (b",", b"}"):
            raise OddLineError(
                f"line {len(rests) + 1} of the chunk: expected {wire.excerpt(expected, 400)} at "
                f"its beginning, found {wire.excerpt(line, len(expected) + 20)}"
            )
        rests.append(_REST + line[len(expected) + (end == b",") :])
    return content_of(rests)
