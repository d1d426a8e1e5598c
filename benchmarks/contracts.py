"""The sink onto a feed with a schema, also with dead letters, against one without a schema."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

from benchmarks import publishing
from benchmarks.feeds import serving
from benchmarks.rows import Row, ratio
from zeh_spark.publisher import open_store

_STATED = {
    "flight": {"carrier": "string", "number": "integer", "tailnum": "string"},
    "scheduled": dict.fromkeys(("year", "month", "day"), "integer"),
    "route": {"origin": "string", "dest": "string", "distance": "integer", "air_time": "number"},
    "departure": dict.fromkeys(("time", "planned", "delay"), "number"),
    "arrival": dict.fromkeys(("time", "planned", "delay"), "number"),
    "at": dict.fromkeys(("hour", "minute"), "integer"),
}


def schema_of(carrier: Mapping[str, str]) -> bytes:
    """A schema that all events keep: the type of each value, and one more rule."""
    parts = {
        part: {
            "type": "object",
            "required": [*kinds],
            "properties": {name: {"type": kind} for name, kind in kinds.items()},
        }
        for part, kinds in _STATED.items()
    }
    parts["flight"]["properties"]["carrier"] |= carrier
    return json.dumps({"type": "object", "required": [*parts], "properties": parts}).encode()


def measured(work: Path, events: int) -> Iterator[Row]:
    """A sink onto a feed with a schema, also with dead letters, against one without a schema."""
    schemas = {
        "types": schema_of({"maxLength": 2}),
        "types, and dead letters": schema_of({"maxLength": 2}),
        "types and a pattern": schema_of({"pattern": "^[A-Z0-9]{2}$"}),
    }
    runs: dict[str, list[publishing.Published]] = defaultdict(list)
    for number in range(3):  # turn by turn, because the machine is shared
        for name in ("none", *schemas):
            store = publishing.new_file(work, f"contract-{number}-{len(name)}")
            with closing(open_store(store)) as opened:
                opened.create("letters", 1)
                if name in schemas:
                    opened.set_schema("flights", schemas[name])
            with serving(store) as (url, publisher):
                letters = {"deadLetterUrl": url.replace("/flights", "/letters")}
                options = {"url": url, **(letters if "dead" in name else {})}
                runs[name].append(
                    publishing.measured("zeroeventhub", events, options, server=publisher)
                )
    bare = publishing.best_of(runs["none"]).rate
    for name in schemas:
        fast = publishing.best_of(runs[name]).rate
        yield ratio(f"sink onto a feed with a schema of {name} / none", fast / bare, ">= 0.75")
    for name, each in runs.items():
        yield publishing.costs_row(f"sink, schema of {name}", each)
