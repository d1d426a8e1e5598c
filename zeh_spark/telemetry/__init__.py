"""What a publisher tells about itself: its health, its metrics, and its log.

`exchange` is what is known of one request, `health` and `metrics` are what is asked for at
/readyz and /metrics (`publisher.telemetry_api`), `lag` is how far consumers are behind, `logs` is
how log lines are written. Runs in the publisher's process.

Rule for editors: nothing here may refuse a request, or fail one. Values that a client chooses
become labels of metrics only if the store knows them.
"""

from __future__ import annotations
