"""What a load of files puts on a feed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from zeh_spark.loading.load import Source, load
from zeh_spark.protocol.upload_format import lines_of
from zeh_spark.publisher import MemoryStore

Files = Callable[[str, bytes | pa.Table], str]


def loaded(*names: str, partitions: int = 1, **how: Any) -> list[list[dict[str, Any]]]:
    """The lines of each partition after a load."""
    store = MemoryStore()
    store.create("f", partitions)
    load(store, "f", [Source(name, **how) for name in names])
    head = store.feed("f").head
    lines: list[list[dict[str, Any]]] = [[] for _ in range(partitions)]
    for chunk in store.chunks("f", dict.fromkeys(range(partitions), 0), head, 10_000):
        (frame,) = store.frames([chunk.blob])
        lines[chunk.partition] += map(json.loads, lines_of(frame).splitlines())
    return lines


def data(*names: str, **how: Any) -> list[Any]:
    return [line["data"] for line in loaded(*names, **how)[0]]
