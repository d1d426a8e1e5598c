"""Schemathesis calls a publisher with whatever its OpenAPI document allows, and with what it does
not allow. Each answer has to be as the document says.

The calls of a test are always the same, so that a failure can be repeated. With
HYPOTHESIS_PROFILE=campaign there are many more, and others each time.
"""

from __future__ import annotations

import base64
import functools
import json
import os
import re
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fix_publisher import Publisher
from zeh_spark.service.app.openapi import document

if TYPE_CHECKING:  # it takes a second in each process
    from schemathesis import Case

CAMPAIGN = os.environ.get("HYPOTHESIS_PROFILE") == "campaign"
CALLS = settings(
    max_examples=300 if CAMPAIGN else 8,
    derandomize=not CAMPAIGN,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
DOCUMENT = document()
OPERATIONS = [
    (method, path)
    for path, item in DOCUMENT["paths"].items()
    for method in item
    if method != "parameters"
]
READ, PLAN, CHUNKS = ("get", "/{feed}"), ("post", "/{feed}/plan"), ("post", "/{feed}/chunks")
CURSORS = ("get", "/{feed}/cursors")
ACCESS = ("get", "/{feed}/access")  # in which nothing can be wrong
MEDIA_TYPE = "application/vnd.zeroeventhub.upload"
EXAMPLE = DOCUMENT["components"]["examples"]["upload"]["value"]["body, base64"]


@functools.cache
def operations() -> dict[tuple[str, str], Any]:
    """What Schemathesis makes of the document, which takes it a while."""
    import schemathesis

    schemathesis.openapi.media_type(
        MEDIA_TYPE, st.sampled_from([b"[]\n", base64.b64decode(EXAMPLE)])
    )
    schemathesis.serializer(MEDIA_TYPE)(lambda context, body: body)
    described = document()
    for method, path in OPERATIONS:
        operation = described["paths"][path][method]
        given_by_http = {"$ref": "#/components/parameters/Content-Length"}
        parameters = operation.get("parameters", [])
        operation["parameters"] = [each for each in parameters if each != given_by_http]
    found = [each.ok() for each in schemathesis.openapi.from_dict(described).get_all_operations()]
    return {(each.method, each.path): each for each in found}


@pytest.fixture(scope="module")
def base(quiet_publisher: Publisher) -> str:
    """A publisher whose feed has a schema and events, and a producer with receipts."""
    quiet_publisher.store.set_schema("orders", b"{}")
    quiet_publisher.publish(*range(10))
    quiet_publisher.publish()
    operations()
    return quiet_publisher.base


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_a_call_that_is_allowed_is_answered_as_described(base: str, method: str, path: str) -> None:
    """I send what the document allows, and my call is taken, or refused for a described reason."""
    from schemathesis import GenerationMode
    from schemathesis.specs.openapi.checks import positive_data_acceptance

    # Which cursors are needed, and that not both they and resume are, is said in words only.
    by_words = (method, path) in {READ, PLAN, CHUNKS}
    excluded = [positive_data_acceptance] if by_words else []
    cases = operations()[method, path].as_strategy(GenerationMode.POSITIVE)

    @CALLS
    @given(case=cases, known=st.booleans())
    def call(case: Case, known: bool) -> None:
        to_our_feed(case)
        keep_what_words_say(case)
        if known:
            to_what_is_there(case)
        case.validate_response(case.call(base, timeout=30), excluded_checks=excluded)

    call()


@pytest.mark.parametrize(
    ("method", "path"), [each for each in OPERATIONS if "{" in each[1] and each != ACCESS]
)
def test_a_call_that_is_not_allowed_is_refused_as_described(
    base: str, method: str, path: str
) -> None:
    """I make a mistake, and learn which one. It is never an error of the server."""
    from schemathesis import GenerationMode

    cases = operations()[method, path].as_strategy(GenerationMode.NEGATIVE)

    @CALLS
    @given(case=cases)
    def call(case: Case) -> None:
        to_our_feed(case)
        case.validate_response(case.call(base, timeout=30))

    call()


def to_our_feed(case: Case) -> None:
    """Have a call ask the feed that there is, and not wait for events."""
    if "feed" in case.path_parameters:
        case.path_parameters["feed"] = "orders"
    if re.fullmatch(r"[0-9.]+", str(case.query.get("wait"))):
        case.query["wait"] = 0
    if isinstance(case.body, dict) and "wait" in case.body:
        case.body["wait"] = 0


def to_what_is_there(case: Case) -> None:
    """Have a call read what there is, or publish the first batch of a new producer."""
    if (case.method.lower(), case.path) == READ:
        wanted = {"headers": case.query["headers"]} if "headers" in case.query else {}
        case.query = {"n": 2, "cursor0": "_first", "cursor1": "_last", **wanted}
    if "producer" in case.path_parameters and case.method == "GET":
        case.path_parameters["producer"] = "test"  # that of zeh_spark.testing.publish
        case.query.pop("incarnation", None)
    if "batch" in case.path_parameters:
        case.path_parameters["batch"] = 0
        case.query.update({"n": 2} if "n" in case.query else {})
    if (case.method.lower(), case.path) == PLAN:
        limits = {name: case.body[name] for name in ("maxEvents", "wait") if name in case.body}
        case.body = {"n": 2, "cursors": {"0": "_first", "1": "_last"}, **limits}
    if isinstance(case.body, dict) and "attempts" in case.body:
        case.body.update(events=0, digest="0" * 32, attempts=[])


def keep_what_words_say(case: Case) -> None:
    """Have a call keep the rules that a schema cannot have: how large a number within a text may
    be, that a time has passed, that integers have no fraction, and that a commit names a task
    once, and starting numbers a partition that there is; what a request for cursors needs; and
    that `only` is JSON.
    """
    awaits = {"await", "cursorset"} <= case.query.keys()
    if (case.method.lower(), case.path) == CURSORS and not awaits:
        case.query = {"n": 2, "time": 0, **case.query}
        case.query.pop("await", None)
    if "wait" in case.query:
        case.query["wait"] = 0
    if "only" in case.query:
        case.query["only"] = json.dumps({"type": [str(case.query["only"])[:100]]})
    if "startingSequence" in case.query:
        case.query["startingSequence"] = f"0:{len(str(case.query['startingSequence']))}"
    for container, name in ((case.path_parameters, "upload"), (case.query, "attempt")):
        if name in container:
            container[name] = re.sub(r"(?<=[.])\d{10,}|^\d{10,}(?=[.])", "7", container[name])
    if case.query.get("time"):  # one that has passed
        case.query["time"] = int(case.query["time"]) % 10**12
    if isinstance(case.body, dict):
        case.body = without_fractions(case.body)
        if "attempts" in case.body:
            case.body["attempts"] = case.body["attempts"][:1]


def without_fractions(value: Any) -> Any:
    """Return a JSON value in which 7.0 is written as 7."""
    if isinstance(value, dict):
        return {name: without_fractions(member) for name, member in value.items()}
    if isinstance(value, list):
        return [without_fractions(member) for member in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
