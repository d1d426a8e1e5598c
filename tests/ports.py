"""Ports for servers that are told theirs before they start."""

import random
import socket
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port() -> int:
    """Return a free port of 127.0.0.1 outside of the range for outgoing connections.

    Spark, gRPC and clients take ports of that range at any time, also between this call and the
    start of the server.
    """
    below = int(_RANGE.read_text().split()[0]) if _RANGE.exists() else 49152
    for port in random.sample(range(10_000, below), 100):
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port
    raise OSError(f"no free port found from 10000 to {below}")
