"""The read API as OpenAPI: the one path of a feed. Pure."""

from __future__ import annotations

from zeh_spark.protocol import wire
from zeh_spark.publisher.openapi_parts import COUNT, TEXT, Schema, in_query, record, ref
from zeh_spark.publisher.openapi_problems import responses
from zeh_spark.publisher.read_requests import MAX_N, MAX_WAIT
from zeh_spark.store.feed import DEFAULT_HINT
from zeh_spark.store.interface import MAX_PARTITIONS

RULES = f"""
A feed has 1 to {MAX_PARTITIONS} stored partitions, numbered from 0. A reader works with any n of
its own: its partition v is made of the stored partitions p with p mod n = v, so each event is in
exactly one of its partitions. To learn how many there are, ask without n: `partition-count-missing`
tells `partitionCount`, and in the member `feed` which feed it is.

**The answer** is lines of JSON, each ended by one LF, in UTF-8 without BOM; an LF is the only end
of a line. A line with the member `cursor` is a *checkpoint*, one with `data` an *event*; ignore
lines that are neither, and members that are not described here. A checkpoint says that all events
of its partition before it, in this answer and in those that led to the cursor asked with, have been
delivered; keep it together with what you made of them. Events behind the last checkpoint of their
partition come again. Each asked partition gets at least one checkpoint. A partition's events come
in the feed's order; lines of different partitions may alternate. No line is longer than
{wire.MAX_LINE:,} bytes without its LF.

A body counts as whole only if its framing ended as it has to (last chunk, Content-Length, gzip's
end): the publisher reports an error in the middle by breaking the connection off. What came with a
checkpoint behind it is good even then.

**To go on**, ask with the last cursor of each partition. Cursors are opaque text without spaces;
they belong to the feed and to n. `{wire.FIRST}` starts before the first event, `{wire.LAST}` behind
the last one; both are answered with a real cursor, also where there is no event. The same request
brings the same bytes until more is committed.

**Stamps** are headers that the publisher makes; nobody can forge them, for header names that begin
`{wire.RESERVED_HEADER}` are refused when events are published. `zeh-producer`, `zeh-batch`: who
published the event, in which batch. `zeh-partition`: the stored partition, whatever n is.
`zeh-sequence`: the event's number among those of the same producer and stored partition, from 0,
without gaps, in the feed's order. `zeh-time`: when its batch was committed, in ms since 1970; it
never decreases in a feed. All but the first are decimal text. Producer, partition and sequence
together are a key of an event, in a feed that was never restored to an earlier state. Events that
older versions stored have zeh-partition and zeh-time only.

**Which feed it is.** `feed.id` is random, and the same under each address of the feed. After a
restore of the publisher's store, producers use sequence numbers again for other events; the
operator then begins an *epoch*. `feed.epochs` lists the epochs by `time`: an event belongs to the
last one whose `time` is at most its `zeh-time`. The epoch's id, producer, partition and sequence
together are a key of an event in every feed and after every restore. A copy of a store that goes on
beside the original gets a feed id of its own, for events that are published from then on. A feed
that tells no member `feed` has no id.
"""

PROBLEMS = (
    "partition-count-missing", "bad-partition-count", "cursors-missing", "partition-out-of-range",
    "malformed-cursor", "duplicate-parameter", "bad-page-size-hint", "bad-wait", "bad-cursorset",
    "bad-store-cursor", "cursorset-missing", "cursorset-unsupported", "bad-resume",
    "resume-with-cursors", "unknown-cursorset", "unknown-feed", "cursor-of-another-history",
    "cursor-gone", "bad-row", "restored-table", "store-failed", "store-busy", "not-known-yet",
)  # fmt: skip


def path() -> Schema:
    return {
        "parameters": [ref("feed", "parameters")],
        "get": {
            "tags": ["Reading"],
            "operationId": "read",
            "summary": "A page of events, and the cursors to go on from",
            "description": "Refused before the first byte, or not at all. Parameters that are not "
            "described here are ignored. HEAD is answered as GET, without a body, without waiting, "
            "and keeps no cursors.",
            "parameters": _parameters(),
            "responses": {"200": _page(), **responses(*PROBLEMS)},
        },
    }


def schemas() -> dict[str, Schema]:
    partition = {"type": "integer", "minimum": 0, "description": "the reader's, below its n"}
    headers = {"type": "object", "additionalProperties": TEXT}
    event = record(("headers",), partition=partition, headers=headers, data={})
    checkpoint = record(partition=partition, cursor={"type": "string", "pattern": "^[!-~]+$"})
    return {
        "Event": {
            **event,
            "description": "`data` is any JSON but null, byte for byte as it was published. "
            "`headers` is left out where none were asked for, or it has none of those.",
        },
        "Checkpoint": checkpoint,
        "Feed": _feed(),
        "Line": {"anyOf": [ref("Checkpoint"), ref("Event")]},
    }


def _feed() -> Schema:
    feed, epoch = "[0-9a-f]{16}", "[0-9a-f]{16}(~[0-9]{1,9})?"
    name = {"type": "string", "pattern": f"^{epoch}$"}
    epochs = {"type": "array", "minItems": 1, "items": record(id=name, time=COUNT)}
    return {
        **record(id={"type": "string", "pattern": f"^{feed}$"}, epochs=epochs),
        "description": "Which feed it is, and its epochs by `time`, the first one at 0. The id of "
        "a later epoch is that of the feed, `~` and a number.",
    }


def _parameters() -> list[Schema]:
    text = {"type": "string", "pattern": "^[ -~]+$"}
    cursors = {
        "type": "object",
        "patternProperties": {"^cursor(0|[1-9][0-9]{0,8})$": text},
        "additionalProperties": False,
    }
    listed = {"style": "form", "explode": False}
    return [
        in_query(
            "n",
            {"type": "integer", "minimum": 1, "maximum": MAX_N},
            "How many partitions the reader works with. Decimal digits only.",
            required=True,
        ),
        in_query(
            "cursorN",
            cursors,
            f"Parameters `cursor0`, `cursor1`, …: for each partition N below n that shall be read, "
            f"where from: a cursor that this feed gave with the same n, `{wire.FIRST}` or "
            f"`{wire.LAST}`. At least one, unless `resume` is given.",
            style="form",
            explode=True,
        ),
        in_query(
            "pagesizehint",
            {"type": "integer", "minimum": 0, "default": DEFAULT_HINT},
            "About how many events to answer with, over all partitions; somewhat more may come, "
            "and as few as there are. 0: checkpoints only.",
        ),
        in_query(
            "headers",
            {"type": "array", "items": TEXT},
            f"Names of the headers wanted, with commas between them; `{wire.ALL_HEADERS}`: all, "
            f"stamps included. None if it is left out.",
            **listed,
        ),
        in_query(
            "wait",
            {"type": "number", "minimum": 0, "default": 0},
            f"Where there is no event to answer with: for how many seconds to wait for one, like "
            f"10 or 0.5; at most {MAX_WAIT:g}, more is taken as that.",
        ),
        in_query(
            "cursorset",
            {"type": "string", "pattern": "^[ -~]{1,50}$"},
            "Keep the cursors that this request gives under this name, for this n; with `resume`, "
            "the name to take them from. Kept are the cursors asked with, not those answered: "
            "whoever crashes reads the last page again.",
        ),
        in_query(
            "resume",
            {"type": "array", "items": {"type": "integer", "minimum": 0}},
            "In place of cursorN: partitions, with commas between them, to read from what is kept "
            "for them under `cursorset` and the same n.",
            **listed,
        ),
        in_query(
            "store_cursor",
            {"const": "1"},
            "With `cursorset`, for readers that keep cursors without wanting events, together with "
            "pagesizehint=0. By itself it changes nothing.",
        ),
    ]


def _page() -> Schema:
    return {
        "description": "Lines, each a JSON document, see the tag Reading. With Accept-Encoding: "
        "gzip the body is packed.",
        "content": {wire.CONTENT_TYPE: {"schema": ref("Line")}},
    }
