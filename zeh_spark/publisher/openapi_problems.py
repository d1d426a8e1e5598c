"""Every problem that the publisher answers with, for the description of the API: status, members,
what it means, and what a client does then.

Rule for editors: a problem that is raised anywhere is listed here, with the same status and
members; tests/unit/publisher/test_openapi.py compares with the code, which raises them. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from zeh_spark.publisher.openapi_parts import COUNT, DIGEST, LAST_BATCH, TEXT, Schema, record, ref
from zeh_spark.store import problems

AGAIN = "Send the same call again."
OVER = "Begin the batch again: read n, make its uploads under new attempts or a new run, commit."
FIX = "A mistake of the client; repeating does not help."


def is_transient(status: int) -> bool:
    """Whether the same call may be answered otherwise a little later."""
    return status in {408, 425, 429} or status >= 500


_CONTENT = record(events=COUNT, digest=DIGEST)
_UPLOADS = record(uploads=COUNT, events=COUNT)
_CALL = {"producer": TEXT, "incarnation": TEXT, "run": TEXT, "batch": COUNT, "remedy": TEXT}


@dataclass(frozen=True, slots=True)
class ProblemType:
    """A problem. `optional`: members that are there only where the sentence can name them."""

    status: int
    says: str
    members: Mapping[str, Schema] = field(default_factory=dict)
    optional: tuple[str, ...] = ()


def _bad(says: str, **members: Schema) -> ProblemType:
    return ProblemType(400, f"{says} {FIX}", members)


def _refused(status: int, says: str, **members: Schema) -> ProblemType:
    return ProblemType(status, says, {**_CALL, **members})


def _option(name: str) -> Schema:
    return record(**{name: TEXT})


PROBLEMS = {
    # Of any call.
    "unknown-feed": ProblemType(404, "There is no such feed, or no such address at all."),
    "method-not-allowed": ProblemType(405, f"The address has no such method. {FIX}"),
    "store-busy": ProblemType(503, f"The store is locked by somebody else. {AGAIN}"),
    "store-failed": ProblemType(500, f"The store failed; the publisher's log says why. {AGAIN}"),
    "restored-table": ProblemType(
        503, f"The feed's table was restored, and its owner has to put it in order. {AGAIN}"
    ),
    "bad-row": ProblemType(
        500,
        f"The next row of the feed's table cannot be an event; its owner has to mend it. {AGAIN}",
        {"partition": COUNT, "id": {"type": ["integer", "string"]}},
    ),
    "not-known-yet": ProblemType(
        503,
        f"The store failed while it committed: whether the call took effect is not known yet. "
        f"{AGAIN} The answer to that tells.",
    ),
    "duplicate-parameter": _bad("A parameter is given twice.", parameter=TEXT),
    # Of reading.
    "partition-count-missing": ProblemType(
        400, f"n is missing. {FIX}", {"partitionCount": COUNT, "feed": ref("Feed")}, ("feed",)
    ),
    "bad-partition-count": ProblemType(
        400,
        f"n is no allowed number. {FIX}",
        {"partitionCount": COUNT, "maximum": COUNT, "feed": ref("Feed")},
        ("feed",),
    ),
    "partition-out-of-range": _bad("A cursorN has an N of n or more.", partition=COUNT, n=COUNT),
    "malformed-cursor": _bad(
        "A cursor has no form that this feed gives.", partition=COUNT, cursor=TEXT
    ),
    "cursors-missing": _bad("Neither a cursorN nor resume is given."),
    "bad-page-size-hint": _bad("pagesizehint is no allowed number."),
    "bad-wait": _bad("wait is no allowed number."),
    "bad-cursorset": _bad("cursorset is no allowed name."),
    "bad-store-cursor": _bad("store_cursor is not 1."),
    "cursorset-missing": _bad("resume or store_cursor is given without cursorset."),
    "cursorset-unsupported": _bad("This feed keeps no cursors for readers."),
    "bad-resume": _bad("resume lists no different partitions below n.", n=COUNT),
    "resume-with-cursors": _bad("resume and a cursorN are given."),
    "unknown-cursorset": _bad(
        "Nothing is kept under this cursorset, n and partition.", cursorset=TEXT, partition=COUNT
    ),
    "cursor-of-another-history": ProblemType(
        409,
        "The cursor is of another feed, or of a history that a restore undid: going on from it "
        "could skip events. Start from _first, or from a cursor that this feed gave.",
        {"partition": COUNT, "cursor": TEXT},
    ),
    "cursor-gone": ProblemType(
        410,
        "Events behind the cursor were removed before they were read, because of the feed's "
        "retention. What is left begins behind the cursor `oldest`.",
        {"partition": COUNT, "cursor": TEXT, "oldest": TEXT},
    ),
    # Of calls of the publish API: their form.
    "bad-producer": _bad("The producer's name is not allowed.", producer=TEXT),
    "bad-upload-name": _bad("The upload's name is not allowed."),
    "bad-parameter": _bad("A parameter's value is not allowed.", parameter=TEXT),
    "parameter-missing": _bad("A parameter that is needed is missing.", parameter=TEXT),
    "unknown-parameter": _bad("There is no such parameter in this call.", parameter=TEXT),
    "bad-commit": _bad("The body is no commit; the detail says why."),
    "body-incomplete": _bad("The body is shorter or longer than its Content-Length."),
    "body-too-slow": ProblemType(408, f"The body came too slowly. {AGAIN}"),
    "length-required": ProblemType(411, f"Content-Length is missing. {FIX}"),
    "body-too-large": ProblemType(
        413, "The body is too large; make smaller uploads.", {"maximum": COUNT}
    ),
    "busy": ProblemType(429, f"Too many bodies at a time. {AGAIN}"),
    "digest-mismatch": ProblemType(
        422, "The body has not the SHA-256 of its Content-Digest. Send it again a few times."
    ),
    "invalid-upload": ProblemType(
        422,
        f"The body breaks the rules for uploads. {FIX} Chunks, and lines in a chunk, are counted "
        f"from 0.",
        {"chunk": COUNT, "line": COUNT},
        optional=("chunk", "line"),
    ),
    # Of the decision.
    "unknown-batch": ProblemType(
        404,
        "The batch is not committed, and nobody is committing it now.",
        {
            "producer": TEXT,
            "incarnation": {"type": ["string", "null"], "description": "the one asked for"},
            "batch": COUNT,
            "partitionCount": COUNT,
            "feedId": {"type": "string", "description": "random, the feed's for ever"},
        },
    ),
    "producer-deleted": _refused(410, "Case 1. Publish under another producer."),
    "incarnation-changed": _refused(
        409,
        "Case 2. Find out which of the two shall go on; an operator may set the option.",
        current=record(incarnation=TEXT, lastBatch=LAST_BATCH),
        option=_option("replaceIncarnation"),
    ),
    "fenced": _refused(
        403,
        "Case 3. Another start of the same writer has taken over: stop this one.",
        current=record(run=TEXT, level=COUNT, lastBatch=LAST_BATCH),
    ),
    "batch-expired": _refused(
        410, "Case 4a. The batch can be neither confirmed nor denied: stop, and ask an operator."
    ),
    "digest-version": _refused(
        409,
        "Cases 4b, 7. Repeat the batch with a client that declares the expected version.",
        expected=record(digestVersion={"type": "integer"}),
        given=record(digestVersion={"type": "integer"}),
    ),
    "batch-conflict": _refused(
        409,
        "Case 4f. Stop: the batch came out differently, or somebody else uses the producer. An "
        "operator may set the option, which keeps what is published and drops this batch.",
        published=_CONTENT,
        given=_CONTENT,
        option=_option("keepFirst"),
    ),
    "number-taken": _refused(
        409,
        "Case 4d. Somebody else published other events at the same time: publish these as the next "
        "batch, and give each one who publishes a producer of its own.",
        published=_CONTENT,
        given=_CONTENT,
    ),
    "batch-gap": _refused(
        409,
        "Case 5. Publish the batches between first; or an operator sets the option, which does "
        "without them.",
        current=record(incarnation={"type": ["string", "null"]}, lastBatch=LAST_BATCH),
        option=_option("acceptGap"),
    ),
    "layout-changed": _refused(409, f"Case 6. {OVER}", partitionCount=COUNT),
    "upload-missing": _refused(
        409,
        f"Case 8. Another number of uploads or events is staged than the commit names. {OVER}",
        task=COUNT,
        expected=_UPLOADS,
        found=_UPLOADS,
    ),
    "content-mismatch": _refused(
        422,
        f"Case 9. What is staged has not the content that the commit declares: a client that "
        f"counts wrongly, or something that changes bodies. Repeat the batch with new uploads; if "
        f"that does not help: {FIX}",
        given=_CONTENT,
        found=_CONTENT,
    ),
    "upload-conflict": _refused(
        409, "An upload of this name is staged with other bytes. Take another attempt number."
    ),
    "quota-exceeded": _refused(
        507,
        f"The producer has too many bytes staged that are not committed. {AGAIN} If it stays so, "
        f"release uploads or make smaller batches.",
        quota=COUNT,
        staged=COUNT,
    ),
}


def type_of(name: str) -> str:
    return str(problems.Problem(name, 400, "").document()["type"])


def schemas() -> dict[str, Schema]:
    """Of problems in general, and of each."""
    members = record(
        type={**TEXT, "pattern": f"^{type_of('[a-z-]+')}$"},
        title=TEXT,
        status={"type": "integer"},
        detail={**TEXT, "description": "what came, what is allowed, what to do: for people"},
    )
    general = {"Problem": {"description": "A problem document (RFC 9457).", **members}}
    return general | {f"problem-{name}": _schema(name, each) for name, each in PROBLEMS.items()}


def _schema(name: str, known: ProblemType) -> Schema:
    own = record(
        known.optional,
        type={"const": type_of(name)},
        status={"const": known.status},
        **known.members,
    )
    retry = {"description": known.says, "x-retry": is_transient(known.status)}
    return {**retry, "allOf": [ref("Problem"), own]}


def responses(*names: str) -> dict[str, Schema]:
    """These problems as answers, by status; and what else may come."""
    found: dict[str, Schema] = {}
    for status in sorted({PROBLEMS[name].status for name in names}):
        same = [name for name in names if PROBLEMS[name].status == status]
        found[str(status)] = _response(status, same)
    return found | {"default": ref("other", "responses")}


def _response(status: int, names: list[str]) -> Schema:
    says = "\n".join(f"- `{name}`: {PROBLEMS[name].says}" for name in names)
    schema = {"oneOf": [ref(f"problem-{name}") for name in names]}
    response: Schema = {"description": says, "content": {problems.CONTENT_TYPE: {"schema": schema}}}
    if status in {429, 503}:
        response["headers"] = {"Retry-After": {"description": "seconds", "schema": COUNT}}
    return response


OTHER: Schema = {
    "description": "Any other answer: go by its status. From the publisher it is a problem too "
    f"(`method-not-allowed`, {PROBLEMS['method-not-allowed'].status}; `refused` with whatever "
    "other status the HTTP layer chose); from a proxy, or the server beneath, it may be anything.",
    "content": {problems.CONTENT_TYPE: {"schema": ref("Problem")}},
}
