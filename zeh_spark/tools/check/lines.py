"""Judge the lines of an answer: bytes in, verdicts and values out. Pure.

Rule for editors: this does not use the readers' own parser, which forgives what is judged here.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from zeh_spark.tools.check.rules import Judgement, Verdict
from zeh_spark.wire import wire

_BOM = b"\xef\xbb\xbf"
_KEYS = {"partition", "headers", "data", "cursor"}
_MOST_DIGITS = 1000
"""Integers with more digits stay texts, because Python refuses to convert them."""

_OF_LINES = ("utf-8", "line-ends", "json", "keys", "known-lines", "line-length")
_OF_EVENTS = ("data", "header-values")
_OF_CHECKPOINTS = ("cursor", "cursor-alone")


@dataclass(slots=True)
class Part:
    """What an answer has of one partition.

    Args:
        events: in their order, each as canonical JSON.
        marks: the cursors of its checkpoints, each with the number of events before it.
    """

    events: list[str] = field(default_factory=list)
    marks: list[tuple[str, int]] = field(default_factory=list)


class Page:
    """The events and checkpoints of a body. What is wrong with its lines is noted.

    Args:
        asked: the partitions that were asked for.
        whole: otherwise the rest after the last newline is not judged.

    Attributes:
        headers: the names of the events' headers.
    """

    def __init__(
        self, body: bytes, asked: Collection[int], found: Judgement, *, whole: bool = True
    ) -> None:
        self.parts: defaultdict[int, Part] = defaultdict(Part)
        self.headers: set[str] = set()
        self._asked, self._found, self._number = asked, found, 0
        if not whole:
            body = body[: body.rfind(b"\n") + 1]
        if body.startswith(_BOM):
            found.deviates("utf-8", "the answer begins with a byte order mark")
            body = body.removeprefix(_BOM)
        *lines, last = body.split(b"\n")
        if last:
            found.deviates("line-ends", "the last line has no newline")
            lines.append(last)
        for line in lines:
            self._number += 1
            self._add(line)
        rules = [*(_OF_LINES if body else ()), *(["partition"] if self.parts else ())]
        rules += _OF_EVENTS if self.count else ()
        rules += _OF_CHECKPOINTS if any(part.marks for part in self.parts.values()) else ()
        for rule in rules:
            found.passes(rule, "all that was read")
        found.events += self.count

    @property
    def count(self) -> int:
        """The number of events."""
        return sum(len(part.events) for part in self.parts.values())

    def _fails(self, rule: str, what: str, verdict: Verdict = Verdict.FAILURE) -> None:
        self._found[rule].add(verdict, f"line {self._number} {what}")

    def _deviates(self, rule: str, what: str) -> None:
        self._fails(rule, what, Verdict.DEVIATION)

    def _add(self, line: bytes) -> None:
        if not line.strip():
            self._deviates("line-ends", f"is blank: {line!r}")
            return
        if line.endswith(b"\r"):
            self._deviates("line-ends", "ends with \\r\\n")
        if len(line) > wire.MAX_LINE:
            self._deviates("line-length", f"has {len(line):,} bytes")
        fields = self._fields(line)
        if fields is None:
            return
        part = self.parts[self._partition(fields)]
        if fields.get("cursor") not in (None, ""):
            self._checkpoint(fields, part)
        elif "cursor" in fields:
            self._deviates("cursor", f"has the cursor {fields['cursor']!r}, which is none")
        elif "data" in fields or ("partition" in fields and fields.keys() <= _KEYS):
            self._event(fields, part)
        else:
            self._deviates("known-lines", f"is neither: {wire.excerpt(line, 80)}")

    def _fields(self, line: bytes) -> dict[str, Any] | None:
        """Return the fields of a line; None if it is no JSON object."""
        repeated: list[set[str]] = []  # of each object; the line's own names come last

        def fields_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
            times = Counter(name for name, _ in pairs)
            repeated.append({name for name in times if times[name] > 1})
            return dict(pairs)

        try:
            fields = json.loads(
                line.decode(),
                parse_constant=int,  # refuses NaN and Infinity
                parse_int=lambda digits: int(digits) if len(digits) < _MOST_DIGITS else digits,
                object_pairs_hook=fields_of,
            )
            json.dumps(fields, ensure_ascii=False).encode()
        except UnicodeDecodeError as exc:
            byte = line[exc.start]
            self._fails("utf-8", f"is not UTF-8: byte {exc.start} is 0x{byte:02x}")
            return None
        except (ValueError, RecursionError) as exc:
            reason = wire.why_not(line, exc)
            self._fails("json", f"is not JSON ({reason}): {wire.excerpt(line, 80)}")
            return None
        if not isinstance(fields, dict):
            self._fails("json", f"is JSON, but no object: {wire.excerpt(line, 80)}")
            return None
        self._judge_names(line, fields, *repeated)
        return fields

    def _judge_names(self, line: bytes, fields: dict[str, Any], *repeated: set[str]) -> None:
        """Note names that are there twice, and names of the line's own that have escapes."""
        *nested, own = repeated
        if own:
            self._fails("keys", f"has {', '.join(sorted(own))!r} twice")
        elif names := set().union(*nested):
            self._deviates("keys", f"has {min(names)[:40]!r} twice, in data or headers")
        if b"\\" not in line:
            return
        values = [bytes(value) for value in wire.decode_object(line).values()]
        for name in sorted(fields.keys() & _KEYS):
            plain = b'"%b"' % name.encode()
            if line.count(plain) == sum(value.count(plain) for value in values):
                self._fails("keys", f"has the name {name!r} with an escape")

    def _partition(self, fields: dict[str, Any]) -> int:
        """Return the partition of a line; the first that was asked for, if it names no such one."""
        found = fields.get("partition")
        if found is None:
            self._deviates("partition", "names no partition")
        elif type(found) is not int:
            self._fails("partition", f"has the partition {found!r}, which is no integer")
        elif found not in self._asked:
            asked = ", ".join(map(str, self._asked))
            self._fails("partition", f"is of partition {found}, and asked for was {asked}")
        else:
            return found
        return min(self._asked)

    def _checkpoint(self, fields: dict[str, Any], part: Part) -> None:
        cursor = fields["cursor"]
        if "data" in fields:
            self._fails("cursor-alone", "has cursor and data")
        if isinstance(cursor, bool) or not isinstance(cursor, str | int):
            self._fails("cursor", f"has the cursor {str(cursor)[:80]!r}, which is no string")
            return
        if isinstance(cursor, int):
            self._deviates("cursor", f"has the number {cursor} as cursor")
        elif cursor in (wire.FIRST, wire.LAST):
            self._fails("cursor", f"has the special cursor {cursor!r}")
        elif not (cursor.isascii() and cursor.isprintable()):
            self._deviates("cursor", f"has other characters in the cursor {cursor[:80]!a}")
        part.marks.append((str(cursor), len(part.events)))

    def _event(self, fields: dict[str, Any], part: Part) -> None:
        if fields.get("data") is None:
            self._deviates("data", f"has {'null as' if 'data' in fields else 'no'} data")
        headers = {} if fields.get("headers") is None else fields["headers"]
        if not isinstance(headers, dict):
            self._fails("header-values", "has headers that are no object")
            headers = {}
        for name, value in headers.items():
            if not isinstance(value, str):
                verdict = Verdict.DEVIATION if value is None else Verdict.FAILURE
                said = f"has {json.dumps(value)[:80]} as header {name!r}"
                self._fails("header-values", said, verdict)
        self.headers.update(headers)
        event = json.dumps(fields.get("data"), sort_keys=True, separators=(",", ":"))
        part.events.append(event)
