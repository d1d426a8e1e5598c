"""The schema of a feed's events: JSON Schema 2020-12, in versions.

A version is compatible if it takes every event that the version before it takes. `since` is the
oldest version from which on all are compatible: what one of them has checked keeps this one, too.

Rule for editors: nothing is fetched, so a schema that refers to another document is refused.
Patterns run on an engine whose time is linear in the text. Pure; runs in the publisher and in
commands. The library is loaded where a feed has a schema.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec import Raw

from zeh_spark.errors import StoreError
from zeh_spark.service.store.quick_check import quick_check
from zeh_spark.wire import wire

if TYPE_CHECKING:
    from jsonschema_rs import Validator

DIALECT = "https://json-schema.org/draft/2020-12/schema"
MAX_BYTES = 256 << 10  # of a document

NAMED = 1000
"""Wrong events of an upload that are looked for. The others are not checked."""

_COMPARED = frozenset(
    "$schema $id $comment title description default examples deprecated readOnly writeOnly format "
    "type required properties enum const additionalProperties items minimum maximum "
    "exclusiveMinimum exclusiveMaximum minLength maxLength minItems maxItems minProperties "
    "maxProperties".split()
)
"""The keywords with which it is decided whether a version is compatible: each has tests."""


@dataclass(frozen=True, slots=True)
class FeedSchema:
    """A version of a feed's schema, from 1; when it was set, in ms since 1970; and its JSON text.

    Events that were checked with a version from `since` on keep this one.
    """

    version: int
    since: int
    time: int
    document: bytes

    @property
    def tag(self) -> str:
        """The ETag. After a restore, another document may get the same version."""
        return f'"{self.version}-{hashlib.sha256(self.document).hexdigest()[:32]}"'


class WrongEvent(NamedTuple):
    """An event of an upload that breaks the schema, by its line in the chunk, from 0.

    `path` is a JSON pointer in its data, which `event` has. Long texts are cut.
    """

    chunk: int
    line: int
    partition: int
    path: str
    reason: str
    event: str


def next_version(
    before: FeedSchema | None, document: bytes, time: int, *, compatible: bool = True
) -> FeedSchema:
    """Return the version after `before`, which is `before` if that has the same document.

    Raises StoreError if the document is no schema; and if it has to be `compatible` and is not, or
    that is not decided.
    """
    validator(document)
    if before is None:
        return FeedSchema(1, 1, time, document)
    if before.document == document:
        return before
    why = _incompatible(before.document, document)
    if why and compatible:
        raise StoreError(
            f"{why}. Nothing was changed: the feed keeps version {before.version}. Correct the "
            f"document; or, if readers can do with events of both, give --compatibility none",
            anchor="a-schema-is-refused",
        )
    version = before.version + 1
    return FeedSchema(version, version if why else before.since, time, document)


def _incompatible(before: bytes, after: bytes) -> str | None:
    """Return why a schema may not take every event that another one takes; None if it does."""
    from jsonschema_rs import canonical, canonicalize

    old, new = msgspec.json.decode(before), msgspec.json.decode(after)
    if odd := next((each for one in (old, new) for each in _not_compared(one, "")), None):
        return f"whether the schema is compatible is not decided, because of {odd}"

    def is_wider(one: Any, other: Any) -> bool:
        one, other = (canonicalize(each, validate_formats=False) for each in (one, other))
        return bool(one.covers(other) == canonical.Containment.YES)

    if is_wider(new, old):
        return None
    mine, its = new.get("properties", {}), old.get("properties", {})
    open_to = old.get("additionalProperties", {})  # what else a property may be
    names = [name for name in sorted(mine) if not is_wider(mine[name], its.get(name, open_to))]
    narrow = [f"/properties/{name}" for name in names]
    narrow += ["/required"] if {*new.get("required", [])} - {*old.get("required", [])} else []
    if not is_wider(new.get("additionalProperties", {}), open_to):
        narrow.append("/additionalProperties")
    where = ", ".join(narrow) or "what is around its properties"
    return f"the schema may refuse events that the version before it takes: see {where}"


def _not_compared(schema: object, path: str) -> Iterator[str]:
    """Yield the keywords with which it is not decided, and their places."""
    for name, value in schema.items() if isinstance(schema, dict) else ():
        here = f"{path}/{name}"
        if name not in _COMPARED:
            yield f"{name!r} in {path or '/'}"
        elif name == "properties":
            for each, part in value.items():
                yield from _not_compared(part, f"{here}/{each}")
        elif name in {"items", "additionalProperties"}:
            yield from _not_compared(value, here)


def wrong_in(
    schema: FeedSchema, chunk: int, partition: int, data: Sequence[bytes | Raw]
) -> Iterator[WrongEvent]:
    """Yield the events of a chunk whose data breaks the schema, in their order."""
    check, quick = validator(schema.document), _quick_check(schema.document)
    if _all_keep(check, quick, b",".join(data)):
        return
    for line, each in enumerate(map(bytes, data)):
        if not _all_keep(check, quick, each) and (found := fault(check, each)):
            yield WrongEvent(chunk, line, partition, *found, wire.excerpt(each))


def _all_keep(check: Validator, quick: Callable[[bytes], object] | None, events: bytes) -> bool:
    listed = b"[%b]" % events
    try:
        if quick:
            quick(listed)
            return True
    except msgspec.MsgspecError:  # not sure
        pass
    try:
        return check.is_valid(_decode_all(listed))
    except ValueError:  # one of them cannot be compared
        return False


def fault(check: Validator, data: bytes) -> tuple[str, str] | None:
    """Return where (a JSON pointer) and why an event's data breaks a schema, if it does."""
    try:
        error = next(check.iter_errors([msgspec.json.decode(data)]), None)
    except ValueError as exc:
        return "", f"it cannot be compared with the schema: {exc}"
    if error is None:
        return None
    return _pointer(error.instance_path[1:])[:200], wire.excerpt(error.message.encode())


_decode_all = msgspec.json.Decoder(list[Any]).decode


@lru_cache(64)
def _quick_check(document: bytes) -> Callable[[bytes], object] | None:
    return quick_check(msgspec.json.decode(document))


@lru_cache(64)
def validator(document: bytes) -> Validator:
    """Return what checks a list of events' data, at two thirds of the time of one after the other.

    Raises StoreError if the document is no schema.
    """
    try:
        import jsonschema_rs as library
    except ImportError:
        raise StoreError(
            "jsonschema-rs, which checks events against a feed's schema, is not installed. Run "
            "pip install 'zeh-spark[publisher]'"
        ) from None
    why = ""
    if len(document) > MAX_BYTES:
        why = f"it has {len(document):,} bytes, at most {MAX_BYTES:,} are allowed"
    try:
        schema = msgspec.json.decode(document, type=dict[str, Any])
        if schema.get("$schema", DIALECT) != DIALECT:
            why = f"/$schema is {schema['$schema']!r}, and has to be {DIALECT!r}"
        if not why:
            linear = library.RegexOptions()
            events = {"type": "array", "items": {"$id": "urn:event", **schema}}
            return library.Draft202012Validator(
                events, validate_formats=False, pattern_options=linear, offline=True
            )
    except library.ValidationError as exc:
        why = f"{_pointer(exc.instance_path[1:]) or '/'}: {exc.message}"
    except ValueError as exc:  # also msgspec's
        why = f"it is no JSON object: {exc}"
    raise StoreError(
        f"the schema is refused: {why}. Correct the document", anchor="a-schema-is-refused"
    )


def _pointer(path: Sequence[str | int]) -> str:
    return "".join("/" + f"{each}".replace("~", "~0").replace("/", "~1") for each in path)
