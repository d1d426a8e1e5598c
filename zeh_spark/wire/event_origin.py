"""The header `zeh-origin`: where an event was first published, however often it was relayed.

A query that reads a feed and publishes into another one gives each event a new identity there. With
the sink's option `keepOrigin` the first one stays, in one header that is stored with the event:

    9f86d081884c7d65/orders-job/3/1200/1764000000000

These are feed, producer, stored partition, sequence number, and time in ms since 1970; in the
feed's name % and / are written as %25 and %2F. If a relay makes several events of one, it numbers
them, and each relay that does so adds its number: "…/0" and "…/1", then "…/0.7".

Rule for editors: the text is compared, in Python, Arrow and Spark. So there is one text for each
origin, and its form stays. Pure; runs everywhere.
"""

from __future__ import annotations

import re
from typing import NamedTuple

HEADER = "zeh-origin"

_NAME = r"[A-Za-z0-9._:@=-]{1,100}"
_NUMBER = r"(0|[1-9][0-9]{0,17})"
FORM = (
    rf"^[^/]{{1,900}}/{_NAME}(#{_NAME})?/{_NUMBER}/{_NUMBER}/{_NUMBER}"
    rf"(/{_NUMBER}(\.{_NUMBER}){{0,20}})?\z"
)
"""The form of an origin, for the regular expressions of Arrow and Spark."""

_ESCAPES = (("%", "%25"), ("/", "%2F"))
_FORM = re.compile(FORM.removeprefix("^").removesuffix(r"\z"))


class EventOrigin(NamedTuple):
    """Where an event was first published.

    Attributes:
        feed: The id of the feed's epoch; the feed's name if its publisher tells none.
        time: The time of the commit, in ms since 1970.
        parts: The numbers that relays gave it when they made several events of one.
    """

    feed: str
    producer: str
    partition: int
    sequence: int
    time: int
    parts: tuple[int, ...] = ()

    def __str__(self) -> str:
        feed = self.feed
        for plain, escaped in _ESCAPES:
            feed = feed.replace(plain, escaped)
        numbers = map(str, (self.partition, self.sequence, self.time))
        text = "/".join([feed, self.producer, *numbers])
        return f"{text}/{'.'.join(map(str, self.parts))}" if self.parts else text


def is_origin(text: str) -> bool:
    return bool(_FORM.fullmatch(text))


def fault(text: str) -> str | None:
    """Return why a text cannot be an origin; None if it can."""
    return None if is_origin(text) else "it must be feed/producer/partition/number/time"


def parse(text: str) -> EventOrigin:
    """Return the origin in a header. Raises ValueError if the text has another form."""
    if not is_origin(text):
        raise ValueError(
            f"{text[:200]!r} must be feed/producer/partition/number/time, as the sink's option "
            f"keepOrigin writes it"
        )
    feed, producer, partition, sequence, time, *parts = text.split("/")
    for plain, escaped in reversed(_ESCAPES):
        feed = feed.replace(escaped, plain)
    numbers = tuple(map(int, parts[0].split("."))) if parts else ()
    return EventOrigin(feed, producer, int(partition), int(sequence), int(time), numbers)
