"""The health check of the container: exit with 0 if the publisher answers, else with 1.

An answer shows that the process is alive. Whether it wants more requests is another question, which
its load balancer asks (/readyz). It uses only what Python brings, so that it costs little.
"""

from __future__ import annotations

import http.client
import os
import ssl
import sys

SECONDS = 4


def is_healthy() -> bool:
    """Return whether the publisher of this container answers."""
    port = int(os.environ.get("ZEH_PORT", "8080"))
    try:
        if not os.environ.get("ZEH_TLS_CERT"):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
        else:
            # It asks itself, and its certificate is for another name.
            connection = http.client.HTTPSConnection(
                "127.0.0.1", port, timeout=SECONDS, context=ssl._create_unverified_context()
            )
        connection.connect()
        if os.environ.get("ZEH_TLS_CLIENT_CA"):
            return True  # it has no certificate to show, so it gets no further
        connection.request("GET", "/healthz")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False


if __name__ == "__main__":
    sys.exit(0 if is_healthy() else 1)
