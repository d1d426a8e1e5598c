"""Look at a feed as this machine reaches it: address, credentials, partitions, clock."""

from __future__ import annotations

import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime

from zeh_spark.client.http.discovery import discover
from zeh_spark.client.http.transport import Transport
from zeh_spark.client.options.client_options import ClientOptions
from zeh_spark.errors import AccessError, OptionError, ZeroEventHubError
from zeh_spark.tools.check.asking import Answer, Asking
from zeh_spark.tools.doctor.checks import Check, failure, note, ok, warning

_SECONDS = 15.0
_APART = 5.0
"""The difference of clocks, in seconds, from which tokens and times of events become doubtful."""


def checks(options: ClientOptions) -> Iterator[Check]:
    """Yield the checks of a feed. The first one that fails is the last one."""
    url = options.url
    given = " and ".join(options.credentials) or "no token"
    try:
        answer = Asking(options, _SECONDS, 1 << 20).get("")
        answer.refuse()
    except AccessError as exc:
        yield ok("reachable", f"{url} answered in {answer.seconds:.2f} s")
        yield failure(
            "token",
            f"{answer.told}, with {given}",
            f"Give a token with --token-file or ZEH_TOKEN. Run zeh-spark explain {exc.anchor}",
        )
        return
    except ZeroEventHubError as exc:
        yield failure("reachable", exc.what, f"Run zeh-spark explain {exc.anchor}")
        return
    yield ok("reachable", f"{url} answered in {answer.seconds:.2f} s")
    yield ok("token", f"accepted, with {given}")
    yield _partitions(options)
    yield _clock(answer)


def _partitions(options: ClientOptions) -> Check:
    try:
        count = discover(Transport(options)).partition_count
    except OptionError:
        return warning(
            "partitions",
            "the publisher does not tell them",
            "Set the option partitionCount to the number in its documentation. To find it by "
            "trying, run zeh-spark check.",
        )
    except ZeroEventHubError as exc:
        return failure("partitions", exc.what, f"Run zeh-spark explain {exc.anchor}")
    return ok("partitions", f"{count}")


def _clock(answer: Answer) -> Check:
    try:
        theirs = parsedate_to_datetime(answer.headers.get("Date", "")).timestamp()
    except (ValueError, TypeError):
        return note("clock", "the publisher sends no Date, so it cannot be compared")
    apart = time.time() - answer.seconds / 2 - theirs - 0.5  # Date has whole seconds
    found = f"this machine's clock is {apart:+.0f} s off the publisher's"
    if abs(apart) <= _APART:
        return ok("clock", found)
    return warning(
        "clock",
        found,
        "Keep both clocks right with NTP. Tokens that expire and times of events depend on them.",
    )
