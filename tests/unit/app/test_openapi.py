"""The description of the API says what the code does: compared with the code itself."""

from __future__ import annotations

import ast
import base64
import hashlib
import io
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import requests
import urllib3
import xxhash

from tests.cases import each_case
from tests.scratch_store import ScratchStore
from zeh_spark.client.http import responses
from zeh_spark.errors import PublisherError
from zeh_spark.publisher import create_app
from zeh_spark.service.app import openapi, read_requests, upload_validation
from zeh_spark.service.app.openapi import PATH, document
from zeh_spark.service.store.batches import StoredReceipt, chained
from zeh_spark.wire import page_headers, partitioning, problems, upload_format, wire
from zeh_spark.wire.option_values import FeedUrl
from zeh_spark.wire.problems import PROBLEMS

PACKAGE = Path(read_requests.__file__).parents[1]
DOCUMENT = document()
OPERATIONS = {
    (path, method): operation
    for path, item in DOCUMENT["paths"].items()
    for method, operation in item.items()
    if method != "parameters"
}
EXAMPLES = {name: each["value"] for name, each in DOCUMENT["components"]["examples"].items()}


def test_it_is_valid_openapi():
    """Any tool can read it as it is served: limits, schemas, answers, not how it is written."""
    from openapi_spec_validator import OpenAPIV31SpecValidator  # slow to import

    text = json.dumps(DOCUMENT)
    assert [] == list(OpenAPIV31SpecValidator(DOCUMENT).iter_errors())
    assert DOCUMENT == json.loads(text)
    assert [] == [each for each in ("${", "x-lists", "x-struct", "x-problems") if each in text]


def test_a_limit_is_the_one_of_the_code(monkeypatch):
    """A limit that is changed is described at once."""
    monkeypatch.setattr(read_requests, "MAX_N", 17)
    monkeypatch.setattr(openapi, "_loaded", openapi._loaded.__wrapped__)
    n = openapi.document()["paths"]["/{feed}"]["get"]["parameters"][0]
    assert ("n", 17) == (n["name"], n["schema"]["maximum"])


@each_case("mounted", ["", "/feeds"])
def test_the_server_is_where_the_app_is_mounted(mounted):
    """Addresses are right behind a prefix, too."""
    assert [mounted or "/"] == [each["url"] for each in document(mounted)["servers"]]


def test_an_app_that_takes_no_batches_does_not_describe_them():
    own = {"/", "/healthz", "/readyz", "/metrics", PATH}
    of_a_feed = {f"/{{feed}}{each}" for each in ("", "/plan", "/chunks", "/cursors", "/schema")}
    assert of_a_feed | own == document(publishing=False)["paths"].keys()


def test_every_reference_leads_somewhere_and_every_component_is_referred_to():
    """Nothing is described that no call has, but for what any call may be answered with."""
    assert [] == [each for each in references(DOCUMENT) if found(each) is None]
    names = {
        f"#/components/{kind}/{name}"
        for kind, components in DOCUMENT["components"].items()
        for name in components
        if kind not in ("examples", "securitySchemes")
    }
    assert {"#/components/schemas/problem-method-not-allowed"} == names - set(references(DOCUMENT))


def test_every_route_is_described_and_every_description_routed():
    routed = {
        (route.path.replace(":path", ""), method.lower())
        for route in create_app(ScratchStore()).routes
        for method in route.methods - {"HEAD"}
    }
    assert routed | {(PATH, "get")} == OPERATIONS.keys()


def test_every_parameter_is_described():
    """I know how to fill an address in, and I see all that a feed can be asked."""
    for path, item in DOCUMENT["paths"].items():
        named = [found(each["$ref"])["name"] for each in item.get("parameters", [])]
        assert re.findall(r"{(\w+)}", path) == named
    described = {each["name"] for each in OPERATIONS["/{feed}", "get"]["parameters"]}
    headers = {wire.CONSUMER_HEADER, page_headers.TELL, page_headers.PROXY_TIME, "If-None-Match"}
    assert read_requests._KNOWN | {"cursorN"} | headers == described


def test_every_problem_that_is_raised_is_described_and_no_other():
    """A program can be written against their types. Statuses are the types' own."""
    assert {name for name, _ in problems_raised()} == PROBLEMS.keys()


def test_problems_have_the_members_that_are_described():
    """A program finds the facts without reading the sentence."""
    always, ever = {}, defaultdict(set)
    for name, members in problems_raised():
        always[name] = always.get(name, members) & members
        ever[name] |= members
    described = {name: set(each.members) for name, each in PROBLEMS.items()}
    optional = {name: set(each.optional) for name, each in PROBLEMS.items()}
    always["cursor-gone"] -= {"lost"}  # feeds of other services may not tell it
    assert described == ever
    assert optional == {name: ever[name] - always[name] for name in ever}


def test_what_is_tried_again_is_what_our_own_client_tries_again():
    described = DOCUMENT["components"]["schemas"]
    again = {name for name in PROBLEMS if described[f"problem-{name}"]["x-retry"]}
    assert again == {name for name, each in PROBLEMS.items() if is_tried_again(each)}


def test_content_example_is_computed_right():
    """I can test my digest against it: with the library alone, and as the publisher does it."""
    example = EXAMPLES["content"]
    rests = [line.partition(",")[2].encode() for line in example["lines"]]
    hashes = [xxhash.xxh3_128_hexdigest(rest) for rest in rests]
    total = sum(int(each, 16) for each in hashes)
    content = upload_format.content_of(rests)
    assert total >= 1 << 128  # or it would not show what happens then
    assert example == {
        "lines": example["lines"],
        "rests": [rest.decode() for rest in rests],
        "xxh3_128": hashes,
        "events": content.events,
        "digest": f"{total % (1 << 128):032x}",
    }
    assert content.digest == example["digest"]


def test_upload_example_is_that_batch():
    """I can test my uploads against it; the publisher takes it."""
    example = EXAMPLES["upload"]
    body = base64.b64decode(example["body, base64"])
    digest = base64.b64encode(hashlib.sha256(body).digest()).decode()
    assert example["index"] == body.split(b"\n")[0].decode()
    assert example["Content-Digest"] == f"sha-256=:{digest}:"
    upload, *_ = upload_validation.verified_upload(body, 0, 0, 0, 2)
    assert EXAMPLES["content"]["digest"] == upload.content.digest
    lines = b"".join(upload_format.lines_of(each.frame) for each in upload.chunks).decode()
    assert EXAMPLES["content"]["lines"] == lines.splitlines()


def test_key_example_is_computed_right():
    """My keys go where those of every other writer go."""
    example = EXAMPLES["key"]
    number = xxhash.xxh3_64_intdigest(example["key"].encode())
    assert (example["xxh3_64"], example["partition"]) == (f"{number:016x}", number % example["n"])
    assert example["partition"] == partitioning.partition_of(example["key"], example["n"])


def test_receipts_example_is_a_chain():
    """I can test my check of the chain against it."""
    first, second = EXAMPLES["receipts"]["receipts"]
    hashed = EXAMPLES["receipts"]["hashed"]
    assert hashed == json.dumps({**second, "hash": ""}, sort_keys=True, separators=(",", ":"))
    assert second["hash"] == hashlib.sha256(hashed.encode()).hexdigest()
    computed = [chained(msgspec.convert(each, StoredReceipt)) for each in (first, second)]
    assert [first["hash"], second["hash"]] == computed
    assert ("", first["hash"]) == (first["previous"], second["previous"])


def test_receipt_has_the_members_that_are_described():
    """Whoever hashes a receipt knows all of it."""
    described = DOCUMENT["components"]["schemas"]["Receipt"]["properties"]
    assert [field.encode_name for field in msgspec.structs.fields(StoredReceipt)] == [*described]


def references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        for key, value in part.items():
            yield from [value] if key == "$ref" else references(value)
    elif isinstance(part, list):
        for value in part:
            yield from references(value)


def found(reference: str) -> Any:
    part: Any = DOCUMENT
    for name in reference.removeprefix("#/").split("/"):
        part = part.get(name, {})
    return part or None


def problems_raised() -> Iterator[tuple[str, set[str]]]:
    """Name and members of each, wherever the publisher's source makes one."""
    types = {
        constant: each
        for constant, each in vars(problems).items()
        if isinstance(each, problems.ProblemType)
    }
    of_refusals = {"producer", "incarnation", "run", "batch", "remedy"}
    calls = [
        call
        for folder in ("access", "app", "network", "outbox", "reads", "store")
        for path in sorted((PACKAGE / folder).glob("*.py"))
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call)
    ]
    for call in calls:
        function = str(getattr(call.func, "id", getattr(call.func, "attr", "")))
        members = {each.arg for each in call.keywords if each.arg}
        made = types.get(getattr(call.args[0], "attr", "")) if call.args else None
        if function == "_refused" and made:
            yield made.name, of_refusals | members
        elif function == "invalid":
            yield problems.INVALID_UPLOAD.name, members
        elif function == "Problem" and made and all(each.arg for each in call.keywords):
            # a call that passes members on is left out: who calls it names them
            yield made.name, members
            if "feed" in made.optional:  # the app adds what the feed tells
                yield made.name, members | {"feed"}
    app = ast.parse((PACKAGE / "app" / "problem_answers.py").read_text(encoding="utf-8"))
    for table in (each for each in ast.walk(app) if isinstance(each, ast.Dict)):
        for value in table.values:  # those of the HTTP layer, by status
            if made := types.get(getattr(value, "attr", "")):
                yield made.name, set()


def is_tried_again(kind: problems.ProblemType) -> bool:
    """As our client sees an answer."""
    answer = requests.Response()
    answer.request = requests.Request("GET", "http://127.0.0.1/orders").prepare()
    document = json.dumps({"type": kind.type}).encode()
    answer.status_code, answer.raw = (
        kind.status,
        urllib3.HTTPResponse(io.BytesIO(document), preload_content=False),
    )
    try:
        responses.check_status(answer, FeedUrl("http://127.0.0.1/orders"))
    except responses.TransientError:
        return True
    except PublisherError:
        return False
    raise AssertionError(kind.status)
