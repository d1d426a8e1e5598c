"""The declared problems (`protocol.problems`) as schemas and responses of the document. Pure."""

from __future__ import annotations

from zeh_spark.protocol import problems
from zeh_spark.protocol.problems import PROBLEMS, ProblemType
from zeh_spark.publisher.openapi_parts import COUNT, TEXT, Schema, record, ref


def schemas() -> dict[str, Schema]:
    """Of problems in general, and of each."""
    members = record(
        type={**TEXT, "pattern": f"^{problems.URN}[a-z-]+$"},
        title=TEXT,
        status={"type": "integer"},
        detail={**TEXT, "description": "what came, what is allowed, what to do: for people"},
    )
    general = {"Problem": {"description": "A problem document (RFC 9457).", **members}}
    return general | {f"problem-{name}": _schema(name, each) for name, each in PROBLEMS.items()}


def _schema(name: str, known: ProblemType) -> Schema:
    own = record(
        tuple(known.optional),
        type={"const": known.type},
        status={"const": known.status},
        **known.members,
    )
    retry = {"description": known.says, "x-retry": known.is_transient}
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
    if any(PROBLEMS[name].has_retry_after for name in names):
        response["headers"] = {"Retry-After": {"description": "seconds", "schema": COUNT}}
    return response


OTHER: Schema = {
    "description": "Any other answer: go by its status. From the publisher it is a problem too "
    f"(`method-not-allowed`, {PROBLEMS['method-not-allowed'].status}; `refused` with whatever "
    "other status the HTTP layer chose); from a proxy, or the server beneath, it may be anything.",
    "content": {problems.CONTENT_TYPE: {"schema": ref("Problem")}},
}
