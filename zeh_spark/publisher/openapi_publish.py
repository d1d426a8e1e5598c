"""The publish API as OpenAPI: its paths, parameters and schemas. Pure."""

from __future__ import annotations

from typing import Any

from zeh_spark.protocol.upload_format import DIGEST_VERSION
from zeh_spark.publisher.openapi_parts import (
    COUNT,
    DIGEST,
    LAST_BATCH,
    TEXT,
    Schema,
    in_header,
    in_path,
    in_query,
    json_answer,
    record,
    ref,
)
from zeh_spark.publisher.openapi_problems import responses
from zeh_spark.publisher.publish_api import IDLE_SECONDS, PRODUCERS_SHOWN, RECEIPTS_SHOWN
from zeh_spark.publisher.publish_requests import IDENTIFIER, MAX_ATTEMPTS, MAX_COMMIT_BODY, PRODUCER
from zeh_spark.publisher.upload_validation import MAX_BODY
from zeh_spark.store.batches import MAX_NUMBER, RECEIPTS
from zeh_spark.store.interface import MAX_PARTITIONS

_WHOLE: Schema = {"type": "integer", "minimum": 0, "maximum": MAX_NUMBER}
_PRODUCER: Schema = {"type": "string", "pattern": f"^{PRODUCER.pattern}$"}
_IDENTIFIER: Schema = {"type": "string", "pattern": f"^{IDENTIFIER.pattern}$"}
_HASH: Schema = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
_MOMENT: Schema = {"type": "integer", "description": "ms since 1970"}

_CALLED = ("unknown-feed", "store-failed", "store-busy", "duplicate-parameter", "unknown-parameter")
_NAMED = (*_CALLED, "bad-producer")
_SENT = (
    *_NAMED, "not-known-yet", "bad-parameter", "parameter-missing", "length-required",
    "body-too-large", "body-too-slow", "body-incomplete", "busy", "producer-deleted",
    "incarnation-changed", "fenced", "batch-expired", "batch-gap", "layout-changed",
)  # fmt: skip


def paths() -> dict[str, Schema]:
    producers = "/{feed}/producers"
    batches = producers + "/{producer}/batches"
    batch = batches + "/{batch}"
    return {
        producers: _path(["feed"], get=_producers()),
        producers + "/{producer}": _path(["feed", "producer"], get=_producer()),
        batches: _path(["feed", "producer"], get=_receipts()),
        batch: _path(["feed", "producer", "batch"], get=_receipt()),
        batch + "/commit": _path(["feed", "producer", "batch"], post=_commit()),
        batch + "/uploads": _path(["feed", "producer", "batch"], delete=_release()),
        batch + "/uploads/{upload}": _path(["feed", "producer", "batch", "upload"], put=_upload()),
    }


def parameters() -> dict[str, Schema]:
    """By the name that operations refer to."""
    found = [
        in_path("producer", _PRODUCER, "Percent-encoded; `P#K` as `P%23K`."),
        in_path("batch", _WHOLE, "The batch's number."),
        in_path(
            "upload",
            {"type": "string", "pattern": f"^{IDENTIFIER.pattern}(\\.[0-9]{{1,16}}){{3}}$"},
            f"`<run>.<task>.<attempt>.<number>`: task and number up to {2**31 - 1}, attempt up to "
            f"{MAX_NUMBER}. The uploads of an attempt need not be numbered without gaps; their "
            f"order is that of the numbers.",
        ),
        in_query("incarnation", _IDENTIFIER, "The call's incarnation.", required=True),
        in_query("run", _IDENTIFIER, "The call's run.", required=True),
        in_query(
            "n",
            {"type": "integer", "minimum": 1, "maximum": MAX_PARTITIONS},
            "The number of stored partitions that the batch is made for.",
            required=True,
        ),
        in_query("acceptGap", TEXT, "An override, see Publishing; case 5."),
        in_query("replaceIncarnation", TEXT, "An override, see Publishing; case 2."),
        in_query("keepFirst", TEXT, "An override, see Publishing; case 4e."),
        in_header(
            "Content-Length",
            COUNT,
            f"Chunked bodies are refused. One of which nothing comes for {IDLE_SECONDS:g} s is "
            f"given up.",
            required=True,
        ),
    ]
    return {each["name"]: each for each in found}


def schemas() -> dict[str, Schema]:
    attempt = record(
        task=_WHOLE,
        attempt={**_WHOLE, "description": "the one that counts"},
        uploads={**_WHOLE, "description": "how many the attempt has staged, perhaps none"},
        events={**_WHOLE, "description": "how many lines they hold"},
    )
    return {
        "Commit": {
            **record(
                events={**_WHOLE, "description": "of the whole batch"},
                digest=DIGEST,
                digestVersion={"const": DIGEST_VERSION},
                attempts={
                    "type": "array",
                    "maxItems": MAX_ATTEMPTS,
                    "items": {**attempt, "additionalProperties": False},
                    "description": "each task once; tasks without events may be left out",
                },
            ),
            "additionalProperties": False,
        },
        "Committed": record(
            status={"enum": ["committed", "already-committed"]}, receipt=ref("Receipt")
        ),
        "AlreadyCommitted": record(status={"const": "already-committed"}, receipt=ref("Receipt")),
        "Staged": record(status={"const": "staged"}),
        "Receipt": _receipt_schema(),
        "Producer": _producer_schema(),
    }


def _receipt_schema() -> Schema:
    stretch = record(
        partition=COUNT,
        first={**COUNT, "description": "the batch's first sequence number there"},
        last={**COUNT, "description": "its last one"},
        cursor={"type": "string", "description": "the feed's cursor behind the batch, there"},
    )
    receipt = record(
        number={"type": "integer", "minimum": 1, "description": "counts the producer's receipts"},
        producer=_PRODUCER,
        incarnation=_IDENTIFIER,
        batch=_WHOLE,
        run=_IDENTIFIER,
        level={"type": "integer", "minimum": 1, "description": "rises as another run commits"},
        events=_WHOLE,
        digest=DIGEST,
        digestVersion={"type": "integer"},
        partitionCount={"type": "integer", "minimum": 1, "description": "the feed's at that time"},
        ranges={
            "type": "array",
            "items": stretch,
            "description": "for each partition that the batch has events in, in order",
        },
        positions={
            "type": ["array", "null"],
            "items": {"type": "integer"},
            "description": "the first and last chunk of the batch in the feed; null if it is empty",
        },
        time={**_MOMENT, "description": "of the commit, in ms since 1970; the stamp zeh-time"},
        previous={"type": "string", "pattern": "^([0-9a-f]{64})?$"},
        hash=_HASH,
    )
    return {**receipt, "description": "That a batch was committed. See Publishing for `hash`."}


def _producer_schema() -> Schema:
    def or_null(schema: Schema) -> Schema:
        return {**schema, "type": [schema["type"], "null"]}

    return {
        **record(
            ("nextSequences",),
            producer=_PRODUCER,
            incarnation=or_null(_IDENTIFIER),
            lastBatch=LAST_BATCH,
            run=or_null(_IDENTIFIER),
            level=COUNT,
            receipts={**COUNT, "description": "how many it ever got"},
            chain={
                "type": "string",
                "pattern": "^([0-9a-f]{64})?$",
                "description": "`hash` of the newest one",
            },
            time=or_null(_MOMENT),
            deleted={"type": "boolean"},
            nextSequences={
                "type": "object",
                "additionalProperties": COUNT,
                "description": "the number that its next event gets, by partition; 0 where none "
                "is named. Only of a single producer",
            },
        ),
        "description": "The last commit, and what it was: incarnation, its last batch, run, level. "
        "Null, 0 and -1 for a producer that never committed.",
    }


def _producers() -> Schema:
    after = in_query("after", TEXT, "Only names behind this one: the next page.")
    limit = in_query(
        "limit",
        {**_WHOLE, "default": PRODUCERS_SHOWN},
        f"How many, at most; more than {PRODUCERS_SHOWN} is taken as that.",
    )
    body = record(producers={"type": "array", "items": ref("Producer")})
    return _operation(
        "producers",
        "The producers that ever committed, by name",
        [after, limit],
        (*_CALLED, "bad-parameter"),
        {"200": json_answer(body)},
    )


def _producer() -> Schema:
    return _operation(
        "producer",
        "A producer, as of now",
        [],
        (*_NAMED, "not-known-yet"),
        {"200": json_answer(ref("Producer"))},
        "One that is unknown is answered too: it is one that never committed. Waits for commits "
        "that are under way.",
    )


def _receipts() -> Schema:
    below = in_query(
        "below", _WHOLE, "Only receipts with a `number` less than this: the next page."
    )
    limit = in_query(
        "limit",
        {**_WHOLE, "default": RECEIPTS_SHOWN},
        f"How many, at most; more than {RECEIPTS} is taken as that.",
    )
    body = record(receipts={"type": "array", "items": ref("Receipt")})
    return _operation(
        "receipts",
        "The receipts that are kept, newest first",
        [below, limit],
        (*_NAMED, "bad-parameter"),
        {"200": json_answer(body)},
        "Of all incarnations; empty for an unknown producer.",
    )


def _receipt() -> Schema:
    which = in_query(
        "incarnation", _IDENTIFIER, "Which one; the producer's current one if left out."
    )
    return _operation(
        "receipt",
        "The receipt of a batch, or certainty that it is not committed; and n",
        [which],
        (*_NAMED, "bad-parameter", "not-known-yet", "unknown-batch", "batch-expired"),
        {"200": json_answer(ref("Receipt"))},
        "Waits for commits that are under way.",
    )


def _commit() -> Schema:
    return _operation(
        "commit",
        "Publish a batch, of the uploads of the attempts that are named",
        ["incarnation", "run", "n", "Content-Length", "acceptGap", "replaceIncarnation",
         "keepFirst"],
        (*_SENT, "bad-commit", "digest-version", "batch-conflict", "number-taken", "upload-missing",
         "content-mismatch"),
        {"200": json_answer(ref("Committed"), "It is published, on disk, and visible to readers.")},
        f"See Publishing, The decision. Its form is looked at first: path, query, length (at most "
        f"{MAX_COMMIT_BODY:,} bytes), body. Repeating it changes nothing.",
        body={"application/json": {"schema": ref("Commit")}},
    )  # fmt: skip


def _upload() -> Schema:
    digest = in_header(
        "Content-Digest",
        TEXT,
        "RFC 9530, with the body's SHA-256: `sha-256=:<base64>:`. Compared if it is there; others "
        "are ignored.",
    )
    return _operation(
        "upload",
        "Stage a part of a batch",
        ["incarnation", "n", "Content-Length", digest, "acceptGap", "replaceIncarnation",
         "keepFirst"],
        (*_SENT, "bad-upload-name", "digest-mismatch", "invalid-upload", "upload-conflict",
         "quota-exceeded"),
        {
            "200": json_answer(
                {"oneOf": [ref("Staged"), ref("AlreadyCommitted")]},
                "`staged`: the same bytes were there already under this name. `already-committed`: "
                "the batch is, nothing more is needed; that may be answered before the body is "
                "read.",
            ),
            "201": json_answer(ref("Staged"), "It is staged."),
        },
        f"Looked at in this order: path, query, length (at most {MAX_BODY:,} bytes), the decision "
        f"up to case 6, the body, the decision again. Repeating it with the same bytes changes "
        f"nothing; keep them, for zstd may pack the same lines otherwise.",
        body={"application/vnd.zeroeventhub.upload": {}},
    )  # fmt: skip


def _release() -> Schema:
    attempt = in_query(
        "attempt",
        {"type": "string", "pattern": "^[0-9]{1,16}\\.[0-9]{1,16}$"},
        "`<task>.<attempt>`: only what this attempt has staged.",
    )
    return _operation(
        "release",
        "Drop what a run, or one attempt of it, has staged for a batch",
        ["run", attempt],
        (*_NAMED, "bad-parameter", "not-known-yet"),
        {"200": json_answer(record(released=COUNT), "How many uploads were dropped; repeated, 0.")},
        "Nothing that is committed changes. It never needs to be called: what is staged is dropped "
        "in the end. Answered for unknown producers too.",
    )


def _path(names: list[str], **operations: Schema) -> Schema:
    return {"parameters": [ref(name, "parameters") for name in names], **operations}


def _operation(
    name: str,
    summary: str,
    parameters: list[Any],
    problems: tuple[str, ...],
    answers: dict[str, Schema],
    description: str = "",
    body: Schema | None = None,
) -> Schema:
    """`parameters`: themselves, or the names of common ones."""
    found: Schema = {"tags": ["Publishing"], "operationId": name, "summary": summary}
    if description:
        found["description"] = description
    found["parameters"] = [
        ref(each, "parameters") if isinstance(each, str) else each for each in parameters
    ]
    if body:
        found["requestBody"] = {
            "required": True,
            "description": "Its Content-Type is not looked at.",
            "content": body,
        }
    return {**found, "responses": {**answers, **responses(*problems)}}
