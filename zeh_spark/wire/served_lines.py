"""Stored lines as they are served: with the reader's partition number, stamps, and wanted headers.

A reader may select events by one header: `only={"type":["paid","refunded"]}`. Our publisher says
with `page_headers.ONLY` that it has left out the others. Publishers that do not know the parameter
ignore it (spec, "Parameters"), so a reader refuses an answer without that header.

Rule for editors: with `headers=_all`, the hot path, no Python runs per line. It relies on what
every writer checks: a stored line begins exactly with `{"partition":P,"headers":{`, and JSON has no
raw newline within. So the bytes `\\n{"partition":P,"headers":{` occur at the beginning of lines
only.

Pure; runs in the publisher, and in tasks that read chunks as they are stored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import msgspec
from msgspec import Raw

from zeh_spark.errors import StoreError
from zeh_spark.wire import event_key, wire


@dataclass(frozen=True, slots=True)
class Block:
    """Events of one stored partition, and the cursor after them.

    Attributes:
        partition: The stored partition; the asked one if nothing was read.
        lines: Lines as `wire.event_line` makes them, each ended by one b"\n"; may be empty.
        cursor: The cursor after these events.
        stamps: Headers that each of these lines gets when it is served.
        sequence: The producer's number of the first line; each line has the next one.
    """

    partition: int
    lines: bytes
    cursor: str
    stamps: Mapping[str, str] = field(default_factory=dict)
    sequence: int | None = None


MAX_VALUES, MAX_TEXT = 16, 1_000
"""Most values of a header, and most characters of `only`, which an answer has in a header."""


class Selection(NamedTuple):
    """The events whose header `name` has one of the values.

    `text` is `only` in ASCII, the same for the same events.
    """

    name: str
    values: frozenset[str]
    text: str


Render = Callable[[Block, int], bytes]
"""Returns a block's lines as lines of a reader's partition."""


class _Event(msgspec.Struct, gc=False):
    headers: dict[str, str]
    data: Raw


class _Data(msgspec.Struct, gc=False):
    data: Raw


_BRACE = ord("}")

_events = msgspec.json.Decoder(_Event)
_data = msgspec.json.Decoder(_Data)
_decode_selection = msgspec.json.Decoder(dict[str, list[str]]).decode


def stamps(partition: int, time: int, producer: str, batch: int) -> dict[str, str]:
    """Return the headers with which all events of a chunk are stamped.

    `time` is that of the commit, in ms since 1970.
    """
    return {
        "zeh-producer": producer,
        "zeh-batch": str(batch),
        "zeh-partition": str(partition),
        wire.TIME_HEADER: str(time),
    }


def renderer(headers: tuple[str, ...], only: Selection | None = None) -> Render:
    """Return the function that renders blocks, or the events of them that are selected.

    `headers` are the wanted ones: names, `_all`, or none.
    """
    if only:
        return selected(renderer(headers), only)
    if wire.ALL_HEADERS in headers:
        return with_all_headers
    if not headers:
        return without_headers

    def render(block: Block, partition: int) -> bytes:
        return with_some_headers(block, partition, headers)

    return render


def parse_selection(text: str) -> Selection:
    """Return what a value of `only` selects. Raises ValueError if it is not valid."""
    try:
        _decode_selection(text)  # which takes the last member of a name
        ((name, values),) = json.loads(text, object_pairs_hook=list)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise ValueError(
            'must be JSON with one header and a list of its values, like {"type":["paid"]}'
        ) from None
    if name.startswith(wire.RESERVED_HEADER) and name != event_key.HEADER:
        raise ValueError(
            f"must name a header that events were published with, and {name} is added by the "
            f"publisher; of its headers only {event_key.HEADER} is allowed"
        )
    if not 1 <= len({*values}) == len(values) <= MAX_VALUES:
        raise ValueError(f"must have 1 to {MAX_VALUES} different values, and has {len(values)}")
    told = json.dumps({name: sorted(values)}, separators=(",", ":"))
    if len(told) > MAX_TEXT:
        raise ValueError(f"has {len(told):,} characters in ASCII; at most {MAX_TEXT:,} are allowed")
    return Selection(name, frozenset(values), told)


def selected(render: Render, only: Selection) -> Render:
    """Return the function that renders the events that a reader has selected, and no others.

    Stored headers have no blanks. So without an escape in a block, a line that has the header with
    a wanted value has both as msgspec writes them, and other lines need not be parsed: that halves
    the time.
    """
    name, *values = (re.escape(msgspec.json.encode(each)) for each in (only.name, *only.values))
    unescaped = re.compile(name + b":(?:" + b"|".join(values) + b")")
    any_line = re.compile(b"{")

    def chosen(block: Block) -> Iterator[Block]:
        lines, number = block.lines, block.sequence
        find, begin, end = any_line if b"\\" in lines else unescaped, 0, 0
        while found := find.search(lines, end):
            before, begin = begin, lines.rfind(b"\n", 0, found.start()) + 1
            if number is not None:
                number += lines.count(b"\n", before, begin)
            end = lines.index(b"\n", begin) + 1
            line = lines[begin:end]
            if _events.decode(line).headers.get(only.name) in only.values:
                yield replace(block, lines=line, sequence=number)

    def render_selected(block: Block, partition: int) -> bytes:
        return b"".join(render(each, partition) for each in chosen(block))

    return render_selected


def with_all_headers(block: Block, partition: int) -> bytes:
    """Render a block with all headers: cut at the beginnings of lines, and join with other ones."""
    if not block.stamps and block.sequence is None and partition == block.partition:
        return block.lines
    stored, served = (
        b'\n{"partition":%d,"headers":{' % each for each in (block.partition, partition)
    )
    before, *rests = (b"\n" + block.lines).split(stored)
    if before:
        raise StoreError(
            f"the store is damaged: the chunk of partition {block.partition} that ends with cursor "
            f"{block.cursor} has lines of another one. Restore it from a backup",
            anchor="the-store-is-damaged",
        )
    numbered = block.sequence is not None
    begin = _members(block.stamps)
    if numbered:
        begin += b',"zeh-sequence":"' if begin else b'"zeh-sequence":"'
    end = b'"' if numbered else b""
    if begin and not [rest for rest in rests if rest[0] == _BRACE]:
        end += b","
    elif begin:  # some events have no headers
        rests = [rest if rest[0] == _BRACE else b"," + rest for rest in rests]
    lines = [served + begin, b"", end, b""] * len(rests)
    if block.sequence is not None:
        lines[1::4] = map(b"%d".__mod__, range(block.sequence, block.sequence + len(rests)))
    lines[3::4] = rests
    return b"".join(lines)[1:]


def without_headers(block: Block, partition: int) -> bytes:
    """Render a block without headers. This is as fast as with all headers if no event has any."""
    stored = b'{"partition":%d,"headers":{' % block.partition
    begin = b'{"partition":%d,"data":' % partition
    if not _starts_a_line(block.lines, stored + b'"'):
        return _replaced(block.lines, stored + b'},"data":', begin)
    return b"".join([begin + each.data + b"}\n" for each in _data.decode_lines(block.lines)])


def with_some_headers(block: Block, partition: int, names: Iterable[str]) -> bytes:
    """Render a block with some headers. Events with none of them have no member `headers`."""
    begin = b'{"partition":%d,' % partition
    order = {name: at for at, name in enumerate(names)}
    lines = []
    stamps = dict(block.stamps)
    for number, event in enumerate(_events.decode_lines(block.lines), block.sequence or 0):
        if block.sequence is not None:
            stamps["zeh-sequence"] = str(number)
        has = {**event.headers, **stamps}
        found = sorted(has.keys() & order.keys(), key=order.__getitem__)
        wanted = _members({name: has[name] for name in found})
        headers = b'"headers":{%b},' % wanted if wanted else b""
        lines.append(b'%b%b"data":%b}\n' % (begin, headers, event.data))
    return b"".join(lines)


def _members(headers: Mapping[str, str]) -> bytes:
    """Return headers as members of a JSON object, without its braces."""
    return msgspec.json.encode(headers)[1:-1]


def _starts_a_line(lines: bytes, text: bytes) -> bool:
    return lines.startswith(text) or b"\n" + text in lines


def _replaced(lines: bytes, old: bytes, new: bytes) -> bytes:
    first = lines.startswith(old)
    replaced = lines.replace(b"\n" + old, b"\n" + new)
    return b"".join((new, memoryview(replaced)[len(old) :])) if first else replaced
