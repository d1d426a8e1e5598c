"""Offsets: what Spark's checkpoint keeps of a feed.

Rule for editors: Spark compares offsets as JSON text. So `to_json` is the only place that orders
keys, and an unchanged offset is returned as the object that came in. Cursors are opaque: they are
compared for equality, and never ordered.

    {"version": 3, "feed": URL or feedId, "id": id,
     "reader": id,                                                     if cursorSet was ever set
     "behind": {"more": …, "eventsBehind": …, "secondsBehind": …},     if only the offset can tell
     "partitionCount": n,                                              null while it is unknown
     "only": text,                                 if the batch has selected events alone (`only`)
     "stage": id, "batch": name, "segments": k,                        if batches are staged
     "startingTimestamp": ms,                             in the initial offset, if that is set
     "startingCursors": {"0": …, …},                                   after the initial offset
     "partitions": {"0": {"cursor": …,
                          "from": cursor,                           if events before it were lost
                          "events": …, "bytes": …, "digest": …}, …}}

The version says what the digests are, and that all partitions are read:

- 3: the sum of the hashes of a partition's lines (`hashes.sum_of_lines`), because a publisher may
  give the events between two checkpoints in another order when it is asked again.
- 2: batches which executors fetched. Behind `partitionCount` it has `"direct": {"version": 1,
  "columns": …}`: the version of the digests, and the fingerprint of the options that decide what
  rows hold. Its digests are those of plans (`wire.direct_reads`), and its bytes are those of
  the stored lines.
- 4: some of the n partitions are read (option `partitions`), those in `partitions`. It is as 2 if
  it has `direct`, else as 3. Rejected: a member of 2 and 3, which older versions would pass over.

`id` is the identity of the feed in the checkpoint (`FeedIdentity.id`): its own id; or `feed` again,
if the publisher told no id when the query began. The initial offset has none. `reader` is random,
made with the first offset that has one, and kept for the checkpoint's life: by it the
publisher tells two queries with one `cursorSet` apart. Rejected: `stage`, which only staged batches
have, and the query's id, which Spark does not tell a source. `behind` tells what the feed held
after the batch: on Spark 4.0 and 4.1, which show no more of a source in a query's progress, and if
a run ended without a proof of the end. It decides nothing. Events, bytes and digest describe what
lies between the previous offset and this one; a partition that did not move has neither events nor
digest. With `failOnDataLoss=false`, `from` is where they begin if what followed the previous cursor
was removed unread: a repeated batch, which has nothing but its offsets, begins there, too. Before
the partition count is known, `*` stands for all partitions. The offset after the initial one keeps
the cursors of the initial one: Spark does not write the initial offset to the checkpoint, and a
table has to know where its first batch begins.

Spark writes the files of a checkpoint, and this module refuses a format of theirs that it does not
know:

    metadata            {"id": …}
    offsets/<batch>     v1, a line of settings, then an offset for each source, or "-"
                        v2, a line of settings, then "<name of the source>:" before each

Runs on the driver; pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeGuard

import orjson
import xxhash

from zeh_spark.errors import CheckpointError
from zeh_spark.spark.source.options import SourceOptions
from zeh_spark.wire import direct_reads, wire
from zeh_spark.wire.feed_identity import FeedIdentity
from zeh_spark.wire.phrases import counted, in_ranges

DIRECT_VERSION, VERSION, SUBSET_VERSION = VERSIONS = 2, 3, 4
_LOG_VERSIONS = {"v1", "v2"}
_EVERY = "*"
_NAME = re.compile(r"[0-9A-Za-z-]+")
"""Of a stage or a batch: they become parts of a path below which files are read and deleted."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where a partition is, and what lies between its previous position and this one.

    Args:
        cursor: the last checkpoint that was read.
        events: the number of events since the previous position.
        bytes: the size of their lines.
        digest: the digest of their lines, by the offset's version; None without events.
        begun: the cursor after which they begin, if events before it were lost; None if they begin
            at the previous position.
    """

    cursor: str
    events: int = 0
    bytes: int = 0
    digest: str | None = None
    begun: str | None = None

    def unmoved(self) -> Position:
        """Return the position for a batch in which the partition does not move."""
        return Position(self.cursor)


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """Where a batch is staged: `<stagingLocation>/<stage>/<batch>/<0…segments-1>`.

    The batch's name ends with what `headers_tag` makes of the headers that its lines have.
    """

    stage: str
    batch: str
    segments: int

    def has(self, headers: Sequence[str]) -> bool:
        """Return whether its lines have these headers, and no others."""
        return self.batch.endswith(headers_tag(headers))


def headers_tag(headers: Sequence[str]) -> str:
    return f"-{xxhash.xxh3_64_intdigest(','.join(sorted(headers)).encode()):016x}"


@dataclass(frozen=True, slots=True)
class Offset:
    """Where a query is in a feed.

    Args:
        feed: the feed's name: the option `feedId`, or its URL.
        positions: by partition, for those that the query reads, in ascending order; empty while
            these are not known.
        partition_count: the number of partitions of the feed; None while it is not known.
        everywhere: the cursor of all partitions while these are not known.
        staged: where the batch that ends here is staged, if it is.
        started: in the first offset of a query, the cursors where it began, by partition.
        id: the feed's identity in the checkpoint; None in the initial offset.
        direct: the fingerprint of the options (`SourceOptions.fingerprint`), if executors fetched
            the batch; None if the driver did.
        only: which events the batch has (option `only`); None if all.
        reader: the checkpoint's identity as a consumer of a cursor set; None until it has one.
        since: the time at which the query starts, in ms since 1970, while its cursors are not
            known; None in an offset that Spark keeps.
        behind: what the feed held after the batch, for the query's progress.
    """

    feed: str
    positions: Mapping[int, Position]
    partition_count: int | None = None
    everywhere: str = wire.FIRST
    staged: StagedBatch | None = None
    started: Mapping[int, str] = field(default_factory=dict)
    id: str | None = None
    direct: str | None = None
    only: str | None = None
    reader: str | None = None
    since: int | None = None
    behind: Mapping[str, Any] | None = field(default=None, compare=False)

    @property
    def version(self) -> int:
        """The version of the offset's format."""
        if self.positions and len(self.positions) != self.partition_count:
            return SUBSET_VERSION
        return VERSION if self.direct is None else DIRECT_VERSION

    @property
    def cursors(self) -> dict[int, str]:
        """The cursors by partition; empty while these are not known."""
        return {partition: position.cursor for partition, position in self.positions.items()}

    def resolved(self, partition_count: int, options: SourceOptions) -> Offset:
        """Return the same offset for a known number of partitions."""
        chosen = options.chosen(partition_count)
        return replace(
            self,
            positions=self.positions or dict.fromkeys(chosen, Position(self.everywhere)),
            partition_count=partition_count,
            everywhere=wire.FIRST,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the offset as Spark keeps it. Equal offsets give equal JSON text."""
        partitions: dict[str, Any] = {
            str(partition): _position_json(position)
            for partition, position in self.positions.items()
        }
        document: dict[str, Any] = {"version": self.version, "feed": self.feed}
        if self.id is not None:
            document["id"] = self.id
        if self.reader is not None:
            document["reader"] = self.reader
        if self.behind is not None:
            document["behind"] = dict(self.behind)
        document["partitionCount"] = self.partition_count
        if self.direct is not None:
            document["direct"] = {"version": direct_reads.VERSION, "columns": self.direct}
        if self.only is not None:
            document["only"] = self.only
        if self.staged:
            document["stage"] = self.staged.stage
            document["batch"] = self.staged.batch
            document["segments"] = self.staged.segments
        if self.since is not None:
            document["startingTimestamp"] = self.since
        if self.started:
            document["startingCursors"] = wire.by_partition(self.started)
        document["partitions"] = partitions or {_EVERY: {"cursor": self.everywhere}}
        return document


def _position_json(position: Position) -> dict[str, Any]:
    document: dict[str, Any] = {"cursor": position.cursor}
    if position.begun is not None:
        document["from"] = position.begun
    document |= {"events": position.events, "bytes": position.bytes}
    if position.digest is not None:
        document["digest"] = position.digest
    return document


def initial(options: SourceOptions) -> Offset:
    """Return where a new query starts. It is the same on every call, and needs no network."""
    cursors = options.starting_cursors
    count = options.partition_count
    if isinstance(cursors, dict):
        count = count or (None if options.partitions else len(cursors))
        positions = {partition: Position(cursor) for partition, cursor in cursors.items()}
        return Offset(options.feed, positions, count)
    everywhere = wire.FIRST if cursors == "first" else wire.LAST
    offset = Offset(options.feed, {}, everywhere=everywhere, since=options.starting_timestamp)
    return offset.resolved(count, options) if count else offset


@dataclass(frozen=True, slots=True)
class Reached:
    """What an offset says to other modules.

    Args:
        feed: the feed's name: the option `feedId`, or its URL.
        positions: the cursors by partition, for those that the query reads.
        cursors: the same, by the text of its number; empty if all are at `_first`.
        started: for a query's first offset, the cursors where it began; None for all later ones.
        id: the feed's identity in the checkpoint; None in the initial offset.
    """

    feed: str
    positions: dict[int, str]
    cursors: dict[str, str]
    started: dict[str, str] | None
    id: str | None = None


def is_of_a_feed(document: object) -> TypeGuard[dict[str, Any]]:
    """Return whether an offset of a checkpoint is one of this source."""
    members = {"version", "feed", "partitionCount", "partitions"}
    return isinstance(document, dict) and document.keys() >= members


def reached(document: Mapping[str, Any]) -> Reached:
    """Return what an offset of a feed, as it is in a checkpoint, says to other modules.

    Raises CheckpointError if its format is another one.
    """
    check_version(document)
    partitions = document["partitions"].items()
    cursors = {number: position["cursor"] for number, position in partitions}
    started = document.get("startingCursors")
    began = None if started is None else _moved(started)
    positions = {int(each): cursor for each, cursor in cursors.items() if each != _EVERY}
    return Reached(document["feed"], positions, _moved(cursors), began, document.get("id"))


def _moved(cursors: dict[str, str]) -> dict[str, str]:
    return {} if set(cursors.values()) == {wire.FIRST} else cursors


def parse(document: Mapping[str, Any], options: SourceOptions) -> Offset:
    """Return an offset of the checkpoint, checked against the query's options.

    Raises CheckpointError if its format, feed or partition count is another one.
    """
    check_version(document)
    try:
        offset = _parsed(document)
        _check_canonical(offset, document)
    except (KeyError, TypeError, ValueError, AttributeError) as exc:
        raise CheckpointError(
            f"the checkpoint holds an offset that zeh-spark did not write ({exc!r}): {document!r}. "
            f"Use a new checkpointLocation",
            got=document,
            anchor="the-checkpoint-holds-an-offset-of-another-format",
        ) from exc
    _check_feed(offset, options)
    return offset


def check_version(document: Mapping[str, Any]) -> None:
    """Raise CheckpointError if an offset of the checkpoint has another format."""
    version = document.get("version")
    if version not in VERSIONS:
        raise CheckpointError(
            f"the checkpoint holds an offset of format {version!r}, this version of zeh-spark "
            f"reads formats {min(VERSIONS)} to {max(VERSIONS)}. Use the version that wrote it, or "
            f"a new checkpointLocation",
            expected=VERSION,
            got=version,
            anchor="the-checkpoint-holds-an-offset-of-another-format",
        )


def _parsed(document: Mapping[str, Any]) -> Offset:
    def text(name: str) -> str | None:
        return str(document[name]) if name in document else None

    partitions, count = dict(document["partitions"]), document["partitionCount"]
    everywhere = str(partitions.pop(_EVERY)["cursor"]) if _EVERY in partitions else wire.FIRST
    staged = None
    if "stage" in document:
        staged = StagedBatch(
            str(document["stage"]), str(document["batch"]), int(document["segments"])
        )
    return Offset(
        str(document["feed"]),
        {each: _parsed_position(partitions[str(each)]) for each in sorted(map(int, partitions))},
        None if count is None else int(count),
        everywhere,
        staged,
        {int(each): str(at) for each, at in document.get("startingCursors", {}).items()},
        text("id"),
        str(document["direct"]["columns"]) if "direct" in document else None,
        text("only"),
        text("reader"),
        int(document["startingTimestamp"]) if "startingTimestamp" in document else None,
        document.get("behind"),
    )


def _check_canonical(offset: Offset, document: Mapping[str, Any]) -> None:
    """Raise ValueError if the offset would not be written as it was read."""
    events = [position.events for position in offset.positions.values()]
    if offset.to_json() != document or any(each < 0 for each in events):
        raise ValueError("not as it was written")
    if offset.staged and (offset.staged.segments > 0) != any(events):
        raise ValueError("its segments do not fit its events")
    if offset.staged and not all(map(_NAME.fullmatch, (offset.staged.stage, offset.staged.batch))):
        raise ValueError("its stage or batch is no name, and would lead out of stagingLocation")


def _parsed_position(fields: Mapping[str, Any]) -> Position:
    return Position(
        str(fields["cursor"]),
        int(fields["events"]),
        int(fields["bytes"]),
        fields.get("digest"),
        str(fields["from"]) if "from" in fields else None,
    )


def _check_feed(offset: Offset, options: SourceOptions) -> None:
    if offset.feed != options.feed:
        raise CheckpointError(
            f"the checkpoint belongs to the feed {offset.feed!r}, the options name "
            f"{options.feed!r}. If it is the same feed at another address, add the option "
            f"feedId={offset.feed!r}; if not, use a new checkpointLocation",
            expected=offset.feed,
            got=options.feed,
            anchor="the-checkpoint-belongs-to-the-feed",
        )
    asked = options.partition_count
    if asked is not None and offset.partition_count not in {None, asked}:
        raise CheckpointError(
            f"the checkpoint has {counted(offset.partition_count or 0, 'partition')}, option "
            f"'partitionCount' says {asked}. Continue with "
            f"partitionCount={offset.partition_count}, or start with a new "
            f"checkpointLocation and 'startingCursors' (see docs/operate/recover.md)",
            expected=offset.partition_count,
            got=asked,
            anchor="the-checkpoint-has-other-partitions",
        )
    reads, count = [*offset.positions], offset.partition_count
    if count is not None and reads != [*options.chosen(count)]:
        given = in_ranges(options.partitions or ()) or "not set"
        raise CheckpointError(
            f"the checkpoint has the partitions {in_ranges(reads)} of {count}, and the option "
            f"'partitions' is {given}. Continue with partitions={in_ranges(reads)}; or, to split "
            f"or merge queries, start with a new checkpointLocation and the 'startingCursors' that "
            f"the command zeh-spark cursors prints",
            expected=reads,
            got=options.partitions,
            anchor="the-checkpoint-has-other-partitions",
        )


def check_identity(known: str | None, identity: FeedIdentity, url: object) -> None:
    """Refuse a publisher that serves another feed than the checkpoint's.

    A copy of a feed has an id of its own and is accepted: its epochs name the feed that it was
    copied from. `known` is the id in the checkpoint's offsets; None if it has only the initial one.
    Raises CheckpointError if it is another feed, or the publisher tells no id any more.
    """
    if known is None or identity.knows(known):
        return
    if identity.told:
        raise CheckpointError(
            f"the checkpoint belongs to the feed with the id {known!r}, but the publisher at {url} "
            f"now serves another feed, {identity.id!r}, whose cursors mean other events. Correct "
            f"the option 'url', or read the other feed with a new checkpointLocation",
            expected=known,
            got=identity.id,
            anchor="the-publisher-now-serves-another-feed",
        )
    raise CheckpointError(
        f"the checkpoint belongs to the feed with the id {known!r}, but the publisher at {url} "
        f"sends no id, so it is another publisher. Correct the option 'url', or use a new "
        f"checkpointLocation",
        expected=known,
        anchor="the-publisher-tells-no-id",
    )


def query_id(metadata: str) -> str:
    """Return the query's id. Raises ValueError for a text that Spark did not write."""
    document = orjson.loads(metadata)
    if not isinstance(document, dict) or "id" not in document:
        raise ValueError(f"no query's metadata: {metadata!r}")
    return str(document["id"])


def source_offsets(text: str) -> list[object]:
    """Return the offset of each source of a query after one batch.

    They are in the order of the sources: the parsed JSON of an offset, its text if it is not JSON,
    or None if the source has no offset yet. Raises ValueError if Spark did not write the text, or a
    future Spark did.
    """
    version, _, *lines = text.rstrip("\n").split("\n")
    if version not in _LOG_VERSIONS:
        raise ValueError(f"offsets in a format that is not known: {version!r}")
    return [_logged(line.partition(":")[2] if version == "v2" else line) for line in lines]


def _logged(line: str) -> object:
    if line == "-":
        return None
    try:
        return orjson.loads(line)
    except ValueError:
        return line
