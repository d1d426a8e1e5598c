"""The commands about dead letters: `dead-letters` prints them, `replay-dead` publishes them."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

import click

from zeh_spark.cli import dead_letter_replay
from zeh_spark.cli.dead_letter_replay import Outcome
from zeh_spark.cli.parameters import counted
from zeh_spark.cli.tail import follow
from zeh_spark.errors import StoreError
from zeh_spark.protocol import dead_letters, wire
from zeh_spark.protocol.dead_letters import Unreadable
from zeh_spark.protocol.feed_identity import FeedIdentity

_PATIENCE = {"retryTimeout": "10s"}


@click.command("dead-letters")
@click.argument("url")
def list_letters(url: str) -> None:
    """Print the letters of a dead-letter feed, one on a line, as events with their headers.

    They are those of rows that a sink with the option deadLetterUrl could not publish. One that
    is in parts, because it is long, is printed whole. Other events of the feed are left out, named
    on standard error, and the command ends with 1.

    \b
    Example:
      zeh-spark dead-letters http://127.0.0.1:8080/orders-dead | jq .data.reason | sort | uniq -c
    """
    out = sys.stdout.buffer
    pages = follow(url, wire.FIRST, whole=True, endless=False)
    others = 0

    def left_out(other: Unreadable) -> None:
        nonlocal others
        others += 1
        click.echo(f"Left out, event {other.line} of {url}: {other.reason}", err=True)

    try:
        for letter in dead_letters.letters(chain.from_iterable(pages), left_out):
            out.write(letter.whole + b"\n")
        out.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # `| head` has enough
    if others:
        sys.exit(1)


@click.command("replay-dead")
@click.argument("url")
@click.option(
    "--letters-of", metavar="URL",
    help="Dead-letter feed of the letters without the header zeh-feed, which an older version "
    "printed. Other letters keep the feed that they name.",
)  # fmt: skip
def replay_dead(url: str, letters_of: str | None) -> None:
    """Publish mended dead letters, from standard input, to the feed at URL, each once.

    A line is a letter as dead-letters prints it (or tail --headers), whose row.data is the event
    now: text that is JSON, or JSON. It goes where its row's key, partition and headers say. If one
    of them still cannot be published, none is, and the error names the line. The command can be
    repeated, and be given letters again: each is published once, as it came first.

    A letter has to say which dead-letter feed it is from. Files that an older version printed do
    not: print the letters again, or name their feed with --letters-of.

    \b
    Example:
      zeh-spark dead-letters http://127.0.0.1:8080/orders-dead > dead.ndjson
      jq -c '(.data.row.data | strings) |= gsub("NaN"; "null")' dead.ndjson |
        zeh-spark replay-dead http://127.0.0.1:8080/orders
    """
    feed = None if letters_of is None else _dead_letter_feed(letters_of, url)
    count = dead_letter_replay.partition_count(url, **_PATIENCE)
    with _named("standard input", "; nothing was published"):
        letters = dead_letter_replay.mended(dead_letters.letters(sys.stdin.buffer), count, feed)
    outcomes: Counter[Outcome] = Counter()
    try:
        for each in dead_letter_replay.replay(url, letters, **_PATIENCE):
            outcomes[each.outcome] += 1
            if each.outcome is Outcome.REFUSED:
                click.echo(f"Refused, line {each.letter.line}: {each.reason}.", err=True)
    finally:
        _tell(outcomes, len(letters))
    if outcomes[Outcome.REFUSED]:
        sys.exit(1)


def _dead_letter_feed(url: str, target: str) -> FeedIdentity:
    """Return the identity of the feed at `url`. Raises UsageError if it is the target's."""
    feed = dead_letter_replay.identity_of(url, **_PATIENCE)
    if feed.id == dead_letter_replay.identity_of(target, **_PATIENCE).id:
        raise click.UsageError(
            f"--letters-of {url} is the feed that the letters are published to; give the "
            f"dead-letter feed that they were printed from."
        )
    return feed


@contextmanager
def _named(source: str, more: str = "") -> Iterator[None]:
    try:
        yield
    except Unreadable as exc:
        raise StoreError(f"{source}, line {exc.line}: {exc.reason}{more}") from None


def _tell(outcomes: Counter[Outcome], letters: int) -> None:
    published, repeated = outcomes[Outcome.PUBLISHED], outcomes[Outcome.REPEATED]
    said = f"Published {counted(published, 'letter')}"
    if repeated:
        said += f"; {counted(repeated, 'letter')} published before: no change"
    if left := letters - sum(outcomes.values()):
        said += f"; {counted(left, 'letter')} left: run it again"
    click.echo(f"{said}.")


COMMANDS = (list_letters, replay_dead)
