"""The answers of the console: rendered pages, with the headers that every one of them has.

Rule for editors: pages work under this content security policy. They have no scripts, no styles
within, and nothing of other servers.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import jinja2
from starlette.requests import Request
from starlette.responses import Response

import zeh_spark
from zeh_spark.service.console import text
from zeh_spark.service.console.sparkline import HEIGHT, WIDTH, sparkline
from zeh_spark.service.store.interface import now_ms
from zeh_spark.service.store.problems import Problem
from zeh_spark.wire.phrases import size_of
from zeh_spark.wire.problems import UNAUTHORIZED

PATH = "/console"

ASSETS = {"style.css": "text/css; charset=utf-8", "icon.svg": "image/svg+xml"}
"""The types of files that pages need."""

HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; img-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""The headers of each answer.

`same-origin` tells other sites as little as `no-referrer`. With `no-referrer`, browsers send
`Origin: null` with forms, which the gate refuses.
"""


def page(
    request: Request,
    template: str,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    **shown: Any,
) -> Response:
    root = request.scope.get("root_path", "") + PATH
    html = _environment().get_template(template).render(root=root, **{"now": now_ms(), **shown})
    return Response(
        html, status, headers={**HEADERS, **(headers or {})}, media_type="text/html; charset=utf-8"
    )


async def asset(request: Request) -> Response:
    """Answer with one of ASSETS, which the last part of the path names."""
    name = request.url.path.rpartition("/")[2]
    content = _environment().get_template(name).render()
    return Response(content, headers=HEADERS, media_type=ASSETS[name])


def seen_at(request: Request, path: str) -> Response:
    """Return the answer that leads a browser to another page of the console."""
    target = f"{request.scope.get('root_path', '')}{PATH}{path}"
    return Response(status_code=303, headers={**HEADERS, "Location": target})


def is_of_a_browser(request: Request) -> bool:
    """Return whether a request asks for a page of the console, rather than for JSON."""
    path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
    is_here = path == PATH or path.startswith(f"{PATH}/")
    return is_here and "text/html" in request.headers.get("accept", "")


def problem_page(
    request: Request, problem: Problem, headers: Mapping[str, str], request_id: str, form_key: str
) -> Response:
    """Return the page that a browser gets instead of a problem document."""
    if problem.type is UNAUTHORIZED:
        asked = request.scope["path"].removeprefix(request.scope.get("root_path", "") + PATH)
        back = asked if request.method == "GET" else ""
        return page(
            request, "sign_in.html", problem.status, headers,
            form_key=form_key, back=back, mistake="",
        )  # fmt: skip
    return page(
        request, "problem.html", problem.status, headers, problem=problem, request_id=request_id
    )


@cache
def _environment() -> jinja2.Environment:
    found = jinja2.Environment(
        loader=jinja2.PackageLoader("zeh_spark.service.console"),
        autoescape=True,
        finalize=text.safe,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    found.filters.update(
        count=lambda number: f"{number:,}",
        size=size_of,
        lasting=text.lasting,
        moment=text.moment,
        machine_moment=text.machine_moment,
        visible=text.visible,
        sparkline=sparkline,
    )
    found.globals.update(version=zeh_spark.__version__, chart_width=WIDTH, chart_height=HEIGHT)
    return found
