"""Problems of the calls that read: pages, cursors, and direct reads."""

from __future__ import annotations

from zeh_spark.wire.problems.problem_declarations import AGAIN, COUNT, TEXT, declare, declare_bad

_FEED = {"$ref": "#/components/schemas/Feed"}

PARTITION_COUNT_MISSING = declare_bad(
    "partition-count-missing",
    "n is missing.",
    partitionCount=COUNT,
    feed=_FEED,
    optional={"feed"},
)
BAD_PARTITION_COUNT = declare_bad(
    "bad-partition-count",
    "n is no allowed number.",
    partitionCount=COUNT,
    maximum=COUNT,
    feed=_FEED,
    optional={"feed"},
)
PARTITION_OUT_OF_RANGE = declare_bad(
    "partition-out-of-range", "A cursorN has an N of n or more.", partition=COUNT, n=COUNT
)
MALFORMED_CURSOR = declare_bad(
    "malformed-cursor", "A cursor has no form that this feed gives.", partition=COUNT, cursor=TEXT
)
CURSORS_MISSING = declare_bad("cursors-missing", "Neither a cursorN nor resume is given.")
BAD_PAGE_SIZE_HINT = declare_bad("bad-page-size-hint", "pagesizehint is no allowed number.")
BAD_HEADERS = declare_bad("bad-headers", "headers has too many names, or one that is too long.")
BAD_ONLY = declare_bad(
    "bad-only", "only is not one header with some values, or the feed is not one of a store."
)
BAD_WAIT = declare_bad("bad-wait", "wait is no allowed number.")
BAD_CURSORSET = declare_bad("bad-cursorset", "cursorset is no allowed name.")
TOO_MANY_CURSORS = declare_bad(
    "too-many-cursors",
    "The request has more cursors than one that names a cursorset may have; send them in parts.",
    maximum=COUNT,
)
BAD_CONSUMER = declare_bad("bad-consumer", "ZEH-Consumer is no allowed identity.")
BAD_STORE_CURSOR = declare_bad("bad-store-cursor", "store_cursor is not 1.")
CURSORSET_MISSING = declare_bad(
    "cursorset-missing", "resume, store_cursor or await is given without cursorset."
)
CURSORSET_UNSUPPORTED = declare_bad(
    "cursorset-unsupported", "This feed keeps no cursors for readers."
)
BAD_RESUME = declare_bad("bad-resume", "resume lists no different partitions below n.", n=COUNT)
RESUME_WITH_CURSORS = declare_bad("resume-with-cursors", "resume and a cursorN are given.")
UNKNOWN_CURSORSET = declare_bad(
    "unknown-cursorset",
    "Nothing is kept under this cursorset, n and partition.",
    optional={"partition"},
    cursorset=TEXT,
    partition=COUNT,
)
NO_SCHEMA = declare("no-schema", 404, "The feed has no schema, or no such version of it.")
CURSORSET_TAKEN = declare(
    "cursorset-taken",
    409,
    "The cursorset is bound to another consumer. Choose another name; an operator may free this "
    "one.",
    cursorset=TEXT,
    consumer={**TEXT, "description": "the one to which the name is bound"},
    given={**TEXT, "description": "the one that asks; empty if it sends no identity"},
)
CURSORSET_N = declare(
    "cursorset-n",
    409,
    "The cursorset keeps positions for another n, and a reader without an identity does not "
    "change it. Use the n that is kept, or another name.",
    cursorset=TEXT,
    kept={**COUNT, "description": "the n for which positions are kept"},
    n={**COUNT, "description": "the n of the request"},
)
TOO_MANY_CURSOR_SETS = declare(
    "too-many-cursor-sets",
    507,
    "The cursorset is new, and the client has begun as many as it may have. Stop: use a name that "
    "is there, or ask the publisher's operator to delete some, or to raise the limit.",
    cursorset=TEXT,
    maximum=COUNT,
)
CURSOR_OF_ANOTHER_HISTORY = declare(
    "cursor-of-another-history",
    409,
    "The cursor is of another feed, or of a history that a restore undid: continuing from it could "
    "skip events. Start from _first, or from a cursor that this feed gave.",
    partition=COUNT,
    cursor=TEXT,
)
CURSOR_GONE = declare(
    "cursor-gone",
    410,
    "Events after the cursor were removed before they were read, because of the feed's retention. "
    "What is left begins after the cursor `oldest`. `lost` has that cursor for each asked "
    "partition of which it is known that it lost events.",
    partition=COUNT,
    cursor=TEXT,
    oldest=TEXT,
    optional={"lost"},
    lost={"type": "object", "additionalProperties": TEXT},
)
CURSOR_AHEAD = declare(
    "cursor-ahead",
    503,
    "The cursor is after the feed's newest chunk: this publisher serves a copy that lags, or its "
    f"store was restored. {AGAIN} If it stays so, it was restored.",
    partition=COUNT,
    cursor=TEXT,
    head=TEXT,
)
REPLICA_BEHIND = declare(
    "replica-behind",
    503,
    "The publisher serves a replica, which has not come to the cursor or the time, or has it "
    f"otherwise until it follows its primary again. {AGAIN} If it stays so, ask a publisher of "
    "the primary: only that one knows whether the cursor is of the feed.",
    optional={"partition", "cursor"},
    partition=COUNT,
    cursor=TEXT,
)
BAD_AWAIT = declare_bad("bad-await", "await is no cursor of a receipt.")
RECEIPT_OF_ANOTHER_HISTORY = declare(
    "receipt-of-another-history",
    409,
    "The receipt is of another feed, or a restore undid its batch: publish that again.",
)
RECEIPT_GONE = declare("receipt-gone", 410, "Retention removed the batch, so nobody can tell.")
BAD_TIME = declare_bad(
    "bad-time",
    "time is no allowed number, or is ahead of the publisher's clock.",
    now={**COUNT, "description": "the publisher's clock, in ms since 1970"},
    optional={"now"},
)
NO_COMMIT_TIMES = declare(
    "no-commit-times",
    404,
    "The feed keeps no times of commits, so it cannot tell where it was at a time.",
)
BAD_PLAN = declare_bad("bad-plan", "The body is no request for a plan; the detail says why.")
BAD_RANGES = declare_bad("bad-ranges", "The body is no request for chunks; the detail says why.")
NO_DIRECT_READS = declare(
    "no-direct-reads", 404, "The feed has no chunks, so it can only be read page by page."
)
READS_BUSY = declare(
    "reads-busy",
    503,
    f"Too many requests at a time, or too many bytes of answers that wait for clients. {AGAIN}",
)
