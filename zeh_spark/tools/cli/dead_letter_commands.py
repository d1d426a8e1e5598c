"""The commands about dead letters: `dead-letters` prints them, `replay-dead` publishes them.

Both talk to a running publisher. What `replay-dead` decides is in `client.dead_letter_replay`.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING

import click

from zeh_spark.errors import StoreError, printable
from zeh_spark.tools.cli.output import print_result, progress, write_lines
from zeh_spark.tools.cli.parameters import PATIENCE, connects
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
    partition and headers in data.row. If one of the dead letters still cannot be published, none is
    published, and the error names its line.

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
