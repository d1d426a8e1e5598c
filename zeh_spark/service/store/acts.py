"""Administrative acts: who changed what in a store, besides publishing and reading.

A store writes an act in the transaction of the change that it describes. So there is no change
without its act, and no act without its change. What is refused, and what changes nothing, leaves no
act. Acts are only added, and are kept as long as the store. Each one is small: `new_act` shortens
what is long.

Not acts: what publishers and readers do all the time (uploads, commits, cursors), and what the
publisher removes by itself under a feed's retention. The act is the setting of the retention. A
commit is an act only if it needed an override: then an operator allowed what would be refused.

Runs in the publisher and in commands that write.
"""

from __future__ import annotations

import json
import logging
import os
import pwd
import socket
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from zeh_spark.wire.phrases import printable

log = logging.getLogger("zeh_spark.acts")

MOST_CHARACTERS, MOST_ITEMS = 200, 20
"""Most characters of a text, and most items of a list, in an act."""


class Via(str, Enum):
    """The way that an act came."""

    CLI = "cli"
    HTTP = "http"
    CONSOLE = "console"
    LIBRARY = "library"


class Action(str, Enum):
    """What was done. The values are in stores, so they never change."""

    CREATE_FEED = "create-feed"
    SET_RETENTION = "set-retention"
    SET_SCHEMA = "set-schema"
    PRUNE = "prune"
    DELETE_PRODUCER = "delete-producer"
    DELETE_CURSOR_SET = "delete-cursor-set"
    NEW_HISTORY = "new-history"
    CREATE_TOKEN = "create-token"
    REVOKE_TOKEN = "revoke-token"
    ACCEPT_CLOCK = "accept-clock"
    MIGRATE = "migrate"
    RESTORE = "restore"
    ADOPT_SEGMENTS = "adopt-segments"
    ACCEPT_OVERRIDE = "accept-override"


@dataclass(frozen=True, slots=True)
class Actor:
    """Who acts.

    Attributes:
        name: USER@HOST for a command or a program; the name of a token or the subject of a JWT for
            a request. Never a secret.
        via: The way that the act comes.
    """

    name: str
    via: Via = Via.LIBRARY

    def __str__(self) -> str:
        return f"{self.via.value}:{self.name}"


def process_actor(via: Via = Via.LIBRARY) -> Actor:
    """Return who runs this process: the system's user, and the host's name.

    For root it is the user who called sudo, if sudo tells one.
    """
    uid = os.geteuid()
    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:  # a container may run as a number without a name
        user = str(uid)
    if uid == 0:
        user = os.environ.get("SUDO_USER") or user
    return Actor(f"{user}@{socket.gethostname()}", via)


@dataclass(frozen=True, slots=True)
class Act:
    """An administrative act, as a store keeps it.

    Attributes:
        time: When it was done, in ms since 1970, by the store's clock.
        via: The value of a `Via`.
        action: The value of an `Action`.
        feed: The feed that was changed; empty for the store as a whole.
        subject: What else was changed: a producer, a cursor set, the id of a token.
        details: What it was about, as a small JSON object.
        id: The number that the store gave it. Later acts have higher numbers; 0 if it is not kept.
    """

    time: int
    actor: str
    via: str
    action: str
    feed: str = ""
    subject: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    id: int = 0

    def document(self) -> dict[str, Any]:
        return {"id": self.id} | asdict(self)


@dataclass(frozen=True, slots=True)
class ActFilter:
    """Which acts are wanted; all of them by default.

    Attributes:
        feed: Only those on this feed.
        actor: Only those of this actor, as NAME or VIA:NAME.
        action: Only this `Action`, by its value.
        since: Only those at or after this time, in ms since 1970.
        before: Only those with a lower id.
    """

    feed: str | None = None
    actor: str | None = None
    action: str | None = None
    since: int | None = None
    before: int | None = None


EVERY_ACT = ActFilter()

ACTS_SHOWN = 100
"""How many acts `Administration.acts` returns, unless another number is asked for."""


def new_act(
    by: Actor | None,
    action: Action,
    time: int,
    *,
    feed: str = "",
    subject: str = "",
    **details: Any,
) -> Act:
    """Return an act with texts and lists of bounded size.

    `by` is None for who runs this process. `time` is in ms since 1970. `details` are values that
    JSON has; those that are None are left out.
    """
    actor = by or process_actor()
    told = {name: _shortened(value) for name, value in details.items() if value is not None}
    name, subject = _shortened(actor.name), _shortened(subject)
    return Act(time, name, actor.via.value, action.value, feed, subject, told)


def lacking(acts: Iterable[Act], there: Iterable[Act]) -> list[Act]:
    """Return those of some acts that are not among others, whatever ids they have."""
    known = {_content(each) for each in there}
    return [each for each in acts if _content(each) not in known]


def _content(act: Act) -> str:
    return json.dumps(act.document() | {"id": 0}, sort_keys=True)


def log_act(act: Act) -> None:
    what = f"{act.action} {act.feed} {act.subject}".strip().replace("  ", " ")
    log.info("%s:%s did %s %s", act.via, act.actor, what, dict(act.details))


def _shortened(value: Any) -> Any:
    """Return a value with long texts and long lists cut, and with hidden characters as escapes."""
    if isinstance(value, str):
        text = printable(value)
        return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 1]}…"
    if isinstance(value, Mapping):
        return {name: _shortened(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        left = len(value) - MOST_ITEMS
        cut = [f"… and {left} more"] if left > 0 else []
        return [*map(_shortened, value[:MOST_ITEMS]), *cut]
    return value
