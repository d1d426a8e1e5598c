"""What a checkpoint's files say: the query's id, and where each of its sources was after a batch.

    metadata            {"id": …}
    offsets/<batch>     v1, a line of settings, then an offset for each source, or "-"
                        v2, a line of settings, then "<name of the source>:" before each

Runs on the driver; pure.
"""

from __future__ import annotations

import orjson

_VERSIONS = {"v1", "v2"}


def query_id(metadata: str) -> str:
    """Raises ValueError for a text that Spark did not write."""
    document = orjson.loads(metadata)
    if not isinstance(document, dict) or "id" not in document:
        raise ValueError(f"no query's metadata: {metadata!r}")
    return str(document["id"])


def source_offsets(text: str) -> list[object]:
    """Of one batch: each source's offset, as JSON where it is some, None where there is none yet.

    Raises ValueError for a text that Spark did not write, or in a format of its future.
    """
    version, _, *lines = text.rstrip("\n").split("\n")
    if version not in _VERSIONS:
        raise ValueError(f"offsets in a format that is not known: {version!r}")
    return [_offset(line.partition(":")[2] if version == "v2" else line) for line in lines]


def _offset(line: str) -> object:
    if line == "-":
        return None
    try:
        return orjson.loads(line)
    except ValueError:
        return line
