"""What a load of files puts on a feed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from tests.scratch_store import ScratchStore
from zeh_spark.tools.loading.load import Source, load
from zeh_spark.wire.upload_format import lines_of

Files = Callable[[str, bytes | pa.Table], str]


def created(partitions: int = 1) -> ScratchStore:
    """A store with the feed f."""
    store = ScratchStore()
    store.create("f", partitions)
    return store


def loaded(*names: str, partitions: int = 1, **how: Any) -> list[list[dict[str, Any]]]:
    """The lines of each partition after a load."""
    store = created(partitions)
    load(store, "f", [Source(name, **how) for name in names])
    head = store.feed("f").head
    lines: list[list[dict[str, Any]]] = [[] for _ in range(partitions)]
    for chunk in store.chunks("f", dict.fromkeys(range(partitions), 0), head, 10_000):
        (frame,) = store.frames([chunk.blob])
        lines[chunk.partition] += map(json.loads, lines_of(frame).splitlines())
    return lines


def text_of(name: str, **how: Any) -> bytes:
    """The lines of the only chunk after a load, as they are stored."""
    store = created()
    load(store, "f", [Source(name, **how)])
    ((frame,),) = [store.frames([each.blob]) for each in store.scan("f", 0, 99, 99)]
    return lines_of(frame)


def data(*names: str, **how: Any) -> list[Any]:
    return [line["data"] for line in loaded(*names, **how)[0]]
