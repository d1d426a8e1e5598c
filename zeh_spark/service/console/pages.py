"""The pages of the console that only read, and signing in.

Rule for editors: each route says what it needs (`Gate.route`), and each page shows only what its
visitor may see (`Viewer`). The store is asked in a few threads of the console's own, so that pages
do not delay readers and writers. Runs in the publisher's event loop.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ParamSpec, TypeVar
from urllib.parse import urlencode

import anyio
import anyio.to_thread
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from zeh_spark.service.access.gate import (
    Endpoint,
    Gate,
    Needs,
    client_of,
    holder_of,
    knows_anything,
    note_token,
    nothing,
    reads,
    sees_feed,
    sees_producer,
)
from zeh_spark.service.console.answers import (
    ASSETS,
    PATH,
    asset,
    is_of_a_browser,
    page,
    problem_page,
    seen_at,
)
from zeh_spark.service.console.events import EVENTS, in_batches, newest
from zeh_spark.service.console.feed_facts import PARTITIONS, feed_view, producer_view
from zeh_spark.service.console.forms import check_texts, field_of, form_of
from zeh_spark.service.console.overview import overview
from zeh_spark.service.console.refusal_table import sides
from zeh_spark.service.console.sessions import Sessions
from zeh_spark.service.console.viewer import Viewer
from zeh_spark.service.reads.feed import Feed
from zeh_spark.service.store.interface import Store, UnknownFeedError
from zeh_spark.service.store.problems import Problem
from zeh_spark.service.telemetry.health import Readiness
from zeh_spark.service.telemetry.metrics import Metrics
from zeh_spark.service.telemetry.recent_refusals import RecentRefusals, Refusal
from zeh_spark.service.telemetry.store_gauges import StoreGauges
from zeh_spark.wire import problems

READERS = 2
"""Threads that ask the store for pages."""

REFUSALS = 3
"""Refusals on the first page and on that of a feed."""

REFRESH, REFRESH_SECONDS = "refresh", 30
"""What asks a page to load itself again, and how often. A visitor turns it on, so that nobody who
reads a page slowly loses it, and a session that nobody uses ends.
"""

DONE = {
    "cursor-set": "The cursor set is deleted.",
    "producer": "The producer is deleted.",
    "retention": "The retention is changed.",
    "same": "No change was needed.",
}
"""What the page of a feed says after a change, by the name in its address."""

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Console:
    """The pages of a publisher's console.

    Args:
        look: Has `gauges` be of now.
        limiter: The threads that ask the store.
    """

    gate: Gate
    store: Store | None
    tables: Mapping[str, Feed]
    metrics: Metrics
    kept_refusals: RecentRefusals
    readiness: Readiness
    look: Callable[[], Awaitable[None]]
    gauges: StoreGauges
    sessions: Sessions = field(default_factory=Sessions)
    limiter: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(READERS))

    def routes(self) -> list[Route]:
        feed, producer = "/feeds/{feed}", "/feeds/{feed}/producers/{producer}"
        return [
            self.route("", self.overview, knows_anything),
            self.route("/refusals", self.refusals, knows_anything),
            self.route(feed, self.feed, sees_feed),
            self.route(f"{feed}/partitions/{{partition}}", self.events, reads),
            self.route(f"{feed}/dead-letters", self.letters, reads),
            self.route(producer, self.producer, sees_producer),
            self.route("/sign-in", self.sign_in, nothing),
            self.route("/sign-in", self.signed_in, nothing, "POST"),
            self.route("/sign-out", self.sign_out, nothing, "POST"),
            *(self.route(f"/{name}", asset, nothing) for name in ASSETS),
        ]

    def route(self, path: str, endpoint: Endpoint, needs: Needs, method: str = "GET") -> Route:
        """Return a route of the console, whose requests may show a session instead of a token."""

        async def checked(request: Request) -> Response:
            check_texts([*request.path_params.items(), *request.query_params.items()])
            return await endpoint(request)

        return self.gate.route(
            PATH + path, checked, needs, methods=[method], credential=self.sessions.credential
        )

    # Pages

    async def overview(self, request: Request) -> Response:
        """Answer with all feeds, the consumers that are behind, and the last refusals."""
        await self.look()
        viewer, asked = self.viewer(request), request.query_params
        named, after = asked.get("named", ""), asked.get("after", "")
        found = await self.in_thread(
            overview, self.store, self.tables, self.gauges, viewer, named, after
        )
        return self.page(
            request, "overview.html",
            found=found,
            named=named,
            after=after,
            rates={each["name"]: self.metrics.rates.of(each["name"]) for each in found["rows"]},
            refusals=[(each, sides(each)) for each in self._seen(viewer)[:REFUSALS]],
            checks=await self.readiness.checks(),
            own=list(viewer.own_producers()) if not found["total"] else [],
        )  # fmt: skip

    async def refusals(self, request: Request) -> Response:
        feed = request.query_params.get("feed", "")
        seen = [each for each in self._seen(self.viewer(request)) if feed in ("", each.feed)]
        shown = [(each, sides(each)) for each in seen]
        return self.page(request, "refusals.html", refusals=shown, feed=feed)

    async def feed(self, request: Request) -> Response:
        viewer, name = self.viewer(request), request.path_params["feed"]
        await self.look()
        lags = [lag for feed, lag in self.gauges.lags() if feed == name]
        if name in self.tables:
            partitions = await self.in_thread(lambda: self.tables[name].partitions)
            return self.page(
                request, "table.html",
                feed=name,
                partitions=partitions,
                rate=self.metrics.rates.of(name),
                look=self.gauges.table(name),
                lags=[each for each in lags if viewer.sees_consumer(name, each.name)],
            )  # fmt: skip
        first, after = number_in(request, "partition"), request.query_params.get("producer", "")
        store = self._of_store(name)
        seen = [each for each in self._seen(viewer) if each.feed == name][:REFUSALS]
        return self.page(
            request, "feed.html",
            feed=name,
            found=await self.in_thread(feed_view, store, name, lags, viewer, first, after),
            rate=self.metrics.rates.of(name),
            repeated=self.metrics.repeated(name),
            refusals=[(each, sides(each)) for each in seen],
            first=first,
            after=after,
            step=PARTITIONS,
            done=DONE.get(request.query_params.get("done", "")),
        )  # fmt: skip

    async def producer(self, request: Request) -> Response:
        feed, name = request.path_params["feed"], request.path_params["producer"]
        below = number_in(request, "below")
        found = await self.in_thread(producer_view, self._of_store(feed), feed, name, below)
        return self.page(request, "producer.html", feed=feed, name=name, found=found)

    async def events(self, request: Request) -> Response:
        feed, text = request.path_params["feed"], request.path_params["partition"]
        store = self._of_store(feed)
        state = await self.in_thread(store.feed, feed)
        if not re.fullmatch(r"[0-9]{1,4}", text) or int(text) >= state.partitions:
            raise Problem(
                problems.BAD_PARAMETER,
                f"partition is {text!r}; the feed has 0 to {state.partitions - 1}",
                parameter="partition",
            )
        return self.page(
            request, "events.html",
            feed=feed,
            partition=int(text),
            partitions=state.partitions,
            events=in_batches(await self.in_thread(newest, store, feed, int(text), EVENTS)),
            most=EVENTS,
        )  # fmt: skip

    async def letters(self, request: Request) -> Response:
        feed = request.path_params["feed"]
        store = self._of_store(feed)
        events = await self.in_thread(newest, store, feed, None, EVENTS)
        letters = in_batches(each for each in events if each.letter)
        return self.page(request, "letters.html", feed=feed, letters=letters, looked_at=len(events))

    # Signing in

    async def sign_in(self, request: Request) -> Response:
        return self._sign_in_form(request, request.query_params.get("back", ""))

    async def signed_in(self, request: Request) -> Response:
        """Answer the form: begin a session if the token counts."""
        form = await form_of(request, self.sessions)
        text, back = field_of(form, "token"), form.get("back", "")
        try:
            token = await self.gate.token(request, f"Bearer {text}")
        except Problem as problem:
            if problem.type is not problems.UNAUTHORIZED:
                raise
            said = problem.detail if text else "Enter a token."
            return self._sign_in_form(request, back, said, status=401)
        answer = seen_at(request, _back(back))
        if token:
            note_token(request, token)
        self.sessions.begin(request, answer, text, client_of(request))
        return answer

    async def sign_out(self, request: Request) -> Response:
        await form_of(request, self.sessions)
        answer = seen_at(request, "/sign-in")
        self.sessions.end(request, answer)
        return answer

    def _sign_in_form(
        self, request: Request, back: str, mistake: str = "", status: int = 200
    ) -> Response:
        return page(
            request, "sign_in.html", status,
            form_key=self.sessions.form_key(request), back=_back(back), mistake=mistake,
        )  # fmt: skip

    # What all pages need

    def problem(
        self, request: Request, problem: Problem, headers: Mapping[str, str], request_id: str
    ) -> Response | None:
        """Return the page for a problem; None if the request is not a browser's for a page."""
        if not is_of_a_browser(request):
            return None
        return problem_page(request, problem, headers, request_id, self.sessions.form_key(request))

    def viewer(self, request: Request) -> Viewer:
        return Viewer(holder_of(request))

    def page(self, request: Request, template: str, status: int = 200, **shown: Any) -> Response:
        """Return a page for a visitor who was let through (see `answers.page`)."""
        viewer = self.viewer(request)
        asked = {name: text for name, text in request.query_params.items() if name != "done"}
        refreshes = asked.pop(REFRESH, None) is not None
        return page(
            request, template, status,
            viewer=viewer,
            refreshes=refreshes,
            refresh_seconds=REFRESH_SECONDS,
            turned=urlencode(asked if refreshes else {**asked, REFRESH: "on"}),
            lags_of=self.metrics.rates.lags_of,
            may_act=viewer.acts and self.store is not None,
            form_key=self.sessions.form_key(request),
            **shown,
        )  # fmt: skip

    def in_thread(self, call: Callable[P, T], *args: P.args, **named: P.kwargs) -> Awaitable[T]:
        return anyio.to_thread.run_sync(partial(call, *args, **named), limiter=self.limiter)

    def _of_store(self, feed: str) -> Store:
        if self.store is None or feed in self.tables:
            raise UnknownFeedError(
                f"there is no feed {feed!r} in a store here", anchor="unknown-feed"
            )
        return self.store

    def _seen(self, viewer: Viewer) -> list[Refusal]:
        return [
            each
            for each in self.kept_refusals.newest()
            if viewer.sees_producer(each.feed, each.producer)
        ]


def number_in(request: Request, name: str) -> int:
    """Return a number in the query; 0 without one. Raises Problem if it is no number."""
    text = request.query_params.get(name, "0")
    if not re.fullmatch(r"[0-9]{1,16}", text):
        raise Problem(
            problems.BAD_PARAMETER, f"{name} is {text!r}, and has to be a number", parameter=name
        )
    return int(text)


def _back(path: str) -> str:
    """Return a path of the console, below its root; "" for any other text."""
    return path if re.fullmatch(r"(/[A-Za-z0-9._~%:@#-]+)*", path) and ".." not in path else ""
