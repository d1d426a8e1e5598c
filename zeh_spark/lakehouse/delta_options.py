"""Which of Delta's options, and of the session's settings, a table can be published with. Pure.

Rule for editors: what would leave rows out without a word is refused by name, whether this version
of Delta heeds it or not. Options that are not known here are Delta's business and pass, unless one
that is known was probably meant [a table that is published from its beginning, for want of
startingVersion, cannot be taken back].
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

from zeh_spark.errors import OptionError

Options = Mapping[str, "str | int | bool"]

_PASSED = (
    "startingVersion",
    "startingTimestamp",
    "maxFilesPerTrigger",
    "maxBytesPerTrigger",
    "schemaTrackingLocation",
    "withEventTimeOrder",
)

_AS_CHANGES = "publish the changes themselves, with change_feed=True"
_GONE = "would be left out without a word; restore the files, or begin with a new checkpoint"
_CHOSEN = "say change_feed=True or False"
_REFUSED = {
    "ignoreChanges": ("false", f"it hides deletions, and repeats rows: {_AS_CHANGES}"),
    "ignoreDeletes": ("false", f"it hides deletions: {_AS_CHANGES}"),
    "ignoreFileDeletion": ("false", f"it hides deletions, and repeats rows: {_AS_CHANGES}"),
    "skipChangeCommits": ("false", f"it hides commits that update or delete: {_AS_CHANGES}"),
    "failOnDataLoss": (
        "true",
        "commits whose log was cleaned up would be left out without a word; begin with a new "
        "checkpoint, and startingVersion",
    ),
    "excludeRegex": ("", "it leaves files out: filter the rows of the frame"),
    "ignoreMissingFiles": ("false", f"rows of missing files {_GONE}"),
    "ignoreCorruptFiles": ("false", f"rows of corrupt files {_GONE}"),
    "readChangeFeed": ("", _CHOSEN),
    "readChangeData": ("", _CHOSEN),
}
"""Each with the value that changes nothing, if it has one, and why any other is refused."""

SETTINGS = ("spark.sql.files.ignoreMissingFiles", "spark.sql.files.ignoreCorruptFiles")
"""Of the session: Delta's source heeds them, and not the reader's options of the same names."""

_LIMITS = {"maxbytespertrigger", "maxfilespertrigger"}
_BATCH_BYTES = "128m"
_ALL = 2**31 - 1


def refusal(
    options: Options, settings: Mapping[str, str | None], *, change_feed: bool = False
) -> OptionError | None:
    """What stands against them, if anything does."""
    for name, value in options.items():
        if change_feed and name.lower() in _LIMITS:
            return OptionError(
                f"option {name!r} is refused with change_feed=True: Delta cuts commits where it "
                f"strikes, and an insert could come batches before the deletion that it replaces",
                option=name,
                anchor="an-option-of-from_delta-is-refused",
            )
        if problem := _problem(name.lower(), str(value).lower()):
            return OptionError(
                f"option {name!r} {problem}",
                option=name,
                anchor="an-option-of-from_delta-is-refused",
            )
    for name, setting in settings.items():
        if setting and setting.lower() == "true":
            why = _REFUSED[name.rpartition(".")[2]][1]
            return OptionError(
                f"the session's setting {name}=true is refused: {why}, with the setting false",
                option=name,
                anchor="an-option-of-from_delta-is-refused",
            )
    return None


def _problem(name: str, value: str) -> str | None:
    refused = {each.lower(): said for each, said in _REFUSED.items()}
    if name in refused:
        harmless, why = refused[name]
        return None if harmless and value == harmless else f"is refused: {why}"
    known = {each.lower(): each for each in (*_PASSED, *_REFUSED)}
    if name not in known and (meant := get_close_matches(name, known, 1, 0.85)):
        return f"is unknown; did you mean {known[meant[0]]!r}?"
    return None


def limited(options: Options, *, change_feed: bool) -> Options:
    """With a limit to a batch, if they have none [Delta's own is 1,000 files of any size; what the
    publisher commits at once has to be less]; changes without any, so that no commit is cut.
    """
    if change_feed:
        return {**options, "maxFilesPerTrigger": _ALL}
    if {name.lower() for name in options} & _LIMITS:
        return options
    return {**options, "maxBytesPerTrigger": _BATCH_BYTES}
