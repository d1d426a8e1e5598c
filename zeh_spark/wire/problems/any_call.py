"""Problems that any call may be answered with: access, HTTP itself, and the store."""

from __future__ import annotations

from zeh_spark.wire.problems.problem_declarations import (
    AGAIN,
    COUNT,
    FIX,
    TEXT,
    declare,
    declare_bad,
)

UNKNOWN_FEED = declare("unknown-feed", 404, "There is no such feed, or no such address at all.")
TABLE_FEED = declare(
    "table-feed",
    404,
    "The feed is a table of its owner's service, and can only be read: it takes no batches, and "
    "has no producers and no receipts.",
    remedy=TEXT,
)
UNAUTHORIZED = declare(
    "unauthorized",
    401,
    "The request has no token, or one that is not valid: it is unknown, expired or revoked. Make a "
    "token with zeh-spark token create, and send it as Authorization: Bearer TOKEN.",
)
FORBIDDEN = declare(
    "forbidden",
    403,
    "The token may not do that. The answer does not say whether the feed exists. Ask the "
    "publisher's operator for a token with the right that the detail names.",
)
FOREIGN_ORIGIN = declare(
    "foreign-origin",
    403,
    "A browser sent the request for a page of another origin, or under a host name that the "
    "publisher does not know, which protects publishers without tokens from web pages. Use the "
    "publisher's own address; behind a proxy, name its host with serve --allowed-host.",
)
BAD_HTTP = declare("bad-http", 400, f"The request is not HTTP, or does not name one host. {FIX}")
HEAD_TOO_SLOW = declare(
    "head-too-slow", 408, f"The head of the request did not come for a while. {AGAIN}"
)
URL_TOO_LONG = declare("url-too-long", 414, f"The URL is too long. {FIX}")
HEADERS_TOO_LARGE = declare(
    "headers-too-large", 431, f"The headers of the request are too large. {FIX}"
)
UNSUPPORTED_MEDIA_TYPE = declare(
    "unsupported-media-type", 415, f"The body is of a type that the address does not take. {FIX}"
)
METHOD_NOT_ALLOWED = declare("method-not-allowed", 405, f"The address has no such method. {FIX}")
TOO_MANY_CONNECTIONS = declare(
    "too-many-connections", 503, f"The publisher has too many connections. {AGAIN}"
)
STORE_BUSY = declare("store-busy", 503, f"Another transaction holds the lock. {AGAIN}")
REPLICA_READ_ONLY = declare(
    "replica-read-only",
    503,
    "The publisher serves a replica, which cannot do this. Ask a publisher of the primary, or ask "
    "again if the replica is about to be promoted.",
)
STORE_FAILED = declare(
    "store-failed", 500, f"The store failed; the publisher's log says why. {AGAIN}"
)
RESTORED_TABLE = declare(
    "restored-table",
    503,
    f"The feed's table was restored, and its owner has to put it in order. {AGAIN}",
)
BAD_ROW = declare(
    "bad-row",
    500,
    "The next row of the feed's table cannot be an event. Stop: its owner has to repair it first.",
    partition=COUNT,
    id={"type": ["integer", "string"]},
)
SEGMENT_LOST = declare(
    "segment-lost",
    500,
    "An object that has events after the cursor is missing or damaged. Stop: the publisher's "
    "operator has to put it back first, or to remove these events.",
)
NOT_KNOWN_YET = declare(
    "not-known-yet",
    503,
    f"The store failed while it committed: whether the call took effect is not known yet. "
    f"{AGAIN} The next answer says whether it did.",
)
DUPLICATE_PARAMETER = declare_bad(
    "duplicate-parameter", "A parameter is given twice.", parameter=TEXT
)
