"""The pages of the console that change something, and the list of what was changed.

Each change is asked for on one page and confirmed on another. The store writes who did it, in the
transaction of the change (see `store.acts`).

Rule for editors: a route here needs a token with all rights on all feeds, also at a publisher that
asks for no tokens. Rejected: changes without a token by whoever is on this machine. They may be
another user, who may not open the store's file, or a proxy that passes on what anybody asks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from zeh_spark.errors import StoreError
from zeh_spark.service.access.gate import Endpoint, actor_of, administers
from zeh_spark.service.console import retention_form
from zeh_spark.service.console.answers import seen_at
from zeh_spark.service.console.forms import field_of, form_of
from zeh_spark.service.console.pages import Console, number_in
from zeh_spark.service.retention.rules import next_step, words
from zeh_spark.service.store.acts import Act, ActFilter, Action, Via
from zeh_spark.service.store.batches import base
from zeh_spark.service.store.interface import Retention, Store
from zeh_spark.service.store.problems import Problem
from zeh_spark.wire import problems

ACTS = 50
"""Acts on a page."""


class ConsoleActs:
    """The pages that change something."""

    def __init__(self, console: Console, store: Store) -> None:
        self._console = console
        self._in_thread = console.in_thread
        self._store = store

    def routes(self) -> list[Route]:
        feed = "/feeds/{feed}"
        cursor_set = f"{feed}/delete-cursor-set"  # names may have any characters
        producer = f"{feed}/producers/{{producer}}/delete"
        return [
            self._route("/acts", self.acts),
            self._route(f"{feed}/retention", self.retention),
            self._route(f"{feed}/retention", self.set_retention, "POST"),
            self._route(cursor_set, self.ask_cursor_set),
            self._route(cursor_set, self.delete_cursor_set, "POST"),
            self._route(producer, self.ask_producer),
            self._route(producer, self.delete_producer, "POST"),
        ]

    async def acts(self, request: Request) -> Response:
        before = number_in(request, "before") or None
        found = await self._in_thread(self._store.acts, ActFilter(before=before), ACTS + 1)
        following = found[ACTS - 1].id if len(found) > ACTS else 0
        return self._console.page(
            request, "acts.html",
            acts=found[:ACTS], following=following, before=before, details_of=_details,
        )  # fmt: skip

    async def retention(self, request: Request) -> Response:
        feed = await self._feed(request)
        rule = await self._in_thread(self._store.retention, feed)
        fields = retention_form.texts(rule)
        return self._console.page(request, "retention.html", feed=feed, fields=fields, mistake="")

    async def set_retention(self, request: Request) -> Response:
        """Answer the form: show what would change, and change it once that is confirmed."""
        form = await form_of(request, self._console.sessions)
        feed = await self._feed(request)
        fields = {each: field_of(form, each) for each in retention_form.FIELDS}
        before = await self._in_thread(self._store.retention, feed)
        try:
            rule = retention_form.parsed(fields)
        except StoreError as exc:
            return self._console.page(
                request, "retention.html", 400, feed=feed, fields=fields, mistake=exc.what
            )
        if rule == before:
            return seen_at(request, f"/feeds/{feed}?done=same")
        seen = json.dumps(retention_form.texts(before))
        if form.get("before") == seen and form.get("confirmed"):
            by = actor_of(request, Via.CONSOLE)
            change = partial(self._store.set_retention, feed, rule, before=before, by=by)
            await self._in_thread(change)
            return seen_at(request, f"/feeds/{feed}?done=retention")
        step, is_all = await self._in_thread(next_step, self._store, feed, rule)
        return self._console.page(
            request, "confirm_retention.html",
            feed=feed,
            fields=fields,
            seen=seen,
            before=words(before),
            after=words(rule),
            removal=step,
            is_all=is_all,
        )  # fmt: skip

    async def ask_cursor_set(self, request: Request) -> Response:
        feed, name = await self._feed(request), request.query_params.get("name", "")
        rule = await self._in_thread(self._store.retention, feed)
        kept_cursors = await self._in_thread(self._store.saved_cursors, feed, name)
        return self._console.page(
            request, "confirm_cursor_set.html",
            feed=feed,
            name=name,
            is_there=bool(kept_cursors),
            is_waited_for=name in rule.readers,
        )  # fmt: skip

    async def delete_cursor_set(self, request: Request) -> Response:
        form = await form_of(request, self._console.sessions)
        feed, name = await self._feed(request), form.get("name", "")
        by = actor_of(request, Via.CONSOLE)
        is_done = await self._in_thread(self._store.delete_cursor_set, feed, name, by=by)
        return seen_at(request, f"/feeds/{feed}?done={'cursor-set' if is_done else 'same'}")

    async def ask_producer(
        self, request: Request, mistake: str = "", status: int = 200
    ) -> Response:
        feed, name = await self._feed(request), base(request.path_params["producer"])
        return self._console.page(
            request, "confirm_producer.html", status,
            feed=feed,
            name=name,
            is_there=await self._is_there(feed, name),
            mistake=mistake,
        )  # fmt: skip

    async def delete_producer(self, request: Request) -> Response:
        """Delete a producer for ever, if its name was typed to confirm it."""
        form = await form_of(request, self._console.sessions)
        feed, name = await self._feed(request), base(request.path_params["producer"])
        if not await self._is_there(feed, name):
            return await self.ask_producer(request)
        if field_of(form, "name") != name:
            mistake = "This is not the producer's name. Nothing was deleted."
            return await self.ask_producer(request, mistake, 400)
        by = actor_of(request, Via.CONSOLE)
        await self._in_thread(self._store.delete_producer, feed, name, by=by)
        return seen_at(request, f"/feeds/{feed}?done=producer")

    async def _is_there(self, feed: str, producer: str) -> bool:
        """Return whether a producer or a named batch of it has published, and is not deleted."""
        state = await self._in_thread(self._store.producer, feed, producer)
        if state.receipts:
            return not state.deleted
        # '#' sorts before all else in names
        following = await self._in_thread(self._store.producers, feed, producer, 1)
        return any(base(each.name) == producer and not each.deleted for each in following)

    async def _feed(self, request: Request) -> str:
        """Return the feed of a request. Raises UnknownFeedError if the store has none."""
        feed: str = request.path_params["feed"]
        await self._in_thread(self._store.feed, feed)
        return feed

    def _route(self, path: str, endpoint: Endpoint, method: str = "GET") -> Route:
        async def allowed(request: Request) -> Response:
            if not self._console.viewer(request).acts:
                raise Problem(
                    problems.FORBIDDEN,
                    "changes need a token with all rights: make one (zeh-spark token create NAME "
                    "--admin), or use the commands of zeh-spark on the publisher's machine",
                )
            return await endpoint(request)

        return self._console.route(path, allowed, administers, method)


def _details(act: Act) -> Iterator[tuple[str, str]]:
    """Yield what an act was about, by names; of a retention the fields that it changed."""
    if act.action == Action.SET_RETENTION:
        before, after = (
            retention_form.texts(Retention(**act.details[each])) for each in ("before", "after")
        )
        for name in after:
            if before[name] != after[name]:
                yield name, f"{before[name] or 'none'} → {after[name] or 'none'}"
        return
    for name, value in act.details.items():
        some = value if isinstance(value, list) else [value]
        yield name, ", ".join(each if isinstance(each, str) else json.dumps(each) for each in some)
