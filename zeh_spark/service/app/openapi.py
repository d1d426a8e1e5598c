"""The HTTP API of the publisher as one OpenAPI 3.1 document, from which a client can be written.

The document is `openapi.yaml`, which says how it is written. This module fills its gaps with what
the code says: limits and patterns, the members of msgspec structs, and the declared problems. So
none of these is written twice. The module has no side effects.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from functools import cache
from importlib import resources
from operator import attrgetter
from typing import Any

import msgspec
import yaml

import zeh_spark
from zeh_spark.service.access.limits import DEFAULTS
from zeh_spark.service.app import (
    direct_api,
    publish_api,
    publish_requests,
    read_requests,
    upload_validation,
)
from zeh_spark.service.network import bodies
from zeh_spark.service.reads import feed, pages
from zeh_spark.service.store import batches, interface
from zeh_spark.wire import (
    direct_reads,
    event_key,
    event_origin,
    page_headers,
    problems,
    served_lines,
    upload_format,
    wire,
)
from zeh_spark.wire.problems import PROBLEMS, ProblemType, Schema

PATH = "/openapi.json"
"""The path at which the publisher serves the document."""

_STRUCTS = (
    batches.StoredReceipt, direct_reads.AwaitedBatch, direct_reads.ChunksRequest,
    direct_reads.CursorsAtTime, direct_reads.Plan, direct_reads.PlanRequest,
    publish_requests.Commit,
)  # fmt: skip
_MODULES = {"limits": DEFAULTS} | {
    each.__name__.rpartition(".")[2]: each
    for each in (
        batches, bodies, direct_api, direct_reads, event_key, event_origin, feed, interface,
        page_headers, pages, problems, publish_api, publish_requests, read_requests, served_lines,
        upload_format, upload_validation, wire, zeh_spark,
    )
}  # fmt: skip
_PLACEHOLDER = re.compile(r"\$\{(\w+)\.([\w.]+)(?:/(\d+))?(?::([^}]*))?\}")


def document(mounted: str = "", *, publishing: bool = True, direct: bool = True) -> dict[str, Any]:
    """Return the document, ready to be encoded as JSON."""
    found = deepcopy(_loaded())
    found["servers"][0]["url"] = mounted or "/"
    left_out: tuple[str, ...] = () if publishing else ("/{feed}/producers", "/{feed}/access")
    if not direct:
        left_out += ("/{feed}/plan", "/{feed}/chunks", "/{feed}/cursors", "/{feed}/schema")
    paths = found["paths"]
    found["paths"] = {path: paths[path] for path in paths if not path.startswith(left_out)}
    return found


@cache
def _loaded() -> dict[str, Any]:
    text = resources.files(__package__).joinpath("openapi.yaml").read_text(encoding="utf-8")
    found = yaml.safe_load(_PLACEHOLDER.sub(_constant, text))
    del found["x-lists"]
    components = found["components"]
    problem_types = {f"problem-{name}": _problem_schema(each) for name, each in PROBLEMS.items()}
    components["schemas"] = {**_with_structs(components["schemas"]), **problem_types}
    for path in found["paths"].values():
        for operation in path.values():
            if "x-problems" in operation:
                names = list(_flat(operation.pop("x-problems")))
                operation["responses"] |= _responses([PROBLEMS[name] for name in names])
    return found  # type: ignore[no-any-return]  # yaml


def _constant(match: re.Match[str]) -> str:
    """Return the text that replaces a placeholder."""
    module, name, divisor, form = match.groups()
    value: Any = attrgetter(name)(_MODULES[module])
    if isinstance(value, re.Pattern):
        pattern: str = value.pattern
        return pattern.replace(r"\Z", "$")  # the form of JSON schemas
    return format(value / int(divisor) if divisor else value, form or "")


def _with_structs(part: Any) -> Any:
    """Return a part of the document in which each `x-struct` is the schema of that struct."""
    if isinstance(part, list):
        return [_with_structs(each) for each in part]
    if not isinstance(part, dict):
        return part
    part = {name: _with_structs(each) for name, each in part.items()}
    if "x-struct" not in part:
        return part
    return _merged(_struct(part.pop("x-struct")), part)


def _struct(name: str) -> Schema:
    _, known = msgspec.json.schema_components(_STRUCTS)
    found = {key: known[name][key] for key in known[name] if key not in ("title", "description")}
    # Members with defaults are required too, because they are encoded; those with UNSET are not.
    members, needed = found["properties"], found.get("required", [])
    required = [each for each in members if each in needed or "default" in members[each]]
    for member in members.values():
        member.pop("default", None)
    return {**found, "required": required}


def _merged(schema: Schema, more: Mapping[str, Any]) -> Schema:
    """Return a schema with more members. A part of it is replaced by one that has a type."""
    found = dict(schema)
    for name, each in more.items():
        own = found.get(name)
        found[name] = _merged(own, each) if isinstance(own, dict) and "type" not in each else each
    return found


def _flat(names: list[Any] | str) -> Iterator[str]:
    if isinstance(names, str):
        yield names
    else:
        for each in names:
            yield from _flat(each)


def _problem_schema(declared: ProblemType) -> Schema:
    own = {"type": {"const": declared.type}, "status": {"const": declared.status}}
    members = {**own, **declared.members}
    required = [name for name in members if name not in declared.optional]
    return {
        "description": declared.says,
        "x-retry": declared.is_transient,
        "allOf": [
            {"$ref": "#/components/schemas/Problem"},
            {"type": "object", "properties": members, "required": required},
        ],
    }


def _responses(types: list[ProblemType]) -> dict[str, Schema]:
    """Return the answers for these problems, by status, and the one for all other statuses."""
    found: dict[str, Schema] = {}
    for status in sorted({each.status for each in types}):
        found[str(status)] = _response([each for each in types if each.status == status])
    return {**found, "default": {"$ref": "#/components/responses/other"}}


def _response(types: list[ProblemType]) -> Schema:
    schema = {"oneOf": [{"$ref": f"#/components/schemas/problem-{each.name}"} for each in types]}
    response: Schema = {
        "description": "\n".join(f"- `{each.name}`: {each.says}" for each in types),
        "content": {problems.CONTENT_TYPE: {"schema": schema}},
    }
    if types[0].has_retry_after:
        seconds = {"type": "integer", "minimum": 0}
        response["headers"] = {"Retry-After": {"description": "seconds", "schema": seconds}}
    return response
