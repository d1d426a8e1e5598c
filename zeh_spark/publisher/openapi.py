"""The whole HTTP API of the publisher as one OpenAPI 3.1 document, exact enough to write a client
from it alone.

Its parts are in `openapi_read`, `openapi_publish`, `openapi_problems` and `openapi_rules`, made of
the constants of the code that they describe. Rule for editors: what changes an answer changes the
document; tests/unit/publisher/test_openapi.py compares routes, parameters, problems and examples
with the code, tests/integration/test_openapi.py has a client that knows nothing else. Pure.
"""

from __future__ import annotations

from typing import Any

import zeh_spark
from zeh_spark.publisher import (
    openapi_problems,
    openapi_publish,
    openapi_read,
    openapi_rules,
)
from zeh_spark.publisher.openapi_parts import TEXT, Schema, in_path, json_answer

PATH = "/openapi.json"


def document(mounted: str = "", *, publishing: bool = True) -> dict[str, Any]:
    """Ready to be encoded as JSON. `mounted`: the path below which the app is, if any;
    `publishing`: whether it takes batches.
    """
    feed = in_path("feed", TEXT, "The feed's name.")
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "ZeroEventHub publisher of zeh-spark",
            "version": zeh_spark.__version__,
            "description": openapi_rules.GENERAL.strip(),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": mounted or "/", "description": "the server that this document is of"}],
        "tags": [
            {"name": "Reading", "description": openapi_read.RULES.strip()},
            {"name": "Publishing", "description": openapi_rules.PUBLISHING.strip()},
            {"name": "About", "description": "The publisher itself."},
        ],
        "paths": {
            "/{feed}": openapi_read.path(),
            **(openapi_publish.paths() if publishing else {}),
            PATH: _self(),
        },
        "components": {
            "parameters": {"feed": feed, **openapi_publish.parameters()},
            "schemas": {
                **openapi_read.schemas(),
                **openapi_publish.schemas(),
                **openapi_problems.schemas(),
            },
            "responses": {"other": openapi_problems.OTHER},
            "examples": openapi_rules.EXAMPLES,
        },
    }


def _self() -> Schema:
    return {
        "get": {
            "tags": ["About"],
            "operationId": "openapi",
            "summary": "This document",
            "responses": {"200": json_answer({"type": "object"}, "OpenAPI 3.1.")},
        }
    }
