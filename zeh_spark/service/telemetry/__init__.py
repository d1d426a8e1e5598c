"""Health checks, metrics and the log of a publisher.

`exchange` has the facts about one request. `health` and `metrics` make the answers of /readyz and
/metrics (`app.telemetry_api`), `lag` computes how far consumers are behind, and `logs`
formats log lines. Runs in the publisher's process.

Rule for editors: nothing here may refuse a request, or fail one. Values that a client chooses
become labels of metrics only if the store knows them.
"""
