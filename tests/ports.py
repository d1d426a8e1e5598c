"""Ports for servers that are told theirs before they start."""

import random
import socket
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port() -> int:
    """Return a port of 127.0.0.1 that is free, and that the system gives to nobody who asks for
    any: Spark, gRPC and clients take those all the time, also before a server has started.
    """
    below = int(_RANGE.read_text().split()[0]) if _RANGE.exists() else 49152
    for port in random.sample(range(10_000, below), 100):
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port
    raise OSError(f"no free port found from 10000 to {below}")
