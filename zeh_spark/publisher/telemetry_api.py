"""The addresses at which a publisher tells about itself: /healthz, /readyz and /metrics.

Rule for editors: a stranger learns whether the publisher is alive and ready, and nothing else:
details name addresses, feeds and consumers. Runs in the publisher's event loop.
"""

from __future__ import annotations

import anyio
import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from zeh_spark.errors import ZeroEventHubError
from zeh_spark.publisher.access import Gate, nothing, watches
from zeh_spark.telemetry.health import PATIENCE_SECONDS, Readiness


class TelemetryApi:
    """The calls with which a publisher is watched.

    Args:
        gate: Who may see details.
        readiness: Whether the publisher is ready.
    """

    def __init__(self, gate: Gate, readiness: Readiness) -> None:
        self._gate = gate
        self._readiness = readiness

    def routes(self) -> list[Route]:
        """Return the routes of all calls."""
        return [
            self._gate.route("/healthz", self.healthz, nothing, methods=["GET"]),
            self._gate.route("/readyz", self.readyz, nothing, methods=["GET"]),
        ]

    async def healthz(self, request: Request) -> Response:
        """Answer GET /healthz: the process is alive, because it answers."""
        return _json({"status": "ok"})

    async def readyz(self, request: Request) -> Response:
        """Answer GET /readyz: 200 if the publisher is ready, 503 if it is not."""
        checks = await self._readiness.checks()
        is_ready = all(each.ok for each in checks)
        told: dict[str, object] = {"status": "ready" if is_ready else "not ready"}
        if await self._sees_details(request):
            told["checks"] = {each.name: {"ok": each.ok, "detail": each.detail} for each in checks}
        return _json(told, 200 if is_ready else 503)

    async def _sees_details(self, request: Request) -> bool:
        try:
            with anyio.fail_after(PATIENCE_SECONDS):
                await self._gate.check(request, watches)
        except (ZeroEventHubError, TimeoutError):  # no right; or the store does not tell the tokens
            return False
        return True


def _json(value: object, status: int = 200) -> Response:
    return Response(
        msgspec.json.encode(value),
        status_code=status,
        media_type="application/json",
        headers={"Cache-Control": "no-store"},
    )
