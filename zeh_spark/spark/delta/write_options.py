"""Which options a write to a Delta table may have.

Rule for editors: options that are not known here are Delta's, and pass, unless another one was
probably meant: rows that are appended because `merge_keys` was mistyped cannot be told from rows
that were meant to be. The module has no side effects.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from difflib import get_close_matches

from zeh_spark.errors import OptionError

_OURS = {
    "path": "the table is the second argument",
    "mode": "batches are appended, or merged by merge_keys",
    "userMetadata": "it holds the feed's cursors",
    "txnAppId": "the writer sets it, so that each batch is written once",
    "txnVersion": "the writer sets it, so that each batch is written once",
    "checkpointLocation": "it is an argument of its own",
    "dataChange": "streams of the table would leave the rows out",
}
"""Options that the writer sets itself, with the reason why others are refused."""

_DELTAS = ("compression", "maxRecordsPerFile", "mergeSchema", "optimizeWrite", "overwriteSchema")


def check_reserved(options: Iterable[str]) -> None:
    """Refuse options that the writer sets itself. Raises OptionError."""
    reserved = {name.lower(): why for name, why in _OURS.items()}
    for name in options:
        if why := reserved.get(name.lower()):
            raise OptionError(f"option {name!r} is not for you to set here: {why}", option=name)


def check_spelling(options: Iterable[str], arguments: Collection[str]) -> None:
    """Refuse options that are almost one of Delta's, or one of the function's arguments."""
    deltas = {name.lower(): name for name in _DELTAS}
    known = {name.lower(): name for name in arguments} | deltas
    for name in options:
        if name.lower() in deltas:
            continue
        if meant := get_close_matches(name.lower(), known, 1, 0.8):
            raise OptionError(
                f"option {name!r} is unknown; did you mean {known[meant[0]]!r}? Correct the name",
                option=name,
            )
