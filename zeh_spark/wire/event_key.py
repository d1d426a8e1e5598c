"""The header `zeh-key`: the key that an event was published with, as a Kafka record keeps its key.

A key chooses the event's partition, and is then forgotten. With the sink's option `keepKey` its
text stays, in one header that is stored with the event; other writers have options of their own.
The text is the one that is hashed for the partition: an integer in decimal.

The header is part of a batch's content, like the event's own headers. So the same rows with other
keys are another content, and a repeated batch with other keys is refused, not taken for the same.
Rejected: to leave the header out of the content, so that a repeat could gain or lose it. The option
is off by default, so no batch that is pending during an upgrade changes its content.

Pure; runs everywhere.
"""

from __future__ import annotations

HEADER = "zeh-key"

MAX_BYTES = 1024
"""The maximum size of a key that is kept, in UTF-8. Keys that are not kept may be longer."""


def text_of(key: str | int | None) -> str | None:
    """Return the text of a key, which is hashed for its partition and may be kept."""
    if isinstance(key, str):  # the text itself: str() of an enumeration's member is its name
        return str.__str__(key)
    return None if key is None else str(key)


def fault(key: str) -> str | None:
    """Return why a key cannot be kept; None if it can."""
    size = len(key.encode())
    return None if size <= MAX_BYTES else too_long(size)


def too_long(size: int) -> str:
    """Return what is wrong with a key of that many bytes, which are too many."""
    return f"it takes {size:,} bytes in UTF-8; at most {MAX_BYTES:,} are kept in {HEADER}"
