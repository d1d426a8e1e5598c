"""Judge the lines of an answer: pure, bytes in, verdicts and values out.

Rule for editors: this does not use the readers' own parser, which forgives what is judged here.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from zeh_spark.tools.check.rules import Judgement
from zeh_spark.wire import wire

_BOM = b"\xef\xbb\xbf"
_KEYS = {"partition", "headers", "data", "cursor"}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint.

    Args:
        events: how many events of its partition came before it in the answer.
    """

    partition: int
    cursor: str
    events: int


@dataclass(slots=True)
class Page:
    """The events and checkpoints of an answer.

    Args:
        events: the events of each partition in their order, each as canonical JSON.
        headers: the names of their headers.
    """

    events: dict[int, list[str]] = field(default_factory=dict)
    checkpoints: list[Checkpoint] = field(default_factory=list)
    headers: set[str] = field(default_factory=set)

    @property
    def count(self) -> int:
        return sum(map(len, self.events.values()))

    def of(self, partition: int) -> list[str]:
        return self.events.get(partition, [])

    def cursors(self, partition: int) -> list[Checkpoint]:
        return [each for each in self.checkpoints if each.partition == partition]


def judged(body: bytes, asked: Collection[int], into: Judgement, *, whole: bool = True) -> Page:
    """Return the page of a body, and note what is wrong with its lines.

    If the body is not `whole`, the rest after the last newline is not judged.
    """
    page = Page()
    if not whole:
        body = body[: body.rfind(b"\n") + 1]
    if body.startswith(_BOM):
        into.deviates("utf-8", "the answer begins with a byte order mark")
        body = body.removeprefix(_BOM)
    lines = body.split(b"\n")
    for number, line in enumerate(lines, 1):
        if not line and number == len(lines):
            continue
        if number == len(lines):
            into.deviates("line-ends", "the last line has no newline")
        _line(line, number, asked, into, page)
    if body:
        for rule in ("utf-8", "line-ends", "json", "keys", "known-lines", "line-length"):
            into.passes(rule, "all lines that were read")
    into.events += page.count
    return page


def _line(line: bytes, number: int, asked: Collection[int], into: Judgement, page: Page) -> None:
    where = f"line {number}"
    if not line.strip():
        into.deviates("line-ends", f"{where} is blank: {line!r}")
        return
    if line.endswith(b"\r"):
        into.deviates("line-ends", f"{where} ends with \\r\\n")
    if len(line) > wire.MAX_LINE:
        into.deviates("line-length", f"{where} has {len(line):,} bytes")
    fields = _fields(line, where, into)
    if fields is None:
        return
    partition = _partition(fields, where, asked, into)
    if "cursor" in fields and fields["cursor"] not in (None, ""):
        _checkpoint(fields, where, partition, into, page)
    elif "cursor" in fields:
        into.deviates("cursor", f"{where} has the cursor {fields['cursor']!r}, which is none")
    elif "data" in fields or ("partition" in fields and fields.keys() <= {"partition", "headers"}):
        _event(fields, where, partition, into, page)
    else:
        into.deviates("known-lines", f"{where} is neither: {wire.excerpt(line, 80)}")


def _fields(line: bytes, where: str, into: Judgement) -> dict[str, Any] | None:
    try:
        text = line.decode()
    except UnicodeDecodeError as exc:
        into.fails("utf-8", f"{where} is not UTF-8: byte {exc.start} is 0x{line[exc.start]:02x}")
        return None
    objects: list[set[str]] = []
    """The names that are there twice, of each object; the line's own comes last."""

    def without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields = dict(pairs)
        names = [name for name, _ in pairs] if len(fields) < len(pairs) else []
        objects.append({name for name in names if names.count(name) > 1})
        return fields

    try:
        value = json.loads(
            text,
            parse_constant=_refuse_constant,
            parse_int=_integer,
            object_pairs_hook=without_doubles,
        )
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as exc:
        reason = wire.why_not(line, exc)
        into.fails("json", f"{where} is not JSON ({reason}): {wire.excerpt(line, 80)}")
        return None
    if not isinstance(value, dict):
        into.fails("json", f"{where} is JSON, but no object: {wire.excerpt(line, 80)}")
        return None
    _keys(line, value, objects, where, into)
    return value


def _keys(
    line: bytes, fields: dict[str, Any], objects: list[set[str]], where: str, into: Judgement
) -> None:
    """Note names that are there twice, and names of the line's own that have escapes."""
    *nested, own = objects
    if own:
        into.fails("keys", f"{where} has {', '.join(sorted(own))!r} twice")
    elif names := set().union(*nested):
        into.deviates("keys", f"{where} has {sorted(names)[0][:40]!r} twice, in data or headers")
    if b"\\" not in line:
        return
    values = [bytes(value) for value in wire.decode_object(line).values()]
    for name in sorted(fields.keys() & _KEYS):
        plain = b'"%b"' % name.encode()
        if line.count(plain) == sum(value.count(plain) for value in values):
            into.fails("keys", f"{where} has the name {name!r} with an escape")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _integer(digits: str) -> int | str:
    """Return an integer; one that Python refuses to convert for its length stays a text."""
    return int(digits) if len(digits) < 1000 else digits


def _partition(fields: dict[str, Any], where: str, asked: Collection[int], into: Judgement) -> int:
    first = min(asked)
    found = fields.get("partition")
    if found is None:
        into.deviates("partition", f"{where} names no partition")
    elif type(found) is not int:
        into.fails("partition", f"{where} has the partition {found!r}, which is no integer")
    elif found not in asked:
        into.fails(
            "partition",
            f"{where} is of partition {found}, and asked for was {', '.join(map(str, asked))}",
        )
    else:
        into.passes("partition", "all lines that were read")
        return found
    return first


def _checkpoint(
    fields: dict[str, Any], where: str, partition: int, into: Judgement, page: Page
) -> None:
    cursor = fields["cursor"]
    if "data" in fields:
        into.fails("cursor-alone", f"{where} has cursor and data")
    else:
        into.passes("cursor-alone", "all checkpoints that were read")
    if isinstance(cursor, bool) or not isinstance(cursor, str | int):
        into.fails("cursor", f"{where} has the cursor {str(cursor)[:80]!r}, which is no string")
        return
    if isinstance(cursor, int):
        into.deviates("cursor", f"{where} has the number {cursor} as cursor")
    elif cursor in (wire.FIRST, wire.LAST):
        into.fails("cursor", f"{where} has the special cursor {cursor!r}")
    elif not (cursor.isascii() and cursor.isprintable()):
        into.deviates("cursor", f"{where} has other characters in the cursor {cursor[:80]!a}")
    else:
        into.passes("cursor", "all checkpoints that were read")
    page.checkpoints.append(Checkpoint(partition, str(cursor), len(page.of(partition))))


def _event(fields: dict[str, Any], where: str, partition: int, into: Judgement, page: Page) -> None:
    if fields.get("data") is None:
        what = "null as data" if "data" in fields else "no data"
        into.deviates("data", f"{where} has {what}")
    else:
        into.passes("data", "all events that were read")
    headers = fields.get("headers")
    if headers is not None and not isinstance(headers, dict):
        into.fails("header-values", f"{where} has headers that are no object")
    elif headers and (wrong := [name for name in headers if not isinstance(headers[name], str)]):
        value = headers[wrong[0]]
        note = into.deviates if value is None else into.fails
        note("header-values", f"{where} has {json.dumps(value)[:80]} as header {wrong[0]!r}")
    else:
        into.passes("header-values", "all events that were read")
    page.headers.update(headers or ())
    shown = json.dumps(fields.get("data"), sort_keys=True, separators=(",", ":"))
    page.events.setdefault(partition, []).append(shown)
