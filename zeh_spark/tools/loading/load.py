"""Files into a feed: one load is one batch over all files, published whole or not at all.

Reading, chunking and staging are one stream, so that memory does not grow with the files. Every
error names the file, the line or row, and the reason, and nothing is published. A load that is
killed leaves invisible chunks, which the store deletes later.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import IO, BinaryIO, NamedTuple, cast

import msgspec
from msgspec import Raw

from zeh_spark.errors import StoreError
from zeh_spark.service.store.batches import Call, StoredReceipt
from zeh_spark.service.store.interface import Store
from zeh_spark.tools.loading import csv_rows
from zeh_spark.tools.loading.csv_rows import CsvFormat
from zeh_spark.tools.loading.one_batch import next_batch, publish
from zeh_spark.wire import upload_format, wire
from zeh_spark.wire.batch_uploader import BatchUploader
from zeh_spark.wire.partitioning import placed
from zeh_spark.wire.upload_format import CHUNK_EVENTS, Content

PRODUCER = "load"
"""The producer of what is loaded without a producer's name."""

INPUT_LINE = 16 << 20
"""Bytes of the longest input line that is read, far more than fits into a feed."""

_NDJSON = {"ndjson", "jsonl", "json"}
_BOM = b"\xef\xbb\xbf"
_INTEGER = re.compile(rb"-?[0-9]+")


class FileEvent(NamedTuple):
    """An event of a file, for its partition, else for that of its key, else for any partition."""

    line: int
    data: bytes
    key: str | None = None
    partition: int | None = None
    headers: dict[str, str] | None = None


class Envelope(msgspec.Struct, forbid_unknown_fields=True):
    """A line of `--envelope`."""

    data: Raw
    key: str | int | None = None
    partition: int | None = None
    headers: dict[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """A file to load, or a stream of NDJSON.

    Attributes:
        key: The column or field that chooses the partition.
        envelope: Whether each line has an event with its key, partition and headers.
    """

    name: str
    stream: IO[bytes] | None = None
    key: str | None = None
    envelope: bool = False
    csv: CsvFormat = CsvFormat()
    keeps_key: bool = False

    @property
    def kind(self) -> str:
        """The kind of the file: `ndjson`, `csv` or `parquet`. Raises StoreError for another."""
        if self.stream:
            return "ndjson"
        extension = self.name.lower().removesuffix(".gz").rpartition(".")[2]
        if extension in _NDJSON:
            return "ndjson"
        if extension == "csv" or self.name.lower().endswith(".parquet"):
            return extension
        raise _refused(
            f"{self.name}: unknown kind of file; known are .ndjson, .jsonl, .json and .csv, each "
            f"also with .gz, .parquet, and - for NDJSON from standard input"
        )


@dataclass(slots=True)
class Loaded:
    """What a load did, or has done so far.

    Attributes:
        bytes: Size of the events' lines, before compression.
    """

    events: int = 0
    bytes: int = 0
    receipt: StoredReceipt | None = None
    repeated: bool = False
    content: Content = Content()

    @property
    def dropped(self) -> int:
        """How many of the events were dropped.

        Events are dropped if the override `keepFirst` keeps others, with which the batch was
        published before.
        """
        same = not self.receipt or self.content.is_in(self.receipt)
        return 0 if same else self.content.events


def load(
    store: Store,
    feed: str,
    sources: Sequence[Source],
    progress: Callable[[int], object] = lambda size: None,
    call: Call | None = None,
) -> Loaded:
    """Publish all events of the sources as one batch.

    `progress` is told the bytes that were read since its last call. By default `call` is the next
    one of PRODUCER. After StoreError and Problem nothing was published. After OutcomeUnknownError
    that is not known.
    """
    loaded = Loaded()
    for source in sources:
        _check(source)
    which = call or next_batch(store, feed, PRODUCER)

    def fill(batch: BatchUploader) -> None:
        for source in sources:
            for line, data, key, partition, headers in events_of(source, progress):
                try:
                    where, rest = placed(
                        which.partition_count, data, key, partition, headers, source.keeps_key
                    )
                except ValueError as exc:
                    raise bad_line(source, line, exc) from None
                batch.add([rest], where)
                loaded.events += 1
            loaded.bytes = batch.size
        if not loaded.events:
            raise without_events(*(each.name for each in sources))

    loaded.receipt, new, loaded.content = publish(store, feed, which, fill)
    loaded.repeated = not new
    return loaded


def _check(source: Source) -> None:
    if source.envelope and (source.kind != "ndjson" or source.key):
        what = "a key of its own" if source.key else f"a {source.kind} file"
        raise _refused(
            f"{source.name}: an envelope is a line of NDJSON with its own key, not {what}"
        )
    if source.csv != CsvFormat() and source.kind != "csv":
        raise _refused(
            f"{source.name}: --delimiter, --null and --text are for CSV; load other files apart"
        )


def events_of(
    source: Source, progress: Callable[[int], object] = lambda size: None
) -> Iterator[FileEvent]:
    """Yield the events of a source. Raises StoreError, with its name, for what cannot be read."""
    try:
        with ExitStack() as files:
            raw = source.stream or files.enter_context(open(source.name, "rb"))
            told = 0
            for number, event in enumerate(_events(source, raw, files), 1):
                yield event
                if not number % CHUNK_EVENTS and raw.seekable():
                    position = raw.tell()
                    progress(max(0, position - told))
                    told = max(told, position)
    except (OSError, EOFError, zlib.error, ValueError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc)
        raise _refused(f"{source.name}: {reason}; nothing was published") from exc


def _events(source: Source, raw: IO[bytes], files: ExitStack) -> Iterator[FileEvent]:
    packed = not source.stream and source.name.lower().endswith(".gz")
    stream = files.enter_context(gzip.open(raw)) if packed else raw
    if source.kind == "ndjson":
        return ndjson(source, cast(IO[bytes], stream))
    if source.kind == "csv":
        found = csv_rows.rows(cast(BinaryIO, stream), source.key, source.csv)
    else:
        from zeh_spark.tools.loading import parquet_rows  # pyarrow is slow to import

        found = parquet_rows.rows(cast(BinaryIO, stream), source.key)
    return (FileEvent(*row) for row in found)


def ndjson(source: Source, stream: IO[bytes]) -> Iterator[FileEvent]:
    """Yield lines as events, except blank lines. Raises StoreError with the line's number."""
    parse = _enveloped if source.envelope else _keyed(source.key) if source.key else _bare
    number = 0
    while line := stream.readline(INPUT_LINE):
        number += 1
        if number == 1:
            line = line.removeprefix(_BOM)
        if line.isspace() or not line:
            continue
        try:
            if len(line) == INPUT_LINE:
                raise ValueError(f"the line is longer than {INPUT_LINE:,} bytes")
            yield parse(number, line)
        except (ValueError, msgspec.MsgspecError, RecursionError) as exc:
            raise bad_line(source, number, f"{exc}: {wire.excerpt(line.strip())}") from None


def _bare(number: int, line: bytes) -> FileEvent:
    return FileEvent(number, upload_format.validated_json(line))


def _enveloped(number: int, line: bytes) -> FileEvent:
    upload_format.validated_json(line)  # which also checks the bytes that the decoder skips
    given = msgspec.json.decode(line, type=Envelope)
    _refuse_repeated_names(line)
    key = None if given.key is None else str(given.key)
    data = upload_format.validated_json(bytes(given.data))
    return FileEvent(number, data, key, given.partition, given.headers)


def _refuse_repeated_names(line: bytes) -> None:
    """Raise ValueError if an envelope, or its headers, has a name twice: decoders keep the last."""
    members = json.loads(line, object_pairs_hook=list, parse_int=str, parse_float=str)
    for where, pairs in ("the envelope", members), ("headers", dict(members).get("headers")):
        names = [name for name, _ in pairs or ()]
        for name in {each for each in names if names.count(each) > 1}:
            raise ValueError(f"{where} has {name!r} {names.count(name)} times")


def _keyed(name: str) -> Callable[[int, bytes], FileEvent]:
    """Return a parser of lines whose field of that name is the key."""
    decode = msgspec.json.Decoder(dict[str, Raw]).decode

    def parse(number: int, line: bytes) -> FileEvent:
        data = upload_format.validated_json(line)
        if not data.startswith(b"{"):
            raise ValueError(f"it is no object, so it has no {name!r} for the key")
        key = decode(data).get(name)
        if key is None:
            raise ValueError(f"there is no field {name!r} for the key; null goes anywhere")
        return FileEvent(number, data, _key_text(bytes(key)))

    return parse


def _key_text(value: bytes) -> str | None:
    if value == b"null":
        return None
    if value.startswith(b'"'):
        return msgspec.json.decode(value, type=str)
    if _INTEGER.fullmatch(value):
        return value.decode()
    raise ValueError(f"the key is {value.decode()}; a key is text or an integer")


def without_events(*names: str) -> StoreError:
    return _refused(
        f"{', '.join(names)}: there are no events; nothing was published. Check the program that "
        f"writes the input"
    )


def bad_line(source: Source, number: int, exc: Exception | str | None) -> StoreError:
    where = "line" if source.kind == "ndjson" else "row"
    return _refused(f"{source.name}, {where} {number}: {exc}; nothing was published")


def _refused(problem: str) -> StoreError:
    return StoreError(problem, anchor="the-input-cannot-be-loaded")
