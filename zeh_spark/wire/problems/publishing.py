"""Problems of the publish API: the form of its calls, and the decision about a batch.

The cases are those of the OpenAPI document.
"""

from __future__ import annotations

from zeh_spark.wire.problems.problem_declarations import (
    AGAIN,
    COUNT,
    FIX,
    TEXT,
    declare,
    declare_bad,
    declare_refusal,
    record,
)

_OVER = "Begin the batch again: read n, make its uploads under new attempts or a new run, commit."

_NUMBER = {"type": "integer"}
_TEXT_OR_NULL = {"type": ["string", "null"]}
_LAST_BATCH = {"type": "integer", "minimum": -1, "description": "-1: there is none"}
_DIGEST = {"type": "string", "pattern": "^[0-9a-f]{32}$"}
_CONTENT = record(events=COUNT, digest=_DIGEST)
_UPLOADS = record(uploads=COUNT, events=COUNT)

# The form of calls.

BAD_PRODUCER = declare_bad("bad-producer", "The producer's name is not allowed.", producer=TEXT)
BAD_UPLOAD_NAME = declare_bad("bad-upload-name", "The upload's name is not allowed.")
BAD_PARAMETER = declare_bad("bad-parameter", "A parameter's value is not allowed.", parameter=TEXT)
PARAMETER_MISSING = declare_bad(
    "parameter-missing", "A parameter that is needed is missing.", parameter=TEXT
)
UNKNOWN_PARAMETER = declare_bad(
    "unknown-parameter", "There is no such parameter in this call.", parameter=TEXT
)
BAD_COMMIT = declare_bad("bad-commit", "The body is no commit; the detail says why.")
BODY_INCOMPLETE = declare_bad(
    "body-incomplete", "The body is shorter or longer than its Content-Length."
)
BODY_TOO_SLOW = declare("body-too-slow", 408, f"The body came too slowly. {AGAIN}")
NO_ROOM_FOR_BODIES = declare(
    "no-room-for-bodies",
    507,
    f"The publisher's temporary directory cannot take the body: it is full, or not there. {AGAIN}",
)
STORE_FULL = declare(
    "store-full", 507, f"The disk of the publisher's store is nearly full. {AGAIN}"
)
LENGTH_REQUIRED = declare("length-required", 411, f"Content-Length is missing. {FIX}")
BODY_TOO_LARGE = declare(
    "body-too-large", 413, "The body is too large; send less at a time.", maximum=COUNT
)
BUSY = declare("busy", 429, f"Too many bodies at a time. {AGAIN}")
DIGEST_MISMATCH = declare(
    "digest-mismatch",
    422,
    "The body does not have the SHA-256 of its Content-Digest. Send it again a few times.",
)
INVALID_UPLOAD = declare(
    "invalid-upload",
    422,
    f"The body breaks the rules for uploads. {FIX} Chunks, and lines in a chunk, are counted "
    f"from 0.",
    chunk=COUNT,
    line=COUNT,
    optional={"chunk", "line"},
)

# The decision about a batch.

UNKNOWN_BATCH = declare(
    "unknown-batch",
    404,
    "The batch is not committed, and nobody is committing it now.",
    producer=TEXT,
    incarnation={**_TEXT_OR_NULL, "description": "the one asked for"},
    batch=COUNT,
    partitionCount=COUNT,
    feedId={"type": "string", "description": "random, the feed's for ever"},
    schemaVersion={**COUNT, "description": "0 for a feed without a schema"},
)
PRODUCER_DELETED = declare_refusal(
    "producer-deleted",
    410,
    "Case 1. The producer was deleted, or has expired because it was idle. Publish under another "
    "producer.",
)
INCARNATION_CHANGED = declare_refusal(
    "incarnation-changed",
    409,
    "Case 2. Find out which of the two is to continue; an operator may set the option.",
    current=record(incarnation=TEXT, lastBatch=_LAST_BATCH),
    option=record(replaceIncarnation=TEXT),
)
FENCED = declare_refusal(
    "fenced",
    403,
    "Case 3. Another start of the same writer has taken over: stop this one.",
    current=record(run=TEXT, level=COUNT, lastBatch=_LAST_BATCH),
)
BATCH_EXPIRED = declare_refusal(
    "batch-expired",
    410,
    "Case 4a. The batch can be neither confirmed nor denied: stop, and ask an operator.",
)
DIGEST_VERSION = declare_refusal(
    "digest-version",
    409,
    "Cases 4b, 7. Repeat the batch with a client that declares the expected version.",
    expected=record(digestVersion=_NUMBER),
    given=record(digestVersion=_NUMBER),
)
STARTING_SEQUENCE = declare_refusal(
    "starting-sequence",
    409,
    "Case 6b. The producer began with other numbers: say these, or publish under another name.",
    current=record(first=_NUMBER, next=_NUMBER),
)
BATCH_CONFLICT = declare_refusal(
    "batch-conflict",
    409,
    "Case 4f. Stop: the batch came out differently, or somebody else uses the producer. An "
    "operator may set the option, which keeps what is published and drops this batch.",
    published=_CONTENT,
    given=_CONTENT,
    option=record(keepFirst=TEXT),
)
NUMBER_TAKEN = declare_refusal(
    "number-taken",
    409,
    "Case 4d. Somebody else published other events at the same time: publish these as the next "
    "batch, and give each program a producer of its own.",
    published=_CONTENT,
    given=_CONTENT,
)
BATCH_GAP = declare_refusal(
    "batch-gap",
    409,
    "Case 5. First publish the batches between; or an operator sets the option, which leaves them "
    "out.",
    current=record(incarnation=_TEXT_OR_NULL, lastBatch=_LAST_BATCH),
    option=record(acceptGap=TEXT),
)
LAYOUT_CHANGED = declare_refusal("layout-changed", 409, f"Case 6. {_OVER}", partitionCount=COUNT)
UPLOAD_MISSING = declare_refusal(
    "upload-missing",
    409,
    f"Case 8. Another number of uploads or events is staged than the commit names. {_OVER}",
    task=COUNT,
    expected=_UPLOADS,
    found=_UPLOADS,
)
CONTENT_MISMATCH = declare_refusal(
    "content-mismatch",
    422,
    f"Case 9. The staged uploads do not have the content that the commit declares: a client counts "
    f"wrongly, or something changes bodies. Repeat the batch with new uploads; if that does not "
    f"help: {FIX}",
    given=_CONTENT,
    found=_CONTENT,
)
SCHEMA_CHANGED = declare_refusal(
    "schema-changed",
    409,
    f"Case 10. The feed's schema was changed after events of the batch had been uploaded. {_OVER}",
    schemaVersion=COUNT,
)
WRONG_EVENTS = declare_refusal(
    "wrong-events",
    422,
    "Events of the upload break the feed's schema, and nothing of it was kept. `events` has the "
    "first ones: chunk and line in it, both from 0, and where (a JSON pointer) and why their data "
    "breaks it. Repair or leave out these events.",
    schemaVersion=COUNT,
    events={
        "type": "array",
        "items": record(chunk=COUNT, line=COUNT, partition=COUNT, path=TEXT, reason=TEXT),
    },
)
UPLOAD_CONFLICT = declare_refusal(
    "upload-conflict",
    409,
    "An upload of this name is staged with other bytes. Take another attempt number.",
)
TOO_MANY_CHUNKS = declare_refusal(
    "too-many-chunks",
    413,
    "The batch has more chunks than a commit may have. Nothing of it was published: release its "
    "uploads, and begin it again in larger chunks or as several batches.",
    chunks=COUNT,
    maximum=COUNT,
)
TOO_MANY_PRODUCERS = declare_refusal(
    "too-many-producers",
    507,
    "Case 5b. The producer is new, and the client has begun as many producers as it may have. "
    "Stop: publish under a name that is there, or ask the publisher's operator to delete "
    "producers, or to raise the limit.",
    maximum=COUNT,
)
QUOTA_EXCEEDED = declare_refusal(
    "quota-exceeded",
    507,
    f"The producer has too many bytes staged that are not committed. {AGAIN} If it stays so, "
    f"release uploads or make smaller batches.",
    quota=COUNT,
    staged=COUNT,
)

OVERTAKEN: frozenset[str] = frozenset(
    each.name
    for each in (
        BATCH_EXPIRED, BATCH_GAP, FENCED, INCARNATION_CHANGED, NUMBER_TAKEN, PRODUCER_DELETED,
    )
)  # fmt: skip
"""The refusals by which the publisher shows that it knows more of a producer than its program."""
