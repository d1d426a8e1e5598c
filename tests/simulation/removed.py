"""The code without one of its safety checks: a simulation that is worth its time finds that."""

from __future__ import annotations

import importlib.util
import sys

_COUNTS = "if (here.uploads, here.content.events) != (each.uploads, each.events):"
_SUM = "if content != declared.content:"
_STORE = "zeh_spark.service.store.commit_decision"
_READS = "zeh_spark.service.reads.reading"

REMOVED = {
    "fence": (
        _STORE, "overtaken = known.run_known and call.run != producer.run", "overtaken = False",
    ),
    "incarnation": (
        _STORE, "if call.overrides.replace_incarnation != remedy:", "if False:",
    ),
    "override for what it was told": (
        _STORE, "and call.overrides.accept_gap != remedy:", "and not call.overrides.accept_gap:",
    ),
    "gap": (_STORE, "if batch != known.last + 1 and", "if False and"),
    "repeated batch": (
        _STORE,
        "if batch <= known.last:\n        return _committed_before(known.receipt, call, declared)",
        "batch = max(batch, known.last + 1)",
    ),
    "counts of uploads": (_STORE, _COUNTS, "if False:"),
    "content sum": (_STORE, _SUM, "if False:"),
    "counts and content sum": (_STORE, _COUNTS, "if False:", _SUM, "if False:"),
    "removed before a read (410)": (_READS, "    if lost:\n", "    if False:\n"),
    "removed meanwhile (410)": (_READS, "log.anchors[partition].g > g:", "False:"),
    "removed events (410)": (
        _READS, "    if lost:\n", "    if False:\n", "log.anchors[partition].g > g:", "False:",
    ),
    "history (409)": (_READS, "if why:\n        raise other", "if False:\n        raise other"),
    "replay": (
        "zeh_spark.spark.source.planned_source",
        "if (now.events, now.digest) == (then.events, then.digest):", "if True:",
    ),
    "planned digest": (
        "zeh_spark.client.http.direct_client",
        "if end.to != planned.to or self.got != direct_reads.totals_of(planned):", "if False:",
    ),
    "end of an answer": (
        "zeh_spark.client.http.transport",
        "raise network_failure(exc, self._url, named(self._response)) from innermost(exc)",
        "return",
    ),
    "answer of a commit": ("zeh_spark.client.http.publish_client", "if answer.proven:", "if True:"),
}  # fmt: skip
"""By name: the module, and texts of it, each with what is there instead."""


def remove(name: str) -> None:
    """Have this process import a module without a check. Call it before anything is imported."""
    module, *texts = REMOVED[name]
    assert module not in sys.modules, f"{module} is imported already"
    spec = importlib.util.find_spec(module)
    assert spec and spec.origin
    with open(spec.origin, encoding="utf-8") as file:
        source = file.read()
    for check, instead in zip(texts[::2], texts[1::2], strict=True):
        assert source.count(check) == 1, f"{module} has no longer {check!r} once"
        source = source.replace(check, instead)
    made = importlib.util.module_from_spec(spec)
    sys.modules[module] = made
    exec(compile(source, spec.origin, "exec"), made.__dict__)
    parent, _, last = module.rpartition(".")
    setattr(sys.modules[parent], last, made)
