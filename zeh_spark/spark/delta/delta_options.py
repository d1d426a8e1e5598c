"""Which of Delta's options, and of the session's settings, a table can be published with.

Rule for editors: refuse by name what would leave rows out without an error, whether this version of
Delta heeds it or not. Options that are not known here are Delta's, and pass, unless a known one was
probably meant: a table that is published from its beginning, because `startingVersion` was
mistyped, cannot be taken back. The module has no side effects.
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
_GONE = "would be left out without an error; restore the files, or begin with a new checkpoint"
_CHOSEN = "say change_feed=True or False"
_REFUSED = {
    "ignoreChanges": ("false", f"it hides deletions, and repeats rows: {_AS_CHANGES}"),
    "ignoreDeletes": ("false", f"it hides deletions: {_AS_CHANGES}"),
    "ignoreFileDeletion": ("false", f"it hides deletions, and repeats rows: {_AS_CHANGES}"),
    "skipChangeCommits": ("false", f"it hides commits that update or delete: {_AS_CHANGES}"),
    "failOnDataLoss": (
        "true",
        "commits whose log was cleaned up would be left out without an error; begin with a new "
        "checkpoint, and startingVersion",
    ),
    "excludeRegex": ("", "it leaves files out: filter the rows of the frame"),
    "ignoreMissingFiles": ("false", f"rows of missing files {_GONE}"),
    "ignoreCorruptFiles": ("false", f"rows of corrupt files {_GONE}"),
    "readChangeFeed": ("", _CHOSEN),
    "readChangeData": ("", _CHOSEN),
}
"""Options, each with the value that changes nothing ("" if none), and why others are refused."""

SETTINGS = ("spark.sql.files.ignoreMissingFiles", "spark.sql.files.ignoreCorruptFiles")
"""Settings of the session, which Delta's source heeds instead of options with the same names."""

_LIMITS = {"maxbytespertrigger", "maxfilespertrigger"}
_BATCH_BYTES = "128m"
_ALL = 2**31 - 1


def refusal(
    options: Options, settings: Mapping[str, str | None], *, change_feed: bool = False
) -> OptionError | None:
    """Return why a table cannot be published with these options and settings; None if it can.

    `settings` has the session's values of SETTINGS.
    """
    for name, value in options.items():
        problem = _problem(name.lower(), str(value).lower())
        if change_feed and name.lower() in _LIMITS:
            problem = (
                "is refused with change_feed=True, because Delta would cut commits anywhere, and "
                "an insert could come before the deletion that it replaces. Remove the option"
            )
        if problem:
            return _refused(name, f"option {name!r} {problem}")
    for name, setting in settings.items():
        if setting and setting.lower() == "true":
            why = _REFUSED[name.rpartition(".")[2]][1]
            return _refused(
                name, f"the session's setting {name}=true is refused: {why}, with the setting false"
            )
    return None


def _refused(option: str, problem: str) -> OptionError:
    return OptionError(problem, option=option, anchor="an-option-of-from_delta-is-refused")


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
    """Return the options with a limit for a batch.

    Changes get no limit, so that no commit is cut. Otherwise the limit that the user gave stays.
    Delta's own limit is 1,000 files of any size. What the publisher commits at once has to be less.
    """
    if change_feed:
        return {**options, "maxFilesPerTrigger": _ALL}
    if {name.lower() for name in options} & _LIMITS:
        return options
    return {**options, "maxBytesPerTrigger": _BATCH_BYTES}
