"""What a load of files puts on a feed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from tests.scratch_store import ScratchStore
from tests.store_contract.writers import everything, frames_of
from zeh_spark.tools.loading.load import Source, load
from zeh_spark.wire.upload_format import lines_of

Files = Callable[[str, bytes | pa.Table], str]


def created(partitions: int = 1) -> ScratchStore:
    """A store with the feed f."""
    return ScratchStore(f=partitions)


def loaded(*names: str, partitions: int = 1, **how: Any) -> list[list[dict[str, Any]]]:
    """The lines of each partition after a load."""
    store = created(partitions)
    load(store, "f", [Source(name, **how) for name in names])
    lines: list[list[dict[str, Any]]] = [[] for _ in range(partitions)]
    chunks = everything(store, "f")
    for chunk, frame in zip(chunks, frames_of(store, chunks, "f"), strict=True):
        lines[chunk.partition] += map(json.loads, lines_of(frame).splitlines())
    return lines


def text_of(name: str, **how: Any) -> bytes:
    """The lines of the only chunk after a load, as they are stored."""
    store = created()
    load(store, "f", [Source(name, **how)])
    (frame,) = frames_of(store, everything(store, "f"), "f")
    return lines_of(frame)


def data(*names: str, **how: Any) -> list[Any]:
    return [line["data"] for line in loaded(*names, **how)[0]]
