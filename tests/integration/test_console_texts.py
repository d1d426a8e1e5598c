"""Whatever texts come to the console: each route, each parameter and each field of a form."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import quote

import pytest
import requests

from tests.fix_publisher import open_feeds, token_of
from tests.postgresql import Server
from tests.scratch_store import ScratchStore
from zeh_spark.publisher import create_app
from zeh_spark.service.access.gate import Gate
from zeh_spark.service.store.token_rights import ADMIN
from zeh_spark.testing import running_publisher

CAMPAIGN = os.environ.get("HYPOTHESIS_PROFILE") == "campaign"
TEXTS = [
    "\0", "9" * 16, "-1", "%", "..", "a" * 300, "\u202e😀", "\r\nX-Header: y",
    "<script>alert(1)</script>", "\"'><img src=x onerror=alert(1)>",
]  # fmt: skip
THERE = {"feed": "orders", "producer": "till-1", "partition": "0"}
PARAMETERS = ("named", "after", "feed", "partition", "producer", "below", "before", "name", "back")
FIELDS = ("token", "back", "name", "age", "size", "readers", "names", "before", "confirmed")


def routes() -> list[tuple[str, str]]:
    app = create_app(ScratchStore(), console=True)
    found = [(each.path, each.methods or ()) for each in app.routes]
    return [
        (method, path)
        for path, methods in found
        if path.startswith("/console")
        for method in sorted({"GET", "POST"}.intersection(methods))
    ]


@dataclass(frozen=True)
class Visited:
    """A console, as an administrator.

    Attributes:
        base: The publisher's URL.
        session: What sends the administrator's token.
    """

    base: str
    session: requests.Session

    def ask(self, method: str, path: str, query: dict[str, str], form: dict[str, str]) -> None:
        answer = self.session.request(
            method, self.base + path, params=query, data=form or None,
            allow_redirects=False, timeout=30,
        )  # fmt: skip
        assert answer.status_code < 500, (method, path, query, form, answer.text)
        assert answer.status_code not in (401, 403) or path == "/console/sign-in"
        assert "<script" not in answer.text and "<img src=x" not in answer.text
        assert "X-Header" not in answer.headers


@pytest.fixture(scope="module")
def visited(postgresql_server: Server) -> Iterator[Visited]:
    """On PostgreSQL, which takes fewer texts than other stores."""
    url = postgresql_server.url(postgresql_server.create_database())
    with open_feeds(url, orders=2) as store, requests.Session() as session:
        text = token_of(store, *ADMIN, name="ada")
        session.headers.update({"Accept": "text/html", "Authorization": f"Bearer {text}"})
        app = create_app(store, gate=Gate(store), console=True)
        with running_publisher(store, app) as base:
            yield Visited(base, session)


@pytest.mark.parametrize(("method", "path"), routes())
def test_no_text_is_an_error_of_the_server(visited: Visited, method: str, path: str) -> None:
    """Nobody makes my log say that the store fails, nor a page that runs what he wrote."""
    form = dict.fromkeys(FIELDS, "") if method == "POST" else {}
    for slot in re.findall(r"{(\w+)}", path):
        for text in TEXTS:
            visited.ask(method, filled(path, {**THERE, slot: text}), {}, form)
    for number, parameter in enumerate(PARAMETERS):
        for text in some_texts(number):
            visited.ask(method, filled(path, THERE), {parameter: text}, form)
    for number, field in enumerate(FIELDS if form else ()):
        for text in some_texts(number):
            visited.ask(method, filled(path, THERE), {}, {**form, field: text})


def some_texts(number: int) -> list[str]:
    """A third of the texts, another one for the next place; all in a campaign."""
    return TEXTS if CAMPAIGN else TEXTS[number % 3 :: 3]


def filled(path: str, named: dict[str, str]) -> str:
    return re.sub(r"{(\w+)}", lambda found: quote(named[found[1]], safe=""), path)
