"""The calls of the publish API: paths, queries and bodies become values, or the fitting problem.

The read API ignores unknown parameters, as the spec wants. Here an unknown parameter is refused: a
remedy with a typing error must not pass for one that does not apply. The module has no side
effects.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable, Set
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from zeh_spark.service.store.batches import (
    MAX_NUMBER,
    Call,
    Declared,
    Overrides,
    StoredReceipt,
    TaskAttempt,
)
from zeh_spark.service.store.interface import MAX_PARTITIONS
from zeh_spark.service.store.problems import Problem
from zeh_spark.wire import problems, wire
from zeh_spark.wire.upload_format import Content

MAX_ATTEMPTS = 100_000
"""Most attempts in a commit, which names one for each task."""

MAX_COMMIT_BODY = 16 << 20
"""Most bytes in the body of a commit."""

MAX_TASK = 2**31 - 1
"""The greatest number of a task, and of an upload of an attempt."""

PRODUCER = re.compile(rf"{wire.NAME.pattern}(?:#{wire.NAME.pattern})?")
IDENTIFIER = re.compile(r"[A-Za-z0-9_-]{1,100}")
NUMBER = re.compile(r"(?:0|[1-9][0-9]{0,15})")


class Commit(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """The body of a commit."""

    events: int
    digest: str
    digest_version: int
    attempts: tuple[TaskAttempt, ...]


_decode_commit = msgspec.json.Decoder(Commit).decode


def producer_name(text: str) -> str:
    """Return the name of a producer. Raises Problem if it is not valid."""
    if not PRODUCER.fullmatch(text):
        raise Problem(
            problems.BAD_PRODUCER,
            f"the producer is {text!r}; allowed are 1 to 100 letters, digits and . _ : @ = -, and "
            f"for a named batch # and as many again",
            producer=text,
        )
    return text


def batch_number(text: str) -> int:
    """Return the number of a batch. Raises Problem if it is not valid."""
    return number("batch", text)


def upload_name(text: str) -> tuple[str, int, int, int]:
    """Return the run, task, attempt and number of an upload. Raises Problem if it is not valid."""
    run, *numbers = text.rsplit(".", 3)
    if len(numbers) != 3 or not IDENTIFIER.fullmatch(run):
        raise Problem(
            problems.BAD_UPLOAD_NAME,
            f"the upload is called {text!r}; allowed is <run>.<task>.<attempt>.<number>, with a "
            f"run of 1 to 100 letters, digits, _ and -",
        )
    task, attempt, place = numbers
    return (
        run,
        number("the upload's task", task, MAX_TASK),
        number("the upload's attempt", attempt),
        number("the upload's number", place, MAX_TASK),
    )


def attempt(text: str) -> tuple[int, int]:
    """Return task and attempt from `<task>.<attempt>`. Raises Problem if it is not valid."""
    task, _, tried = text.partition(".")
    return number("the attempt's task", task, MAX_TASK), number("the attempt", tried)


def parse_call(query: str, producer: str, batch: str, *, run: str | None = None) -> Call:
    """Return the call that a query and a path make. Raises Problem if it is not valid.

    If the path names the run, the query does not.
    """
    needed = {"incarnation", "n"} | ({"run"} if run is None else set())
    given = parameters(query, needed, (*wire.REMEDIES, wire.STARTING, wire.SPLIT_BY))
    count = number("n", given["n"], MAX_PARTITIONS, least=1)
    return Call(
        producer=producer_name(producer),
        incarnation=identifier("incarnation", given["incarnation"]),
        run=identifier("run", given["run"]) if run is None else run,
        batch=batch_number(batch),
        partition_count=count,
        overrides=Overrides.named(given),
        starting=_starting(given.get(wire.STARTING, ""), count),
        split_by=number(wire.SPLIT_BY, given.get(wire.SPLIT_BY, "0"), MAX_TASK),
    )


def _starting(text: str, partition_count: int) -> tuple[tuple[int, int], ...]:
    """Return numbers by partition, from a text like "0:1000,3:5". Raises Problem."""
    if not text:
        return ()
    found = {}
    for each in text.split(","):
        partition, _, first = each.partition(":")
        place = number(wire.STARTING, partition, partition_count - 1)
        if place in found:
            raise Problem(
                problems.BAD_PARAMETER,
                f"{wire.STARTING} names partition {place} twice",
                parameter=wire.STARTING,
            )
        found[place] = number(wire.STARTING, first)
    return tuple(sorted(found.items()))


def parameters(query: str, needed: Set[str], others: Iterable[str] = ()) -> dict[str, str]:
    """Return the parameters of a query by name.

    Raises Problem if one is unknown, given twice, or missing.
    """
    known = {*needed, *others}
    given: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True, encoding="utf-8", errors="replace"):
        if name not in known:
            raise Problem(
                problems.UNKNOWN_PARAMETER,
                f"unknown parameter {name!r}; known are {', '.join(sorted(known))}",
                parameter=name,
            )
        if name in given:
            raise Problem(problems.DUPLICATE_PARAMETER, f"{name} is given twice", parameter=name)
        if "\0" in value:
            raise Problem(problems.BAD_PARAMETER, f"{name} is {value!r}", parameter=name)
        given[name] = value
    if missing := sorted(needed - given.keys()):
        raise Problem(problems.PARAMETER_MISSING, f"{missing[0]} is missing", parameter=missing[0])
    return given


def identifier(name: str, text: str) -> str:
    """Return `text` if it is a valid identifier. Raises Problem if not."""
    if not IDENTIFIER.fullmatch(text):
        raise Problem(
            problems.BAD_PARAMETER,
            f"{name} is {text!r}; allowed are 1 to 100 letters, digits, _ and -",
            parameter=name,
        )
    return text


def parse_commit(body: bytes) -> Declared:
    """Return what the body of a commit declares. Raises Problem if it is not valid."""
    try:
        given = _decode_commit(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as exc:
        raise Problem(problems.BAD_COMMIT, f"the body is no commit: {exc}") from None
    attempts = given.attempts
    if len({each.task for each in attempts}) != len(attempts):
        raise Problem(problems.BAD_COMMIT, "a task is named twice; one attempt of each counts")
    if len(attempts) > MAX_ATTEMPTS:
        raise Problem(
            problems.BAD_COMMIT, f"{len(attempts):,} attempts are named; at most {MAX_ATTEMPTS:,}"
        )
    if not re.fullmatch(r"[0-9a-f]{32}", given.digest):
        raise Problem(
            problems.BAD_COMMIT, f"digest is {given.digest!r}; allowed are 32 lower-case hex digits"
        )
    numbers = [given.events]
    for each in attempts:
        numbers += msgspec.structs.astuple(each)
    if wrong := [each for each in numbers if not 0 <= each <= MAX_NUMBER]:
        raise Problem(problems.BAD_COMMIT, f"{wrong[0]} is not between 0 and {MAX_NUMBER}")
    return Declared(Content(given.events, int(given.digest, 16)), attempts, given.digest_version)


def check_json(content_type: str | None) -> None:
    """Raise Problem if a body is not declared as JSON.

    A web page of another origin can send a body of three types without being asked: not JSON.
    """
    kind = (content_type or "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Problem(
            problems.UNSUPPORTED_MEDIA_TYPE,
            f"the body's Content-Type is {content_type!r}; a commit takes application/json",
        )


def check_digest(header: str | None, body: bytes) -> None:
    """Check a body against its Content-Digest (RFC 9530), if that has a SHA-256.

    Raises Problem if the body has another digest.
    """
    found = re.search(r"(?:^|,)\s*sha-256=:([A-Za-z0-9+/=]+):", header or "")
    if not found:
        return
    try:
        right = base64.b64decode(found[1], validate=True) == hashlib.sha256(body).digest()
    except binascii.Error:
        right = False
    if not right:
        raise Problem(
            problems.DIGEST_MISMATCH,
            "the body's SHA-256 is not the one of Content-Digest: it was changed on its way; "
            "send it again",
        )


def committed(receipt: StoredReceipt, *, new: bool) -> dict[str, Any]:
    """Return the answer to a commit, and to an upload of a batch that is committed already."""
    return {"status": "committed" if new else "already-committed", "receipt": receipt}


def number(name: str, text: str, most: int = MAX_NUMBER, *, least: int = 0) -> int:
    """Return a whole number from `least` to `most`. Raises Problem if `text` is not one."""
    if not NUMBER.fullmatch(text) or not least <= int(text) <= most:
        raise Problem(
            problems.BAD_PARAMETER,
            f"{name} is {text!r}; allowed are whole numbers from {least} to {most}",
            parameter=name,
        )
    return int(text)
