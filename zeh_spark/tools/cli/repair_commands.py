"""The commands with which a person repairs what a query left: dead letters, and sessions that wait.

`dead-letters` prints dead letters, and `replay-dead` publishes them: what it decides is in
`client.dead_letter_replay`. `sessions` publishes control events, which `sessions.in_order` reads.
All talk to a running publisher.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import chain
from typing import TYPE_CHECKING, Any

import click

from zeh_spark.errors import OutcomeUnknownError, RowError, StoreError, UnavailableError, printable
from zeh_spark.tools.cli.output import moment, print_result, progress, write_lines
from zeh_spark.tools.cli.parameters import PATIENCE, connects, name_of
from zeh_spark.wire import event_key
from zeh_spark.wire.phrases import counted

if TYPE_CHECKING:
    from zeh_spark.client.dead_letter_replay import Outcome
    from zeh_spark.wire.dead_letters import Unreadable

_NAMED = 5
"""How many events that are no dead letters are named. If one more comes, the others are counted."""


@click.command("dead-letters")
@click.argument("url")
@connects
def list_letters(url: str, connect: dict[str, str]) -> None:
    """Print the dead letters of a feed, one event with its headers on each line.

    URL is a dead-letter feed: a sink with the option deadLetterUrl publishes there the rows that it
    could not publish. A long dead letter, which is stored in several parts, is printed as one. The
    command leaves out events that are not dead letters: it names the first five on standard error,
    counts the others, and ends with exit code 1. If the first six events are no dead letters, it
    stops.

    \b
    Example:
      zeh-spark dead-letters http://127.0.0.1:8080/orders-dead | jq .data.reason | sort | uniq -c
    """
    from zeh_spark.client.http.tail import follow
    from zeh_spark.wire import dead_letters, wire

    pages = follow(url, wire.FIRST, connect, whole=True, endless=False)
    printed = others = 0

    def left_out(other: Unreadable) -> None:
        nonlocal others
        others += 1
        if others <= _NAMED:
            said = f"Left out: event {other.line} of {url}: {other.reason}"
            click.echo(printable(said), err=True)
        elif not printed:
            raise StoreError(
                f"{url} is no dead-letter feed: the first {others} events are no dead letters. "
                f"Give the address that the sink has as deadLetterUrl; tail reads other feeds",
                anchor="the-feed-is-no-dead-letter-feed",
            )

    try:
        for letter in dead_letters.letters(chain.from_iterable(pages), left_out):
            write_lines([letter.whole])
            printed += 1
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # `| head` has enough
    if others:
        if others > _NAMED:
            more = counted(others - _NAMED, "more event")
            click.echo(f"Left out: {more} of {url}, no dead letters either.", err=True)
        sys.exit(1)


@click.command("replay-dead")
@click.argument("url")
@click.option(
    "--keep-key", is_flag=True,
    help="Keep the key of each event in the header zeh-key: for dead letters of a query that "
    "publishes with keepKey.",
)  # fmt: skip
@connects
def replay_dead(url: str, keep_key: bool, connect: dict[str, str]) -> None:
    """Publish repaired dead letters from standard input to the feed at URL, each once.

    A line is a dead letter as dead-letters or tail --headers prints it. Repair it in data.row.data,
    which has to be the event: JSON, or text that is JSON. The event is published with the key,
    partition and headers in data.row, without the headers that begin with zeh-: it is a new event,
    and has no zeh-origin. If one of the dead letters still cannot be published, none is published,
    and the error names its line.

    Input without dead letters is an error.

    The command can be repeated, also with other files that hold the same dead letters: each is
    published once, as it was repaired first.

    \b
    Example:
      zeh-spark dead-letters http://127.0.0.1:8080/orders-dead > dead.ndjson
      jq -c '(.data.row.data | strings) |= gsub("NaN"; "null")' dead.ndjson |
        zeh-spark replay-dead http://127.0.0.1:8080/orders
    """
    from zeh_spark.client import dead_letter_replay
    from zeh_spark.client.dead_letter_replay import Outcome
    from zeh_spark.tools.loading.load import without_events
    from zeh_spark.wire import dead_letters
    from zeh_spark.wire.dead_letters import Unreadable

    count = dead_letter_replay.partition_count(url, **connect, **PATIENCE)
    try:
        read = list(dead_letters.letters(sys.stdin.buffer))
        letters = dead_letter_replay.repaired(read, count, keep_key=keep_key)
    except Unreadable as exc:
        raise StoreError(
            f"standard input, line {exc.line}: {exc.reason}; nothing was published",
            anchor="a-dead-letter-still-cannot-be-published",
        ) from None
    if not read:
        raise without_events("standard input")
    outcomes: Counter[Outcome] = Counter()
    refused: list[dict[str, object]] = []
    try:
        how = {**connect, **PATIENCE}
        with progress("Publishing", len(letters)) as bar:
            for each in dead_letter_replay.replay(url, letters, keep_key=keep_key, **how):
                outcomes[each.outcome] += 1
                bar(1)
                if each.outcome is Outcome.REFUSED:
                    refused.append({"line": each.letter.line, "reason": each.reason})
                    said = f"Refused, line {each.letter.line}: {each.reason}."
                    click.echo(printable(said), err=True)
    finally:
        _tell(outcomes, len(letters), refused)
    if outcomes[Outcome.REFUSED]:
        sys.exit(1)


def _tell(outcomes: Counter[Outcome], letters: int, refused: list[dict[str, object]]) -> None:
    """Print how many dead letters were published, were published before, and are left."""
    from zeh_spark.client.dead_letter_replay import Outcome

    published, repeated = outcomes[Outcome.PUBLISHED], outcomes[Outcome.REPEATED]
    said = f"Published {counted(published, 'dead letter')}"
    if repeated:
        said += f"; {counted(repeated, 'dead letter')} published before: no change"
    if left := letters - sum(outcomes.values()):
        said += f"; {counted(left, 'dead letter')} left: run the command again"
    print_result(f"{said}.", published=published, repeated=repeated, refused=refused, left=left)


# Sessions


@click.group("sessions")
def sessions_group() -> None:
    """End or release a session by hand, or decide about the failed event that holds it.

    Each command publishes a control event, on which a query of sessions.in_order acts in the batch
    that reads it. URL is a feed that the query reads: beside a feed of another publisher, a control
    feed of your own. The session is named by the headers from
    which the query takes it, as HEADER=VALUE: order=A if it has session="headers['order']". Give
    each part of a session that has several, and its kind.

    The commands can be repeated: the same control event is published once. To have it act again, on
    a later session of the same name for example, give any name with --again.
    """


def _with_options(*more: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a decorator that gives a command what all control events have, and more options."""
    given = [
        click.argument("url"),
        click.argument("session", nargs=-1, metavar="HEADER=VALUE..."),
        *more,
        click.option(
            "--data", metavar="JSON",
            help="The event's data, if the query reads the session or the number from it, "
            "or if the feed has a schema, which it has to keep; {} otherwise.",
        ),
        click.option(
            "--key", metavar="KEY",
            help="The key of the session's events, so that the control event comes after those "
            "that were published before it. Without it, the session's value if it has one part.",
        ),
        click.option(
            "--control-header", default="session-control", show_default=True, metavar="HEADER",
            help="The header that in_order reads as control=.",
        ),
        click.option(
            "--producer", default="sessions", show_default=True, metavar="NAME", callback=name_of,
            help="The producer's name.",
        ),
        click.option(
            "--again", metavar="NAME",
            help="Publish the same control event again, once under this name.",
        ),
        connects,
    ]  # fmt: skip

    def decorate(command: Any) -> Any:
        for each in reversed(given):
            command = each(command)
        return command

    return decorate


_of_an_event = _with_options(
    click.option(
        "--number", metavar="HEADER=VALUE",
        help="The number, or the name of the step, of the failed event, with the header from which "
        "the query takes it.",
    ),
    click.option(
        "--attempt", type=click.IntRange(min=1), required=True, metavar="N",
        help="The attempt that failed, as the table of the query has it.",
    ),
    click.option(
        "--attempt-header", default="session-attempt", show_default=True, metavar="HEADER",
        help="The header that in_order reads as attempt=.",
    ),
)  # fmt: skip
"""The options of a decision about one event."""


@sessions_group.command()
@_with_options()
def end(**given: Any) -> None:
    """Close a session: the events that it holds become dead letters.

    An event that sessions.process holds needs retry or skip. The session's later events become
    dead letters, too, as long as the query remembers that it is closed
    (keep_closed). That holds also for a session of which no event has come.

    \b
    Example:
      zeh-spark sessions end http://127.0.0.1:8080/orders order=A
    """
    _publish("close", **given)


@sessions_group.command()
@_with_options()
def release(**given: Any) -> None:
    """Deliver the events that a session holds, over all of its gaps.

    \b
    Example:
      zeh-spark sessions release http://127.0.0.1:8080/orders order=A
    """
    _publish("release", **given)


@sessions_group.command()
@_of_an_event
def retry(**given: Any) -> None:
    """Process a failed event again, and then the events that wait for it.

    It is for a session that sessions.process holds. With another number or attempt than those of
    the failed event, nothing happens.

    \b
    Example:
      zeh-spark sessions retry http://127.0.0.1:8080/orders order=A --number step=1 --attempt 3
    """
    _publish("retry", **given)


@sessions_group.command()
@_of_an_event
def skip(**given: Any) -> None:
    """Give up a failed event, and process the events that wait for it.

    It is for a session that sessions.process holds. With another number or attempt than those of
    the failed event, nothing happens.

    \b
    Example:
      zeh-spark sessions skip http://127.0.0.1:8080/orders order=A --number step=1 --attempt 3
    """
    _publish("skip", **given)


def _publish(
    word: str, url: str, session: tuple[str, ...], data: str | None, key: str | None,
    control_header: str, producer: str, again: str | None, connect: dict[str, str],
    number: str | None = None, attempt: int | None = None, attempt_header: str = "",
) -> None:  # fmt: skip
    """Publish a control event as a named batch, whose name is made of the event."""
    import xxhash

    from zeh_spark.client.producer import Producer

    if data is None and not (session and (number or attempt is None)):
        what = "--number" if session else "the session"
        raise click.UsageError(f"Give {what} as HEADER=VALUE, or --data if it is in the data.")
    data = data or "{}"
    values = [*session, *([number] if number else []), f"{control_header}={word}"]
    headers = _headers([*values, *([f"{attempt_header}={attempt}"] if attempt else [])])
    if key is None and len(session) == 1:
        key = session[0].partition("=")[2]
    event = json.dumps([headers, data, key, again], sort_keys=True).encode()
    batch = f"{word}-{xxhash.xxh3_128_hexdigest(event)}"
    by = Producer(url, producer, **connect, **PATIENCE)  # type: ignore[arg-type]
    try:
        with by.batch(batch) as open_batch:
            open_batch.add(data, key=key, headers=headers)
    except RowError as exc:
        raise click.UsageError(f"the control event cannot be published: {exc.reason}.") from None
    except OutcomeUnknownError as exc:
        raise UnavailableError(
            "it is not known whether the control event was published: its commit was not answered. "
            "Run the command again; the event is published once."
        ) from exc
    receipt = open_batch.receipt
    outcome, said = "published", f"Published {word} of {' '.join(session) or data}."
    if receipt.run != by.run:
        outcome, said = (
            "repeated",
            f"Published before, at {moment(receipt.time)}: no change. To publish it again, give "
            f"any name with --again.",
        )
    print_result(
        said, outcome=outcome, producer=f"{producer}#{batch}", headers=headers, time=receipt.time,
        cursor=receipt.cursor,
    )  # fmt: skip


def _headers(given: Iterable[str]) -> dict[str, str]:
    """Return headers that are given as HEADER=VALUE. Raises UsageError for one that is not so."""
    found: dict[str, str] = {}
    for each in given:
        name, _, value = each.partition("=")
        if not (name and value):
            raise click.UsageError(f"{each!r} has no header or no value. Write HEADER=VALUE.")
        if name.lower().startswith("zeh-") and name != event_key.HEADER:
            raise click.UsageError(
                f"the header {name!r} is not the session's own: readers add those that begin with "
                f"zeh-. Name the headers that the events were published with."
            )
        if name in found:
            raise click.UsageError(f"the header {name!r} is given twice. Give each once.")
        found[name] = value
    return found
