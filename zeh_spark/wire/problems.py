"""All problems that a publisher answers with, as data: name, status, members, what they mean.

A problem is an RFC 9457 document. The publisher and its stores raise problems of these types
(`store.problems`), clients compare their names, and the OpenAPI document describes them
(`app.openapi`).

Rule for editors: names, statuses and members are part of the API. A new problem is declared here
before it can be raised. `says` is for people who write clients: what happened, and what a client
does then. Pure; runs in clients and in the publisher.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from zeh_spark.errors import REFUSAL_CODES

CONTENT_TYPE = "application/problem+json"

URN = "urn:zeroeventhub:problem:"
"""What the `type` of each problem document of our publisher begins with."""

SERVER = "zeh-spark"
"""What our publisher calls itself at its root (`GET /`)."""

REMEDY = "remedy"
"""The member that says in words what makes the publisher accept the batch."""

Schema = dict[str, Any]
"""A JSON schema."""


@dataclass(frozen=True, slots=True, eq=False)
class ProblemType:
    """A kind of problem. There is one object for each kind.

    Args:
        name: the end of the document's `type`, after URN.
        says: what happened, and what a client does then.
        members: a JSON schema for each member, besides those that every document has.
    """

    name: str
    status: int
    says: str
    members: Mapping[str, Schema] = field(default_factory=dict)
    optional: Set[str] = frozenset()

    @property
    def type(self) -> str:
        return URN + self.name

    @property
    def title(self) -> str:
        return self.name.replace("-", " ").capitalize()

    @property
    def is_transient(self) -> bool:
        """Whether the same call may have another answer a little later."""
        return is_transient(self.status, self.name)

    @property
    def has_retry_after(self) -> bool:
        """Whether the publisher's answer has the header Retry-After."""
        return self.status in {429, 503}

    def check(self, members: Set[str]) -> None:
        """Raise TypeError for a member that is not declared, or that is missing."""
        if unknown := members - self.members.keys():
            raise TypeError(f"problem {self.name!r} has no member {sorted(unknown)[0]!r}")
        if missing := self.members.keys() - self.optional - members:
            raise TypeError(f"problem {self.name!r} needs the member {sorted(missing)[0]!r}")


_LASTING = {"bad-row", "too-many-cursor-sets", "too-many-producers"}
"""The problems with a status of a fault of the server that do not pass by themselves."""


def is_transient(status: int, name: str | None = None) -> bool:
    """Return whether the same call may have another answer a little later."""
    return name not in _LASTING and (status in {408, 425, 429} or status >= 500)


def name_in(document: Mapping[str, object]) -> str | None:
    """Return the name of the problem in a document of our publisher; None for any other document.

    The name may be one of a newer version, which is not declared here.
    """
    kind = document.get("type")
    if isinstance(kind, str) and kind.startswith(URN):
        return kind.removeprefix(URN)
    return None


PROBLEMS: dict[str, ProblemType] = {}
"""All types by name."""


def anchor(name: str | None) -> str | None:
    """Return a problem's place in the page of errors; None if this version does not know it."""
    return name if name in PROBLEMS else None


def _problem(
    name: str, status: int, says: str, *, optional: Set[str] = frozenset(), **members: Schema
) -> ProblemType:
    declared = ProblemType(name, status, says, members, optional)
    if PROBLEMS.setdefault(name, declared) is not declared:
        raise ValueError(f"problem {name!r} is declared twice")
    REFUSAL_CODES[name] = f"ZEH_{name.upper().replace('-', '_')}"
    return declared


def _bad(
    name: str, says: str, *, optional: Set[str] = frozenset(), **members: Schema
) -> ProblemType:
    return _problem(name, 400, f"{says} {_FIX}", optional=optional, **members)


def _refusal(name: str, status: int, says: str, **members: Schema) -> ProblemType:
    """Declare a refusal of a batch, which has the batch and the remedy as members."""
    return _problem(name, status, says, optional=frozenset(), **_BATCH, **members)


def _record(**members: Schema) -> Schema:
    return {"type": "object", "properties": members, "required": list(members)}


_AGAIN = "Send the same call again."
_OVER = "Begin the batch again: read n, make its uploads under new attempts or a new run, commit."
_FIX = "A mistake of the client; repeating does not help."

_TEXT: Schema = {"type": "string"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_NUMBER: Schema = {"type": "integer"}
_TEXT_OR_NULL: Schema = {"type": ["string", "null"]}
_LAST_BATCH: Schema = {"type": "integer", "minimum": -1, "description": "-1: there is none"}
_DIGEST: Schema = {"type": "string", "pattern": "^[0-9a-f]{32}$"}
_CONTENT = _record(events=_COUNT, digest=_DIGEST)
_UPLOADS = _record(uploads=_COUNT, events=_COUNT)
_FEED: Schema = {"$ref": "#/components/schemas/Feed"}
_BATCH = {"producer": _TEXT, "incarnation": _TEXT, "run": _TEXT, "batch": _COUNT, REMEDY: _TEXT}

# Of any call.

UNKNOWN_FEED = _problem("unknown-feed", 404, "There is no such feed, or no such address at all.")
TABLE_FEED = _problem(
    "table-feed",
    404,
    "The feed is a table of its owner's service, and can only be read: it takes no batches, and "
    "has no producers and no receipts.",
    remedy=_TEXT,
)
UNAUTHORIZED = _problem(
    "unauthorized",
    401,
    "The request has no token, or one that is not valid: it is unknown, expired or revoked. Make a "
    "token with zeh-spark token create, and send it as Authorization: Bearer TOKEN.",
)
FORBIDDEN = _problem(
    "forbidden",
    403,
    "The token may not do that. The answer does not say whether the feed exists. Ask the "
    "publisher's operator for a token with the right that the detail names.",
)
FOREIGN_ORIGIN = _problem(
    "foreign-origin",
    403,
    "A browser sent the request for a page of another origin, or under a host name that the "
    "publisher does not know, which protects publishers without tokens from web pages. Use the "
    "publisher's own address; behind a proxy, name its host with serve --allowed-host.",
)
BAD_HTTP = _problem("bad-http", 400, f"The request is not HTTP, or does not name one host. {_FIX}")
HEAD_TOO_SLOW = _problem(
    "head-too-slow", 408, f"The head of the request did not come for a while. {_AGAIN}"
)
URL_TOO_LONG = _problem("url-too-long", 414, f"The URL is too long. {_FIX}")
HEADERS_TOO_LARGE = _problem(
    "headers-too-large", 431, f"The headers of the request are too large. {_FIX}"
)
UNSUPPORTED_MEDIA_TYPE = _problem(
    "unsupported-media-type", 415, f"The body is of a type that the address does not take. {_FIX}"
)
METHOD_NOT_ALLOWED = _problem("method-not-allowed", 405, f"The address has no such method. {_FIX}")
TOO_MANY_CONNECTIONS = _problem(
    "too-many-connections", 503, f"The publisher has too many connections. {_AGAIN}"
)
STORE_BUSY = _problem("store-busy", 503, f"Another transaction holds the lock. {_AGAIN}")
STORE_FAILED = _problem(
    "store-failed", 500, f"The store failed; the publisher's log says why. {_AGAIN}"
)
RESTORED_TABLE = _problem(
    "restored-table",
    503,
    f"The feed's table was restored, and its owner has to put it in order. {_AGAIN}",
)
BAD_ROW = _problem(
    "bad-row",
    500,
    "The next row of the feed's table cannot be an event. Stop: its owner has to repair it first.",
    partition=_COUNT,
    id={"type": ["integer", "string"]},
)
NOT_KNOWN_YET = _problem(
    "not-known-yet",
    503,
    f"The store failed while it committed: whether the call took effect is not known yet. "
    f"{_AGAIN} The next answer says whether it did.",
)
DUPLICATE_PARAMETER = _bad("duplicate-parameter", "A parameter is given twice.", parameter=_TEXT)

# Of reading.

PARTITION_COUNT_MISSING = _bad(
    "partition-count-missing",
    "n is missing.",
    partitionCount=_COUNT,
    feed=_FEED,
    optional={"feed"},
)
BAD_PARTITION_COUNT = _bad(
    "bad-partition-count",
    "n is no allowed number.",
    partitionCount=_COUNT,
    maximum=_COUNT,
    feed=_FEED,
    optional={"feed"},
)
PARTITION_OUT_OF_RANGE = _bad(
    "partition-out-of-range", "A cursorN has an N of n or more.", partition=_COUNT, n=_COUNT
)
MALFORMED_CURSOR = _bad(
    "malformed-cursor", "A cursor has no form that this feed gives.", partition=_COUNT, cursor=_TEXT
)
CURSORS_MISSING = _bad("cursors-missing", "Neither a cursorN nor resume is given.")
BAD_PAGE_SIZE_HINT = _bad("bad-page-size-hint", "pagesizehint is no allowed number.")
BAD_HEADERS = _bad("bad-headers", "headers has too many names, or one that is too long.")
BAD_WAIT = _bad("bad-wait", "wait is no allowed number.")
BAD_CURSORSET = _bad("bad-cursorset", "cursorset is no allowed name.")
TOO_MANY_CURSORS = _bad(
    "too-many-cursors",
    "The request has more cursors than one that names a cursorset may have; send them in parts.",
    maximum=_COUNT,
)
BAD_CONSUMER = _bad("bad-consumer", "ZEH-Consumer is no allowed identity.")
BAD_STORE_CURSOR = _bad("bad-store-cursor", "store_cursor is not 1.")
CURSORSET_MISSING = _bad("cursorset-missing", "resume or store_cursor is given without cursorset.")
CURSORSET_UNSUPPORTED = _bad("cursorset-unsupported", "This feed keeps no cursors for readers.")
BAD_RESUME = _bad("bad-resume", "resume lists no different partitions below n.", n=_COUNT)
RESUME_WITH_CURSORS = _bad("resume-with-cursors", "resume and a cursorN are given.")
UNKNOWN_CURSORSET = _bad(
    "unknown-cursorset",
    "Nothing is kept under this cursorset, n and partition.",
    cursorset=_TEXT,
    partition=_COUNT,
)
CURSORSET_TAKEN = _problem(
    "cursorset-taken",
    409,
    "The cursorset is bound to another consumer. Choose another name; an operator may free this "
    "one.",
    cursorset=_TEXT,
    consumer={**_TEXT, "description": "the one to which the name is bound"},
    given={**_TEXT, "description": "the one that asks; empty if it tells no identity"},
)
CURSORSET_N = _problem(
    "cursorset-n",
    409,
    "The cursorset keeps positions for another n, and a reader that tells no identity does not "
    "change it. Use the n that is kept, or another name.",
    cursorset=_TEXT,
    kept={**_COUNT, "description": "the n for which positions are kept"},
    n={**_COUNT, "description": "the n of the request"},
)
TOO_MANY_CURSOR_SETS = _problem(
    "too-many-cursor-sets",
    507,
    "The cursorset is new, and the client has begun as many as it may have. Stop: use a name that "
    "is there, or ask the publisher's operator to delete some, or to raise the limit.",
    cursorset=_TEXT,
    maximum=_COUNT,
)
CURSOR_OF_ANOTHER_HISTORY = _problem(
    "cursor-of-another-history",
    409,
    "The cursor is of another feed, or of a history that a restore undid: continuing from it could "
    "skip events. Start from _first, or from a cursor that this feed gave.",
    partition=_COUNT,
    cursor=_TEXT,
)
CURSOR_GONE = _problem(
    "cursor-gone",
    410,
    "Events after the cursor were removed before they were read, because of the feed's retention. "
    "What is left begins after the cursor `oldest`. `lost` has that cursor for each asked "
    "partition of which it is known that it lost events.",
    partition=_COUNT,
    cursor=_TEXT,
    oldest=_TEXT,
    optional={"lost"},
    lost={"type": "object", "additionalProperties": _TEXT},
)
CURSOR_AHEAD = _problem(
    "cursor-ahead",
    503,
    "The cursor is after the feed's newest chunk: this publisher serves a copy that lags, or its "
    f"store was restored. {_AGAIN} If it stays so, it was restored.",
    partition=_COUNT,
    cursor=_TEXT,
    head=_TEXT,
)
REPLICA_BEHIND = _problem(
    "replica-behind",
    503,
    "The publisher serves a replica, which has not come to the cursor or the time, or has it "
    f"otherwise until it follows its primary again. {_AGAIN} If it stays so, ask a publisher of "
    "the primary: only that one knows whether the cursor is of the feed.",
    optional={"partition", "cursor"},
    partition=_COUNT,
    cursor=_TEXT,
)
BAD_TIME = _bad(
    "bad-time",
    "time is no allowed number, or is ahead of the publisher's clock.",
    now={**_COUNT, "description": "the publisher's clock, in ms since 1970"},
    optional={"now"},
)
NO_COMMIT_TIMES = _problem(
    "no-commit-times",
    404,
    "The feed keeps no times of commits, so it cannot tell where it was at a time.",
)
BAD_PLAN = _bad("bad-plan", "The body is no request for a plan; the detail says why.")
BAD_RANGES = _bad("bad-ranges", "The body is no request for chunks; the detail says why.")
NO_DIRECT_READS = _problem(
    "no-direct-reads", 404, "The feed has no chunks, so it can only be read page by page."
)
READS_BUSY = _problem(
    "reads-busy",
    503,
    f"Too many requests at a time, or too many bytes of answers that wait for clients. {_AGAIN}",
)

# Of calls of the publish API: their form.

BAD_PRODUCER = _bad("bad-producer", "The producer's name is not allowed.", producer=_TEXT)
BAD_UPLOAD_NAME = _bad("bad-upload-name", "The upload's name is not allowed.")
BAD_PARAMETER = _bad("bad-parameter", "A parameter's value is not allowed.", parameter=_TEXT)
PARAMETER_MISSING = _bad(
    "parameter-missing", "A parameter that is needed is missing.", parameter=_TEXT
)
UNKNOWN_PARAMETER = _bad(
    "unknown-parameter", "There is no such parameter in this call.", parameter=_TEXT
)
BAD_COMMIT = _bad("bad-commit", "The body is no commit; the detail says why.")
BODY_INCOMPLETE = _bad("body-incomplete", "The body is shorter or longer than its Content-Length.")
BODY_TOO_SLOW = _problem("body-too-slow", 408, f"The body came too slowly. {_AGAIN}")
NO_ROOM_FOR_BODIES = _problem(
    "no-room-for-bodies",
    507,
    f"The publisher's temporary directory cannot take the body: it is full, or not there. {_AGAIN}",
)
STORE_FULL = _problem(
    "store-full", 507, f"The disk of the publisher's store is nearly full. {_AGAIN}"
)
LENGTH_REQUIRED = _problem("length-required", 411, f"Content-Length is missing. {_FIX}")
BODY_TOO_LARGE = _problem(
    "body-too-large", 413, "The body is too large; send less at a time.", maximum=_COUNT
)
BUSY = _problem("busy", 429, f"Too many bodies at a time. {_AGAIN}")
DIGEST_MISMATCH = _problem(
    "digest-mismatch",
    422,
    "The body does not have the SHA-256 of its Content-Digest. Send it again a few times.",
)
INVALID_UPLOAD = _problem(
    "invalid-upload",
    422,
    f"The body breaks the rules for uploads. {_FIX} Chunks, and lines in a chunk, are counted "
    f"from 0.",
    chunk=_COUNT,
    line=_COUNT,
    optional={"chunk", "line"},
)

# Of the decision about a batch; the cases are those of the OpenAPI document.

UNKNOWN_BATCH = _problem(
    "unknown-batch",
    404,
    "The batch is not committed, and nobody is committing it now.",
    producer=_TEXT,
    incarnation={**_TEXT_OR_NULL, "description": "the one asked for"},
    batch=_COUNT,
    partitionCount=_COUNT,
    feedId={"type": "string", "description": "random, the feed's for ever"},
)
PRODUCER_DELETED = _refusal(
    "producer-deleted",
    410,
    "Case 1. The producer was deleted, or has expired because it was idle. Publish under another "
    "producer.",
)
INCARNATION_CHANGED = _refusal(
    "incarnation-changed",
    409,
    "Case 2. Find out which of the two is to continue; an operator may set the option.",
    current=_record(incarnation=_TEXT, lastBatch=_LAST_BATCH),
    option=_record(replaceIncarnation=_TEXT),
)
FENCED = _refusal(
    "fenced",
    403,
    "Case 3. Another start of the same writer has taken over: stop this one.",
    current=_record(run=_TEXT, level=_COUNT, lastBatch=_LAST_BATCH),
)
BATCH_EXPIRED = _refusal(
    "batch-expired",
    410,
    "Case 4a. The batch can be neither confirmed nor denied: stop, and ask an operator.",
)
DIGEST_VERSION = _refusal(
    "digest-version",
    409,
    "Cases 4b, 7. Repeat the batch with a client that declares the expected version.",
    expected=_record(digestVersion=_NUMBER),
    given=_record(digestVersion=_NUMBER),
)
STARTING_SEQUENCE = _refusal(
    "starting-sequence",
    409,
    "Case 6b. The producer began with other numbers: say these, or publish under another name.",
    current=_record(first=_NUMBER, next=_NUMBER),
)
BATCH_CONFLICT = _refusal(
    "batch-conflict",
    409,
    "Case 4f. Stop: the batch came out differently, or somebody else uses the producer. An "
    "operator may set the option, which keeps what is published and drops this batch.",
    published=_CONTENT,
    given=_CONTENT,
    option=_record(keepFirst=_TEXT),
)
NUMBER_TAKEN = _refusal(
    "number-taken",
    409,
    "Case 4d. Somebody else published other events at the same time: publish these as the next "
    "batch, and give each program a producer of its own.",
    published=_CONTENT,
    given=_CONTENT,
)
BATCH_GAP = _refusal(
    "batch-gap",
    409,
    "Case 5. First publish the batches between; or an operator sets the option, which leaves them "
    "out.",
    current=_record(incarnation=_TEXT_OR_NULL, lastBatch=_LAST_BATCH),
    option=_record(acceptGap=_TEXT),
)
LAYOUT_CHANGED = _refusal("layout-changed", 409, f"Case 6. {_OVER}", partitionCount=_COUNT)
UPLOAD_MISSING = _refusal(
    "upload-missing",
    409,
    f"Case 8. Another number of uploads or events is staged than the commit names. {_OVER}",
    task=_COUNT,
    expected=_UPLOADS,
    found=_UPLOADS,
)
CONTENT_MISMATCH = _refusal(
    "content-mismatch",
    422,
    f"Case 9. The staged uploads do not have the content that the commit declares: a client counts "
    f"wrongly, or something changes bodies. Repeat the batch with new uploads; if that does not "
    f"help: {_FIX}",
    given=_CONTENT,
    found=_CONTENT,
)
UPLOAD_CONFLICT = _refusal(
    "upload-conflict",
    409,
    "An upload of this name is staged with other bytes. Take another attempt number.",
)
TOO_MANY_CHUNKS = _refusal(
    "too-many-chunks",
    413,
    "The batch has more chunks than a commit may have. Nothing of it was published: release its "
    "uploads, and begin it again in larger chunks or as several batches.",
    chunks=_COUNT,
    maximum=_COUNT,
)
TOO_MANY_PRODUCERS = _refusal(
    "too-many-producers",
    507,
    "Case 5b. The producer is new, and the client has begun as many producers as it may have. "
    "Stop: publish under a name that is there, or ask the publisher's operator to delete "
    "producers, or to raise the limit.",
    maximum=_COUNT,
)
QUOTA_EXCEEDED = _refusal(
    "quota-exceeded",
    507,
    f"The producer has too many bytes staged that are not committed. {_AGAIN} If it stays so, "
    f"release uploads or make smaller batches.",
    quota=_COUNT,
    staged=_COUNT,
)

OVERTAKEN: frozenset[str] = frozenset(
    each.name
    for each in (
        BATCH_EXPIRED, BATCH_GAP, FENCED, INCARNATION_CHANGED, NUMBER_TAKEN, PRODUCER_DELETED,
    )
)  # fmt: skip
"""The refusals by which the publisher shows that it knows more of a producer than its program."""
