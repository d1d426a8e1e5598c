"""The answers to requests that fail: each error becomes a problem, in JSON or on a page.

Runs in the publisher's event loop.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from zeh_spark.errors import StoreError
from zeh_spark.service.app.publish_api import CALLS
from zeh_spark.service.store.interface import (
    DamagedObjectError,
    LocationAwayError,
    NoObjectError,
    ObjectError,
    StorageBusyError,
    StoreBusyError,
    StoreOutcomeUnknownError,
    StoreReadOnlyError,
    StoreSilentError,
    UnknownFeedError,
)
from zeh_spark.service.store.problems import Problem
from zeh_spark.service.telemetry.exchange import exchange_of
from zeh_spark.service.telemetry.outages import BODIES, Outages
from zeh_spark.wire import problems
from zeh_spark.wire.problems import ProblemType

_OF_BATCHES = frozenset("/{feed}" + path for method, path, _, _ in CALLS if method != "GET")
"""The routes of calls that change batches."""

_FIELDS = {
    problems.TOO_MANY_CONNECTIONS: {"Connection": "close"},
    problems.BODY_TOO_SLOW: {"Connection": "close"},
    problems.UNAUTHORIZED: {"WWW-Authenticate": 'Bearer realm="zeh-spark"'},
}
"""The header fields of answers with these problems."""

_OF_ERRORS: dict[type[StoreError], ProblemType] = {
    UnknownFeedError: problems.UNKNOWN_FEED,
    StoreReadOnlyError: problems.REPLICA_READ_ONLY,
    StoreOutcomeUnknownError: problems.NOT_KNOWN_YET,
    StoreSilentError: problems.STORE_BUSY,
    StoreBusyError: problems.STORE_BUSY,
    LocationAwayError: problems.STORE_BUSY,
    NoObjectError: problems.SEGMENT_LOST,
    DamagedObjectError: problems.SEGMENT_LOST,
    StoreError: problems.STORE_FAILED,
}
"""The problem of each error of a store; the first that fits counts."""

_LOST = "an object that has old events is missing or damaged; the publisher's log names it"
_SAID: dict[type[StoreError], str] = {
    StoreSilentError: "the publisher's database does not answer; the publisher's log says why. Try "
    "again when it answers",
    LocationAwayError: "the storage of old events is away; the publisher's log says why. Try again "
    "in a few seconds",
    NoObjectError: _LOST,
    DamagedObjectError: _LOST,
    StoreError: "the publisher's store failed; its log says why",
}
"""What strangers are told instead of the text of these errors, which is for the operator."""


def _answer(
    request: Request, problem: Problem, headers: Mapping[str, str] | None = None
) -> Response:
    exchange = exchange_of(request)
    exchange.problem = problem.name
    exchange.is_decided = problems.REMEDY in problem.type.members  # the store knows the feed
    more = {"Retry-After": "1"} if problem.type.has_retry_after else {}
    more |= _FIELDS.get(problem.type, {})
    if request.method != "GET" and exchange.route in _OF_BATCHES:
        request.app.state.refusals.note(
            request.path_params, problem, exchange.request_id, exchange.token
        )
    if console := request.app.state.console:
        page: Response | None = console.problem(
            request, problem, {**more, **(headers or {})}, exchange.request_id
        )
        if page:
            return page
    document = problem.document()
    if exchange.request_id:
        document["requestId"] = exchange.request_id
    return Response(
        msgspec.json.encode(document),
        status_code=problem.status,
        headers={"Cache-Control": "no-store", **more, **(headers or {})},
        media_type=problems.CONTENT_TYPE,
    )


async def _answer_problem(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, Problem)
    if exc.type is problems.NO_ROOM_FOR_BODIES:
        _outages_of(request).failed(BODIES, exc.detail)
    elif exc.status == 500 or exc.type in {problems.RESTORED_TABLE, problems.STORE_FULL}:
        feed = request.path_params.get("feed", "")
        # for the operator, who can repair it
        request.app.state.rare.error((exc.name, feed), "%s", exc.detail)
    return _answer(request, exc)


async def _answer_store_error(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, StoreError)
    feed = request.path_params.get("feed", "")
    why = exc.__cause__ if isinstance(exc.__cause__, StoreError) else exc  # see `access.gate`
    if isinstance(exc, ObjectError | StorageBusyError):  # other events can be read
        request.app.state.rare.error(("objects", feed), "feed %r: %s", feed, why.what)
    elif not isinstance(exc, UnknownFeedError | StoreReadOnlyError):  # which are no outages
        _outages_of(request).request_failed(exchange_of(request), request.method, feed, why.what)
    kind = next(each for each in _OF_ERRORS if isinstance(exc, each))
    # Without the error's code: the problem has a name of its own.
    return _answer(request, Problem(_OF_ERRORS[kind], _SAID.get(kind, exc.what)))


def _outages_of(request: Request) -> Outages:
    found: Outages = request.app.state.outages
    return found


async def _answer_http_error(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, HTTPException)
    types = {404: problems.UNKNOWN_FEED, 405: problems.METHOD_NOT_ALLOWED}
    refused = ProblemType("refused", exc.status_code, "What else the HTTP layer refuses.")
    detail = f"{request.method} {request.scope['path']}: {exc.detail}"
    return _answer(request, Problem(types.get(exc.status_code, refused), detail), exc.headers)


ANSWERS = {
    Problem: _answer_problem,
    StoreError: _answer_store_error,
    HTTPException: _answer_http_error,
}
"""What answers each error, as Starlette takes it."""
