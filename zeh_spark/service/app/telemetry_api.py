"""The addresses at which a publisher tells about itself: /, /healthz, /readyz and /metrics.

Rule for editors: a stranger learns whether the publisher is alive and ready, and nothing else:
details name addresses, feeds and consumers. Runs in the publisher's event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import anyio
import anyio.to_thread
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import zeh_spark
from zeh_spark.errors import ZeroEventHubError
from zeh_spark.service.access.gate import Gate, holder_of, knows_anything, nothing, watches
from zeh_spark.service.app.answers import json_answer
from zeh_spark.service.reads.feed import Feed
from zeh_spark.service.store.interface import Store
from zeh_spark.service.store.token_rights import Need, Right
from zeh_spark.service.telemetry.health import PATIENCE_SECONDS, Readiness
from zeh_spark.service.telemetry.metrics import Metrics
from zeh_spark.service.telemetry.rare_log import RareLog
from zeh_spark.service.telemetry.store_gauges import StoreGauges
from zeh_spark.wire.problems import SERVER

log = logging.getLogger("zeh_spark.publisher")

GAUGE_SECONDS, GAUGE_PATIENCE = 2.0, 5.0
"""Seconds for which a look at the store counts, and for which somebody waits for one. Prometheus
waits 10 s for an answer.
"""


@dataclass(eq=False)
class TelemetryApi:
    """The calls with which a publisher is watched."""

    _gate: Gate
    _readiness: Readiness
    _metrics: Metrics
    _gauges: StoreGauges
    _store: Store | None
    _tables: Mapping[str, Feed]

    def __post_init__(self) -> None:
        self._metrics.registry.register(self._gauges)
        self._rare = RareLog(log)
        self._limiter = anyio.CapacityLimiter(1)
        self._looked = float("-inf")
        self._looking: asyncio.Task[None] | None = None

    def routes(self) -> list[Route]:
        root = [] if "" in self._tables else ["/"]  # there one feed is served alone
        return [
            *(self._gate.route(each, self.index, knows_anything, methods=["GET"]) for each in root),
            self._gate.route("/healthz", self.healthz, nothing, methods=["GET"]),
            self._gate.route("/readyz", self.readyz, nothing, methods=["GET"]),
            self._gate.route("/metrics", self.metrics, watches, methods=["GET"]),
        ]

    async def index(self, request: Request) -> Response:
        """Answer GET /: what this is, and the feeds that the caller may read."""
        token = holder_of(request)
        feeds = await anyio.to_thread.run_sync(self._listed, limiter=self._limiter)
        if token:
            feeds = [each for each in feeds if token.may(Need(Right.READ, str(each["name"])))]
        told = {"server": SERVER, "version": zeh_spark.__version__, "feeds": feeds}
        return json_answer(told)

    def _listed(self) -> list[dict[str, object]]:
        stored = self._store.feeds() if self._store else ()
        found = {each.name: (each.partitions, True) for each in stored}
        found |= {name: (feed.partitions, False) for name, feed in self._tables.items()}
        return [
            {"name": name, "partitions": partitions, "takesBatches": takes}
            for name, (partitions, takes) in sorted(found.items())
        ]

    async def healthz(self, request: Request) -> Response:
        """Answer GET /healthz: the process is alive, because it answers."""
        return json_answer({"status": "ok"})

    async def readyz(self, request: Request) -> Response:
        """Answer GET /readyz: 200 if the publisher is ready, 503 if it is not."""
        checks = await self._readiness.checks()
        is_ready = all(each.ok or not each.vital for each in checks)
        told: dict[str, object] = {"status": "ready" if is_ready else "not ready"}
        if await self._sees_details(request):
            told["checks"] = {each.name: {"ok": each.ok, "detail": each.detail} for each in checks}
        return json_answer(told, 200 if is_ready else 503)

    async def metrics(self, request: Request) -> Response:
        """Answer GET /metrics: what was counted here, and what the store says."""
        await self.look()
        render = partial(generate_latest, self._metrics.registry)
        return Response(
            await anyio.to_thread.run_sync(render),
            media_type=CONTENT_TYPE_LATEST,
            headers={"Cache-Control": "no-store"},
        )

    async def look(self) -> None:
        """Have the gauges look at the tables and the store, unless they did so just now."""
        self._gauges.tables_up = await self._readiness.tables_up()
        if time.monotonic() - self._looked > GAUGE_SECONDS:
            self._looking = self._looking or asyncio.create_task(self._look())
            await asyncio.wait({self._looking}, timeout=GAUGE_PATIENCE)
        self._metrics.rates.note_lags(self._gauges.lags())

    async def _look(self) -> None:
        """Look at the store. A failure is a gauge, too."""
        begun = time.monotonic()
        try:
            feeds = await anyio.to_thread.run_sync(self._gauges.look, limiter=self._limiter)
            self._metrics.know(feeds)
        except ZeroEventHubError as exc:
            self._rare.warning("metrics", "the metrics of the store are not known: %s", exc)
        finally:
            self._looked, self._looking = begun, None

    async def _sees_details(self, request: Request) -> bool:
        try:
            with anyio.fail_after(PATIENCE_SECONDS):
                await self._gate.check(request, watches)
        except (ZeroEventHubError, TimeoutError):  # no right; or the store does not tell the tokens
            return False
        return True
