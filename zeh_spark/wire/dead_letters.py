"""Dead letters: write a row that cannot be published, and read it again.

A dead letter is the data of an event of another feed:

    {"reason": "data: not JSON: …", "producer": "orders-job", "batch": 17,
     "row": {"data": "{\\"id\\": NaN}", "key": "c-4", "headers": {"type": "placed"}}}

`row` holds the row as it was given, as text. Its data is under one of three names: `data` is the
event's data; `base64` is data that is not UTF-8; `unfit` is JSON with texts in the place of values
that have no form in JSON. Only `data` is published again, as text or as JSON. To repair one of the
others, put the event's data there under the name `data`.

A dead letter that is too long for a line is cut into events {"id", "part", "parts", "text"}, one
after the other in one partition. Their texts joined are the dead letter.

Rule for editors: the same row in the same batch gives the same bytes, whatever the tasks. So a dead
letter has no time, no address, and nothing of Spark's tasks. With a task's partition, for example,
a batch that is repeated in another layout would not be recognized. The texts of reasons are part of
these bytes, too.

Pure. Runs in tasks and in commands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count

import msgspec
import xxhash
from msgspec import UNSET, Raw, UnsetType

from zeh_spark.wire import upload_format, wire
from zeh_spark.wire.feed_identity import HEADER, ID
from zeh_spark.wire.option_values import MAX_PARTITIONS
from zeh_spark.wire.phrases import printable

LETTER_BYTES = (
    upload_format.LINE_BYTES
    - len(upload_format.prefix(MAX_PARTITIONS))
    - len(b'"headers":{},"data":}')
)
"""The maximum bytes of data that fit into a line of any partition of any feed."""

_PIECE = (LETTER_BYTES - 200) // 2
"""Bytes of a dead letter in one part.

JSON within a string takes at most twice as many bytes, and 200 are enough for what is around it.
"""

_encode = msgspec.json.Encoder().encode


# Writing


def letter(reason: str, producer: str, batch: int, row: Mapping[str, object] | None) -> bytes:
    """Return a dead letter. `row` is None for a record without an event."""
    return _encode({"reason": reason, "producer": producer, "batch": batch, "row": row})


def cut(letter: bytes) -> list[bytes]:
    """Return the data of the events that carry a dead letter: itself, or its parts."""
    if len(letter) <= LETTER_BYTES:
        return [letter]
    pieces = list(_pieces(letter))
    about = {"id": letter_id(letter), "parts": len(pieces)}
    return [
        _encode({**about, "part": number, "text": piece.decode()})
        for number, piece in enumerate(pieces, 1)
    ]


def letter_id(letter: bytes) -> str:
    """Return the id that the parts of a dead letter share: a hash of its bytes."""
    return xxhash.xxh3_128_hexdigest(letter)


def _pieces(letter: bytes) -> Iterator[bytes]:
    """Yield the pieces of a dead letter, cut between characters."""
    begin = 0
    while begin < len(letter):
        end = min(begin + _PIECE, len(letter))
        while end < len(letter) and letter[end] & 0xC0 == 0x80:  # within a character
            end -= 1
        yield letter[begin:end]
        begin = end


# Reading


class DeadRow(msgspec.Struct, forbid_unknown_fields=True):
    """A row as it may be published again.

    Args:
        base64: the data that could not be published, if it was not UTF-8.
        unfit: the data that could not be published, if it has no form in JSON.
    """

    data: Raw | UnsetType = UNSET
    key: str | int | None = None
    partition: int | None = None
    headers: dict[str, str] | None = None
    base64: Raw | UnsetType = UNSET
    unfit: Raw | UnsetType = UNSET

    def event(self) -> bytes:
        """Return the event's data. Raises ValueError if it cannot be published."""
        if self.data is UNSET:
            raise ValueError("its row has no 'data': put the repaired event there")
        text = bytes(self.data)
        if text.startswith(b'"'):
            text = msgspec.json.decode(text, type=str).encode()
        data = upload_format.validated_json(text)
        if data == b"null":
            raise ValueError("null cannot be an event's data")
        return data


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    headers: dict[str, str] = {}
    data: Raw = Raw(b"null")
    partition: int = 0


class _Part(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    part: int
    parts: int
    text: str


class _Whole(msgspec.Struct, forbid_unknown_fields=True):
    """A whole dead letter. Its form is strict, because an edit outside the row has no effect."""

    row: DeadRow | None
    reason: str = ""
    producer: str = ""
    batch: int = 0


_decode_line = msgspec.json.Decoder(_Line).decode
_decode_data = msgspec.json.Decoder(dict[str, Raw]).decode


@dataclass(frozen=True, slots=True)
class DeadLetterId:
    """The identity of a dead letter: the stamps of its first event, which no other one ever gets.

    Rejected: a hash of the row, because two equal rows are two dead letters, and a repaired one is
    still the same. Rejected: the stamps without the time, because another feed, or a restored one,
    gives the same ones again.

    Args:
        time: when it was committed, in ms since 1970.
        feed: its header `zeh-feed`: the id of the epoch of the dead-letter feed from which it was
            read.
    """

    producer: str
    batch: int
    partition: int
    sequence: int
    time: int
    feed: str

    @property
    def name(self) -> str:
        """The name of the batch in which it is published, with the feed and producer as a hash."""
        shown = xxhash.xxh3_64_hexdigest(f"{self.feed}/{self.producer}".encode())
        return f"dead:{self.batch}:{self.partition}:{self.sequence}:{self.time}:{shown}"

    @property
    def base(self) -> str:
        return self.producer.partition("#")[0]


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter as it was read."""

    line: int
    place: DeadLetterId
    whole: bytes

    @property
    def row(self) -> DeadRow | None:
        """The row; None for a record about a session, which has no event.

        Raises ValueError if the row cannot be published yet, or this is no dead letter any more.
        """
        try:
            return msgspec.json.decode(_decode_line(self.whole).data, type=_Whole).row
        except msgspec.MsgspecError as exc:
            # "Expected `str`, got `null` - at `$.row.headers[...]`"
            said = f"{exc}".replace("`$", "`data")
            raise ValueError(f"it cannot be published like this: {said!r}") from None


class Unreadable(ValueError):
    """A line that is no dead letter, or a dead letter of which parts are missing."""

    def __init__(self, line: int, reason: str) -> None:
        self.line = line
        self.reason = printable(reason)
        super().__init__(line, self.reason)


def _refuse(line: Unreadable) -> None:
    raise line


def letters(
    lines: Iterable[bytes], unreadable: Callable[[Unreadable], None] = _refuse
) -> Iterator[DeadLetter]:
    """Yield the dead letters of lines as `zeh-spark tail --headers` prints them.

    Each comes as soon as it is whole: its parts are joined, whatever comes between them. Blank
    lines are left out. `unreadable` is called for each line that is no dead letter, and at the end
    for missing parts. If it does not raise, the other lines are read.
    """
    parts: dict[tuple[DeadLetterId, str], _Parts] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            place, part = _read(line)
            if part is None:
                yield DeadLetter(number, place, line.strip())
                continue
            begin = replace(place, sequence=place.sequence - part.part + 1)
            some = parts.setdefault((begin, part.id), _Parts(number, begin, part))
            if some.add(number, line, part):
                yield some.joined()
        except Unreadable as exc:
            unreadable(exc)
        except (ValueError, RecursionError) as exc:  # msgspec's errors are ValueErrors
            unreadable(Unreadable(number, str(exc)))
    for some in parts.values():
        if missing := some.missing():
            unreadable(missing)


def _read(line: bytes) -> tuple[DeadLetterId, _Part | None]:
    try:
        parsed = _decode_line(line)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, RecursionError) as exc:
        raise ValueError(f"not JSON: {wire.why_not(line, exc)}") from None
    place = _place(parsed.headers)
    try:
        fields = _decode_data(parsed.data)
    except msgspec.ValidationError:
        fields = {}
    if "part" not in fields:
        if "row" not in fields:
            raise ValueError("its data has no 'row': it is no dead letter")
        return place, None
    part = msgspec.json.decode(parsed.data, type=_Part)
    if not 1 <= part.part <= part.parts:
        raise ValueError(f"there is no part {part.part} of {part.parts}")
    return place, part


def _place(headers: Mapping[str, str]) -> DeadLetterId:
    names = ("zeh-batch", "zeh-partition", "zeh-sequence", "zeh-time")
    try:
        batch, partition, sequence, time = (int(headers[name]) for name in names)
        whose, feed = headers["zeh-producer"], headers[HEADER]
        place = DeadLetterId(whose, batch, partition, sequence, time, feed)
    except (KeyError, ValueError):
        place = None
    if place is None or not (
        wire.NAME.fullmatch(place.base)
        and wire.NAME.fullmatch(place.name)
        and ID.fullmatch(place.feed)
    ):
        raise ValueError(
            f"it lacks valid headers zeh-producer, {HEADER}, {', '.join(names)}, which identify a "
            f"dead letter. Print it again with zeh-spark dead-letters, or zeh-spark tail --headers"
        )
    if more := sorted(name for name in headers if not name.startswith(wire.RESERVED_HEADER)):
        raise ValueError(
            f"its header {more[0]!r} is not published. Put the event's headers into "
            f"data.row.headers"
        )
    return place


class _Parts:
    """The parts of one dead letter, as they come."""

    def __init__(self, line: int, place: DeadLetterId, first: _Part) -> None:
        self._line = line
        self._place = place
        self._id = first.id
        self._count = first.parts
        self._seen: dict[int, int] = {}
        self._texts: dict[int, str] = {}
        self._head = b""

    def add(self, number: int, line: bytes, part: _Part) -> bool:
        """Add a part; return whether it was the last one. A part that comes again changes nothing.

        Raises Unreadable if the same part has come with another text.
        """
        digest = xxhash.xxh3_64_intdigest(part.text.encode())
        again = part.part in self._seen
        if self._seen.setdefault(part.part, digest) != digest or part.parts != self._count:
            raise self._unreadable(f"line {number} has another part {part.part}")
        if again:
            return False
        self._texts[part.part] = part.text
        if part.part == 1:
            self._head = line
        return len(self._seen) == self._count

    def missing(self) -> Unreadable | None:
        """Return the error about the first missing part, if there is one."""
        if len(self._seen) == self._count:
            return None
        first = next(each for each in count(1) if each not in self._seen)
        return self._unreadable(
            f"part {first} is missing. If the feed's retention has removed it, leave the rest out"
        )

    def joined(self) -> DeadLetter:
        """Return the dead letter as if it had been in one line. Call it once.

        Raises Unreadable if a text was changed.
        """
        whole = "".join(self._texts.pop(each) for each in range(1, self._count + 1)).encode()
        if letter_id(whole) != self._id:
            raise self._unreadable(
                "the texts are not what they were. Repair the whole dead letter, as zeh-spark "
                "dead-letters prints it"
            )
        head = msgspec.json.decode(self._head, type=dict[str, Raw])
        return DeadLetter(self._line, self._place, _encode({**head, "data": Raw(whole)}))

    def _unreadable(self, reason: str) -> Unreadable:
        return Unreadable(self._line, f"dead letter {self._id} in {self._count} parts: {reason}")
