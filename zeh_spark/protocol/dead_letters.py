"""Dead letters: what becomes of a row that cannot be published, and how it is read again. Pure.

A letter is the data of an event of another feed:

    {"reason": "data: not JSON: …", "producer": "orders-job", "batch": 17,
     "row": {"data": "{\\"id\\": NaN}", "key": "c-4", "headers": {"type": "placed"}}}

Of the row there is what was given, as text, its data under one of three names: `data`, what the
event would be; `base64`, what is not UTF-8; `unfit`, JSON with texts in the place of what has no
form in it. Only `data` is published again, text or JSON: whoever mends one of the others has to say
so.

A letter that is too long for a line is cut into events {"id", "part", "parts", "text"}, one behind
the other in one partition: their texts joined are the letter.

Rule for editors: the same row in the same batch gives the same bytes, whatever the tasks. So there
is no clock in a letter, no address, and nothing of Spark's tasks [its partition, say: a batch that
comes again in another layout would not be recognised].

Runs in tasks, and in commands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count

import msgspec
import xxhash
from msgspec import UNSET, Raw, UnsetType

from zeh_spark.options import MAX_PARTITIONS
from zeh_spark.protocol import upload_format, wire
from zeh_spark.protocol.feed_identity import HEADER, ID, FeedIdentity

LETTER_BYTES = (
    upload_format.LINE_BYTES
    - len(upload_format.prefix(MAX_PARTITIONS))
    - len(b'"headers":{},"data":}')
)
"""What fits as data into a line of any partition of any feed."""

_PIECE = (LETTER_BYTES - 200) // 2
"""Bytes of a letter in one part: JSON within a string takes twice as many at most, and 200 are
enough for what is around it.
"""

_encode = msgspec.json.Encoder().encode


# Writing


def letter(reason: str, producer: str, batch: int, row: Mapping[str, object] | None) -> bytes:
    return _encode({"reason": reason, "producer": producer, "batch": batch, "row": row})


def cut(letter: bytes) -> list[bytes]:
    """The data of the events that carry a letter: itself, or its parts."""
    if len(letter) <= LETTER_BYTES:
        return [letter]
    pieces = list(_pieces(letter))
    about = {"id": letter_id(letter), "parts": len(pieces)}
    return [
        _encode({**about, "part": number, "text": piece.decode()})
        for number, piece in enumerate(pieces, 1)
    ]


def letter_id(letter: bytes) -> str:
    return xxhash.xxh3_128_hexdigest(letter)


def _pieces(letter: bytes) -> Iterator[bytes]:
    """Cut between characters."""
    begin = 0
    while begin < len(letter):
        end = min(begin + _PIECE, len(letter))
        while end < len(letter) and letter[end] & 0xC0 == 0x80:  # within a character
            end -= 1
        yield letter[begin:end]
        begin = end


# Reading


class DeadRow(msgspec.Struct, forbid_unknown_fields=True):
    """A row as it may be published again; `base64` and `unfit` are what it was."""

    data: Raw | UnsetType = UNSET
    key: str | int | None = None
    partition: int | None = None
    headers: dict[str, str] | None = None
    base64: Raw | UnsetType = UNSET
    unfit: Raw | UnsetType = UNSET

    def event(self) -> bytes:
        """The event's data. Raises ValueError, and for what no writer would store."""
        if self.data is UNSET:
            raise ValueError("its row has no 'data': put the mended event there")
        text = bytes(self.data)
        if text.startswith(b'"'):
            text = msgspec.json.decode(text, type=str).encode()
        data = wire.validated_json(text)
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
    """Edits anywhere else than in the row would be left out unnoticed."""

    row: DeadRow | None
    reason: str = ""
    producer: str = ""
    batch: int = 0


_decode_line = msgspec.json.Decoder(_Line).decode
_decode_data = msgspec.json.Decoder(dict[str, Raw]).decode


@dataclass(frozen=True, slots=True)
class DeadLetterId:
    """Which letter that is: of whose batch, and the stamps of its first event, which no other
    letter ever gets [a hash of the row: two equal rows are two letters, and a mended one is the
    same letter still. Without the time: another feed, or one that was restored, gives the same
    ones again].

    `feed` is the header `zeh-feed`: the id of the epoch of the dead-letter feed that the letter was
    read from. It is None for a letter that an older version printed.
    """

    producer: str
    batch: int
    partition: int
    sequence: int
    time: int
    feed: str | None = None

    @property
    def name(self) -> str:
        """As that of a batch: the feed, if its publisher told its id, and the producer as a hash.

        A `zeh-feed` made of a URL is left out: the same letter has another one if it is read from
        another address, or after its publisher was upgraded.
        """
        whose = f"{self.feed}/{self.producer}" if self.has_feed else self.producer
        shown = xxhash.xxh3_64_hexdigest(whose.encode())
        return f"dead:{self.batch}:{self.partition}:{self.sequence}:{self.time}:{shown}"

    @property
    def has_feed(self) -> bool:
        """Whether it is known which feed the letter comes from."""
        return self.feed is not None and bool(ID.fullmatch(self.feed))

    def in_feed(self, feed: FeedIdentity) -> DeadLetterId:
        """Return the place with the id of the feed's epoch that the letter belongs to, as
        `zeh-spark dead-letters` prints it. A letter that names a feed keeps that one.
        """
        return self if self.feed is not None else replace(self, feed=feed.at(self.time))

    @property
    def without_feed(self) -> DeadLetterId:
        """The place under which older versions of zeh-spark published the letter."""
        return replace(self, feed=None)

    @property
    def base(self) -> str:
        """The producer without the name of its batch."""
        return self.producer.partition("#")[0]


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A letter as it was read: `line` counts from 1, `whole` is the event's line with all of it."""

    line: int
    place: DeadLetterId
    whole: bytes

    @property
    def row(self) -> DeadRow | None:
        """None for what tells of a session, and has no event. Raises ValueError for what is not in
        order yet, or no letter any more.
        """
        try:
            return msgspec.json.decode(_decode_line(self.whole).data, type=_Whole).row
        except msgspec.MsgspecError as exc:
            # "Expected `str`, got `null` - at `$.row.headers[...]`"
            raise ValueError(f"it cannot be published like this: {str(exc)!r}") from None


class Unreadable(ValueError):
    """A line that is no dead letter, or one of which parts are missing; `line` counts from 1."""

    def __init__(self, line: int, reason: str) -> None:
        shown = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in reason)
        super().__init__(line, shown)
        self.line = line
        self.reason = shown


def _refuse(line: Unreadable) -> None:
    raise line


def letters(
    lines: Iterable[bytes], unreadable: Callable[[Unreadable], None] = _refuse
) -> Iterator[DeadLetter]:
    """The letters of lines as `zeh-spark tail --headers` prints them, each as soon as it is whole:
    parts are put together, whatever comes between. Blank lines are nothing.

    `unreadable` is told of lines that are none, and at the end of missing parts; if it does not
    raise, the others go on. By itself it raises Unreadable.
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
    fields = _decode_data(parsed.data)
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
        whose, feed = headers["zeh-producer"], headers.get(HEADER) or None
        place = DeadLetterId(whose, batch, partition, sequence, time, feed)
    except (KeyError, ValueError):
        place = None
    if place is None or not (wire.NAME.fullmatch(place.base) and wire.NAME.fullmatch(place.name)):
        raise ValueError(
            f"it has not the headers zeh-producer, {', '.join(names)}, which say which letter it "
            f"is: print it with zeh-spark dead-letters, or tail --headers"
        )
    if more := sorted(name for name in headers if not name.startswith(wire.RESERVED_HEADER)):
        raise ValueError(
            f"its header {more[0]!r} is not published: the event's are in data.row.headers"
        )
    return place


class _Parts:
    """Those of one letter, as they come."""

    def __init__(self, line: int, place: DeadLetterId, first: _Part) -> None:
        self._line = line
        self._place = place
        self._id = first.id
        self._count = first.parts
        self._seen: dict[int, int] = {}
        self._texts: dict[int, str] = {}
        self._head = b""

    def add(self, number: int, line: bytes, part: _Part) -> bool:
        """Whether that was the last one. One that comes again changes nothing. Raises Unreadable
        for another one in its place.
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
        if len(self._seen) == self._count:
            return None
        first = next(each for each in count(1) if each not in self._seen)
        return self._unreadable(
            f"part {first} is missing; if the feed's retention has removed it, leave the rest out"
        )

    def joined(self) -> DeadLetter:
        """As if the letter had been in one line; once. Raises Unreadable."""
        whole = "".join(self._texts.pop(each) for each in range(1, self._count + 1)).encode()
        if letter_id(whole) != self._id:
            raise self._unreadable(
                "the texts are not what they were: mend it whole, as zeh-spark dead-letters "
                "prints it"
            )
        head = msgspec.json.decode(self._head, type=dict[str, Raw])
        return DeadLetter(self._line, self._place, _encode({**head, "data": Raw(whole)}))

    def _unreadable(self, reason: str) -> Unreadable:
        return Unreadable(self._line, f"letter {self._id} in {self._count} parts: {reason}")
