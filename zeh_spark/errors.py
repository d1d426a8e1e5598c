"""What can go wrong, split by what the caller does next.

    ZeroEventHubError
    ├── OptionError            fix the option that it names, then build the query again
    │   └── UnknownOptionError     there is no such option
    ├── PublisherError         the feed's owner has to act: it broke the protocol, or refused
    │   ├── MalformedLineError     a line that is neither an event nor a checkpoint
    │   ├── AccessError            401 or 403: credentials
    │   ├── CursorGoneError        410: the publisher no longer has what follows the cursor
    │   └── PublishError           it refused a batch, and says what would make it take it
    ├── RowError               a row or event cannot be published: repair it, or leave it out
    ├── UnavailableError       nothing is lost: start the query again once the publisher answers
    ├── NotCommittedError      a reader has not come to a batch in time: ask again later
    ├── OutcomeUnknownError    perhaps published, perhaps not: ask before it is published again
    ├── CheckpointError        Spark's checkpoint belongs to another feed, partition count or format
    ├── ReplayError            a batch cannot be delivered again as it was
    ├── StagingError           `stagingLocation` cannot be written or read
    ├── LakehouseError         a Delta table, or its history, does not fit the query or the name
    ├── ProcessingError        a handler of `sessions.process` stops the query: repair what it names
    └── StoreError             the publisher's own store, feed name or input

Facts are attributes. The message is for people: the value, the place and the remedy. No program
decides on the text of a message. Errors pickle, because Spark carries them between processes.
Messages never contain a secret or a URL's query, nor, of a publisher's words, characters that a
terminal would obey.

Each error has a stable code, which its message begins with: that of its class, that of the
publisher's refusal, or one of `CODES`. Each knows the heading of `docs/operate/errors.md` that
describes it (`anchor`). Python prints below the error's message which command shows that text.
"""

from __future__ import annotations

import functools
import inspect
import json
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ParamSpec, TypedDict, TypeVar, cast

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

P = ParamSpec("P")
R = TypeVar("R")

log = logging.getLogger("zeh_spark")

_REQUEST_ID = re.compile(r'"requestId": ?"([A-Za-z0-9._:-]{1,100})"')

_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]|\r(?!\n)"
)
_CODE = re.compile(r"\[ZEH_[A-Z0-9_]+\] ")

CODES: dict[str, str] = {
    "a-database-has-several-names": "ZEH_SEVERAL_NAMES",
    "a-file-of-tls-cannot-be-used": "ZEH_TLS_FILE",
    "a-location-of-segments-belongs-to-another-store": "ZEH_SEGMENTS_OWNER",
    "a-location-of-segments-cannot-be-used": "ZEH_SEGMENTS",
    "a-setting-of-the-publisher-is-not-valid": "ZEH_SETTING",
    "an-epoch-cannot-begin": "ZEH_EPOCH",
    "cannot-listen": "ZEH_CANNOT_LISTEN",
    "served-by-another-process-already": "ZEH_ALREADY_SERVED",
    "the-clock-is-ahead": "ZEH_CLOCK_AHEAD",
    "the-feed-is-no-dead-letter-feed": "ZEH_NO_DEAD_LETTERS",
    "the-input-cannot-be-loaded": "ZEH_INPUT",
    "the-keys-of-jwts-cannot-be-used": "ZEH_JWT_KEYS",
    "the-store-is-damaged": "ZEH_STORE_DAMAGED",
    "the-store-is-of-version": "ZEH_STORE_VERSION",
    "the-table-cannot-be-served": "ZEH_TABLE",
    "there-is-no-store-or-no-feed": "ZEH_NO_STORE_OR_FEED",
    "tokens": "ZEH_TOKENS",
}
"""The codes of errors that do not have that of their class, by anchor: of the store and commands.

`wire.problems` adds those of a publisher's refusals, by their names.
"""

ERRORS_PAGE = "docs/operate/errors.md"
"""The page that describes all errors."""


def printable(text: str) -> str:
    """Return a text without the characters that a terminal obeys, or that reorder what it shows.

    Control characters, but not tabs and newlines, and those of bidirectional text become escapes
    like `\\u001b`, as JSON has them: strings in JSON keep their values.
    """
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


@dataclass(frozen=True, slots=True)
class OptionAdvice:
    """What to do about an error by setting options.

    Args:
        text: a sentence without its full stop, with {} in the place of each option's name.
        options: the names of the options.
    """

    text: str
    options: tuple[str, ...]

    def __str__(self) -> str:
        return self.text.format(*map(repr, self.options))

    def renamed(self, rename: Callable[[str], str]) -> OptionAdvice:
        """Return the same advice about other options."""
        return replace(self, options=tuple(map(rename, self.options)))

    def __add__(self, more: str) -> OptionAdvice:
        return replace(self, text=self.text + more)


class _Facts(TypedDict, total=False):
    """The facts of all errors. Which of them an error may have, its class says."""

    partition: int | None
    cursor: str | None
    option: str | None
    suggestion: str | None
    status: int | None
    body: str | None
    problem: str | None
    facts: Mapping[str, Any]
    row: int | None
    reason: str | None
    batch: int | None
    run: str | None
    table: str | None
    expected: object
    got: object


class ZeroEventHubError(Exception):
    """Base of all errors of this package.

    Args:
        message: what is wrong, and what to do about it. If it quotes another error of ours, the
            code of that one is left out, so that a message has one code.
        advice: what to do if the caller has options. It is added to the message. `what` is the
            message without it, for programs that have no such options, or others.
        anchor: the heading of the page of errors that describes this error, if it has a heading of
            its own. Without it the error has that of its class.
        facts: the attributes of the error's class that are known.

    Attributes:
        partition: the feed's partition in which it happened, if that is known.
        cursor: the cursor after which it happened, if that is known.
    """

    anchor = "types-of-errors"
    partition: int | None = None
    cursor: str | None = None
    _code_of_class = "ZEH_ERROR"

    def __init_subclass__(cls) -> None:
        if cls.__module__ == __name__:
            words = re.findall("[A-Z][a-z]+", cls.__name__.removesuffix("Error"))
            cls._code_of_class = "_".join(["ZEH", *words]).upper()

    def __init__(
        self,
        message: str,
        *,
        advice: OptionAdvice | None = None,
        anchor: str | None = None,
        **facts: Unpack[_Facts],
    ) -> None:
        message = printable(_CODE.sub("", message))
        super().__init__(f"{message}; {advice}" if advice else message)
        self.what = message
        self.advice = advice
        if anchor is not None:
            self.anchor = anchor
        for name, fact in facts.items():
            setattr(self, name, fact)
        if sys.version_info >= (3, 11):  # where Python prints notes; `help` is there on all
            self.add_note(self.see)

    def __str__(self) -> str:
        return f"[{self.code}] {super().__str__()}"

    def reworded(self, message: str, **changes: Any) -> Self:
        """Return an error of the same type with another message, and the same facts but for some.

        The advice stays, too, and is added to the message.
        """
        facts = {name: fact for name, fact in vars(self).items() if name in _Facts.__annotations__}
        own = {"advice": self.advice, "anchor": self.anchor, **facts}
        return type(self)(message, **{**own, **changes})

    @property
    def code(self) -> str:
        """The stable name of this kind of error, like `ZEH_OPTION` or `ZEH_BATCH_GAP`."""
        refusal = getattr(self, "problem", None) or self.anchor
        return CODES.get(refusal, self._code_of_class)

    @property
    def help(self) -> str:
        """The address of the description of this error: its causes, and what to do."""
        return f"{ERRORS_PAGE}#{self.anchor}"

    @property
    def see(self) -> str:
        """A line that says how to read the description, and names the request in a log."""
        request = getattr(self, "request_id", None)
        logged = f" (request id in the publisher's log: {request})" if request else ""
        return f"See zeh-spark explain {self.anchor}{logged}"


class OptionError(ZeroEventHubError, ValueError):
    """An option is missing, unknown, of the wrong type, or contradicts another one.

    Attributes:
        option: the option's name; None if the error is about several.
    """

    anchor = "an-unknown-option-or-a-wrong-value"
    option: str | None = None


class UnknownOptionError(OptionError):
    """There is no such option.

    Attributes:
        suggestion: the name of the option that was probably meant; None if none is similar.
    """

    suggestion: str | None = None


class PublisherError(ZeroEventHubError):
    """The publisher's answer is final and cannot be used; asking again brings the same.

    Attributes:
        status: the HTTP status; None if the body of the answer is at fault.
        body: the beginning of the answer's text; None if there is none.
    """

    anchor = "reading-a-feed"
    status: int | None = None
    body: str | None = None

    @property
    def request_id(self) -> str | None:
        """What the publisher's log calls the request; None if the answer does not tell it."""
        named = _REQUEST_ID.search(self.body or "")
        return named[1] if named else None


class MalformedLineError(PublisherError):
    """A line of the feed that is neither an event nor a checkpoint."""

    anchor = "a-line-of-the-feed-is-not-an-event"


class AccessError(PublisherError):
    """The publisher does not accept the credentials (401 or 403)."""

    anchor = "401-and-403"


class CursorGoneError(PublisherError):
    """The publisher removed events after the cursor before they were read (410)."""

    anchor = "cursor-gone"

    @property
    def oldest(self) -> str | None:
        """The cursor after which what is left begins; None if the publisher does not tell it."""
        try:
            told = json.loads(self.body or "")["oldest"]
        except (ValueError, TypeError, KeyError, RecursionError):
            return None
        return told if isinstance(told, str) else None


class PublishError(PublisherError):
    """The publisher refused a batch; nothing of it was published by this call.

    Attributes:
        problem: the name of the refusal in the publish API, like "batch-conflict", one of those in
            `zeh_spark.wire.problems`.
        facts: the members of its problem document: the values of both sides, and in `option` the
            override that lets the batch pass, as {name: value}.
    """

    anchor = "when-a-batch-is-refused"
    problem: str | None = None
    facts: Mapping[str, Any] = {}


class RowError(ZeroEventHubError, ValueError):
    """A row, or an event of a `Producer`, cannot be published.

    Attributes:
        row: the row's number, from 0 within its task or batch; None if it is not known.
        reason: why it cannot be published.
    """

    anchor = "a-row-cannot-be-published"
    row: int | None = None
    reason: str | None = None


class UnavailableError(ZeroEventHubError):
    """The publisher gave no usable answer within `retryTimeout`."""

    anchor = "the-publisher-does-not-answer"


class NotCommittedError(ZeroEventHubError):
    """A reader has not committed the batch that ends at `cursor` while a program waited."""

    anchor = "notcommittederror"


class OutcomeUnknownError(ZeroEventHubError):
    """It is not known whether a batch was published, and it cannot be repeated without harm.

    The batch is published whole, or not at all, or will still be published.

    Attributes:
        batch: the number that its receipt would have.
        run: the run of the writer that its receipt would have.
    """

    anchor = "outcomeunknownerror"
    batch: int | None = None
    run: str | None = None


class CheckpointError(ZeroEventHubError):
    """The offset in Spark's checkpoint does not fit the query's options.

    Attributes:
        expected: what the checkpoint has.
        got: what the options, or the publisher, say.
    """

    anchor = "checkpoints"
    expected: object = None
    got: object = None


class ReplayError(ZeroEventHubError):
    """Spark asks for a batch again, and the feed no longer gives the same events.

    Attributes:
        expected: the number of events, or their digest, as they were.
        got: the same, as they are now.
    """

    anchor = "spark-has-to-repeat-a-batch"
    expected: object = None
    got: object = None


class StagingError(ZeroEventHubError):
    """`stagingLocation` cannot be written, or a staged segment cannot be read."""

    anchor = "staginglocation-cannot-be-written-or-is-damaged"


class LakehouseError(ZeroEventHubError):
    """A Delta table cannot be written or read as asked.

    Attributes:
        table: the table as it was named.
        expected: one side, where two things differ: cursors, feeds, batches.
        got: the other side.
    """

    anchor = "delta-tables-that-keep-a-feed"
    table: str | None = None
    expected: object = None
    got: object = None


class ProcessingError(ZeroEventHubError):
    """A handler of `sessions.process` stops the query; nothing of the batch is committed."""

    anchor = "a-handler-stops-the-query"


class StoreError(ZeroEventHubError):
    """The publisher's store refuses: no such feed, a name twice, input that is no events."""

    anchor = "the-publisher"


def at_spark_border(function: Callable[P, R]) -> Callable[P, R]:
    """Return `function`, whose errors leave for Spark without a traceback.

    Spark prints the traceback of a Python process into its own error, and that error up to four
    times. What our errors say needs no traceback. The full one, with the cause, is logged at level
    INFO. Errors of other types keep theirs.
    """
    if inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def generator(*args: P.args, **kwargs: P.kwargs) -> Iterator[object]:
            try:
                yield from function(*args, **kwargs)
            except ZeroEventHubError as exc:
                raise _bare(exc) from None

        return cast("Callable[P, R]", generator)

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except ZeroEventHubError as exc:
            raise _bare(exc) from None

    return wrapper


def _bare(exc: ZeroEventHubError) -> ZeroEventHubError:
    log.info("this error goes to Spark", exc_info=exc)  # at WARNING it would be printed twice
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec and spec.name.startswith("pyspark."):
        # One of Spark's own Python processes, which ends after it has told Spark this error.
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
    return exc.with_traceback(None)
