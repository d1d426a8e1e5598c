"""Parse the files of a Spark checkpoint: the query's id, and the offsets of its sources.

    metadata            {"id": …}
    offsets/<batch>     v1, a line of settings, then an offset for each source, or "-"
                        v2, a line of settings, then "<name of the source>:" before each

Rule for editors: refuse a format that is not known. Runs on the driver; pure.
"""

from __future__ import annotations

import orjson

_VERSIONS = {"v1", "v2"}


def query_id(metadata: str) -> str:
    """Return the query's id. Raises ValueError for a text that Spark did not write."""
    document = orjson.loads(metadata)
    if not isinstance(document, dict) or "id" not in document:
        raise ValueError(f"no query's metadata: {metadata!r}")
    return str(document["id"])


def source_offsets(text: str) -> list[object]:
    """Return the offset of each source of a query after one batch.

    They are in the order of the sources: the parsed JSON of an offset, its text if it is not JSON,
    or None if the source has no offset yet. Raises ValueError if Spark did not write the text, or a
    future Spark did.
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
