"""The commands that say what is wrong, or how far something is behind: `check`, `doctor`, `lag`.

`check` judges any publisher by the protocol; `doctor` looks at this machine, and at a feed from it;
`lag` tells how far a reader is behind. They only look. None needs a server's libraries, and only
`doctor --spark` imports PySpark.

A reader's positions are in a checkpoint, which Spark's commits and offsets make, or in a cursor set
of the publisher. Of a cursor set the publisher tells the lag alone, never the cursors: another
reader could take them for its own.
"""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

import click

from zeh_spark.errors import PublisherError, StoreError, printable
from zeh_spark.tools.check.rules import Finding, Verdict
from zeh_spark.tools.cli.output import print_answer, print_findings, table
from zeh_spark.tools.cli.parameters import AGE, SIZE, client_options, connects
from zeh_spark.tools.cli.reader_commands import committed_cursors
from zeh_spark.tools.doctor.checks import Check, State
from zeh_spark.wire.option_values import MAX_PARTITIONS, FeedUrl
from zeh_spark.wire.phrases import counted

if TYPE_CHECKING:
    from zeh_spark.client.http.lag import Lag
    from zeh_spark.client.http.transport import Transport
    from zeh_spark.client.options.client_options import ClientOptions

_MARKS: dict[Verdict | State, tuple[str, str | None]] = {
    Verdict.PASS: ("ok", "green"), State.OK: ("ok", "green"),
    Verdict.DEVIATION: ("DEVIATION", "yellow"), State.WARNING: ("WARNING", "yellow"),
    Verdict.FAILURE: ("FAILURE", "red"), State.FAILURE: ("FAILURE", "red"),
    Verdict.NOTE: ("note", None), State.NOTE: ("note", None),
    Verdict.SKIPPED: ("-", None),
}  # fmt: skip
"""How the result of a rule or check is shown, and in which color."""


@click.command()
@click.argument("url")
@click.option(
    "--partitions", type=click.IntRange(1, MAX_PARTITIONS), metavar="N",
    help="The number of partitions that the feed's documentation names. Without it, the number is "
    "asked for, and otherwise found by trying 1, 2, 4 and so on.",
)  # fmt: skip
@click.option(
    "--timeout", type=AGE, default="2m", show_default=True, metavar="DURATION",
    help="The time for all requests together.",
)  # fmt: skip
@click.option(
    "--max-bytes", type=SIZE, default="64m", show_default=True, metavar="SIZE",
    help="The bytes of all answers together. A single answer may have an eighth of them.",
)  # fmt: skip
@click.option("--all", "every", is_flag=True, help="Print the rules that pass, too.")
@click.option(
    "--junit", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
    help="Write a JUnit report, too, which CI systems show. Each rule is a test case.",
)  # fmt: skip
@connects
def check(
    url: str,
    partitions: int | None,
    timeout: int,
    max_bytes: int,
    every: bool,
    junit: Path | None,
    connect: dict[str, str],
) -> None:
    """Judge the publisher of a feed by the ZeroEventHub specification and by known traps.

    The feed may be of any publisher. The command sends about 100 GET requests, or up to 200 if the
    feed changes meanwhile or answers differ. It reads the first 2,000 events of at most four
    partitions, several times. It stores nothing, and needs no Spark. It judges each rule:

    ok: the publisher does what the rule says, as far as was seen.

    note: it does, in a way that a reader should know of.

    DEVIATION: clients of one kind fail, or need an option.

    FAILURE: readers lose events, get them twice, or cannot read. The exit code is 3 then.

    Each rule that does not pass is printed with what was found, the section of the specification or
    the reason, and what to do.

    \b
    Examples:
      zeh-spark check https://orders.example/feed/v1
      zeh-spark check https://orders.example/feed/v1 --partitions 4 --token-file token.txt --json
      zeh-spark check https://orders.example/feed/v1 --junit check.xml
    """
    from zeh_spark.tools.check.judge import judge
    from zeh_spark.tools.check.junit import report

    options = client_options(url, connect, patience="0")
    found = judge(options, partitions=partitions, seconds=timeout / 1000, most_bytes=max_bytes)
    counts: dict[str, Any] = {each.value: found.count(each) for each in Verdict}
    parts = [_finding(each) for each in found if every or each.told]
    if junit:
        junit.write_text(report(found, str(options.url)), encoding="utf-8")
    read = (
        f"{counted(found.events, 'event')} read in {counted(found.requests, 'request')} from "
        f"{counted(found.partitions or 0, 'partition')}"
    )
    summary = (
        f"{counted(counts['pass'], 'rule')} ok, {counted(counts['deviation'], 'deviation')}, "
        f"{counted(counts['failure'], 'failure')}, {counts['skipped']} not tested: {read}."
    )
    print_findings(
        "\n".join([*parts, summary]),
        failed=counts["failure"] > 0,
        url=str(options.url),
        verdict="failure" if counts["failure"] else "deviation" if counts["deviation"] else "pass",
        partitions=found.partitions,
        events=found.events,
        requests=found.requests,
        bytes=found.bytes,
        counts=counts,
        rules=[each.document() for each in found],
    )


def _finding(finding: Finding) -> str:
    rule, title = finding.rule, f"{finding.rule.id}: {finding.rule.title}"
    if not finding.told:
        found = f" ({printable(finding.found)})" if finding.found else ""
        return _entry(finding.verdict, f"{title}{found}")
    times = f" ({finding.times:,} times)" if finding.times > 1 else ""
    found = f"{finding.found}{times}"
    return _entry(finding.verdict, title, found=found, source=rule.source, do=rule.remedy)


def _entry(result: Verdict | State, title: str, **told: str) -> str:
    """Return a title with its mark, and named paragraphs below it, as wide as the terminal."""
    mark, color = _MARKS[result]
    width = max(40, min(100, get_terminal_size((100, 24)).columns))
    lines = [f"{click.style(f'{mark:9}', color)}  {title}"]
    for name, text in told.items():
        first = f"{'':11}{name + ':':8}"
        rest = " " * len(first)
        lines.append(
            textwrap.fill(printable(text), width, initial_indent=first, subsequent_indent=rest)
        )
    return "\n".join(lines)


@click.command()
@click.argument("url", required=False)
@click.option(
    "--spark", "starts_spark", is_flag=True,
    help="Start Spark, too, and have a worker import the package and read an event of URL. Takes "
    "about 20 seconds.",
)  # fmt: skip
@connects
def doctor(url: str | None, starts_spark: bool, connect: dict[str, str]) -> None:
    """Look for what keeps Spark on this machine from reading and publishing feeds.

    Looks at Python, Java, PySpark, the Python of Spark's workers and the package there, the
    libraries for sessions, Delta Lake and RocksDB. With URL, the address of a feed, also whether it
    is reached, the token, the number of partitions, and the difference of the clocks.

    Each check that is not in order says what to do. A note is about something that only some users
    need. The exit code is 3 if a check fails.

    \b
    Examples:
      zeh-spark doctor
      zeh-spark doctor http://127.0.0.1:8080/flights --spark
    """
    from zeh_spark.tools.doctor import installed_spark, machine, peer, trial

    found = [*machine.checks(), *installed_spark.checks()]
    if url:
        found += peer.checks(client_options(url, connect, patience="0"))
    failed = any(each.state is State.FAILURE for each in found)
    if starts_spark and not failed:
        found += trial.checks(url, connect)
        failed = any(each.state is State.FAILURE for each in found)
    said = "\n".join(map(_check, found))
    if starts_spark and not any(each.name == "spark" for each in found):
        said += "\nSpark was not started: mend what failed first."
    checks = [each.document() for each in found]
    print_findings(said, failed=failed, ok=not failed, checks=checks)


def _check(check: Check) -> str:
    if check.state is State.OK:
        return _entry(check.state, f"{check.name}: {printable(check.found)}")
    remedy = {"do": check.remedy} if check.remedy else {}
    return _entry(check.state, check.name, found=check.found, **remedy)


# lag

_PATIENCE_SECONDS = 10.0
"""Seconds for which a publisher that counts a long feed for the first time is asked again."""


@click.command()
@click.argument("url")
@click.option(
    "--checkpoint", type=click.Path(path_type=Path), metavar="DIR",
    help="The checkpointLocation of a query, a folder on this machine.",
)  # fmt: skip
@click.option("--cursorset", metavar="NAME", help="The cursor set of a reader: option cursorSet.")
@click.option(
    "--feed-id", metavar="NAME", help="The query's option feedId, if it has one.",
)  # fmt: skip
@connects
def lag(
    url: str,
    checkpoint: Path | None,
    cursorset: str | None,
    feed_id: str | None,
    connect: dict[str, str],
) -> None:
    """Show how many events a reader has not read yet, and how old they are.

    Give --checkpoint or --cursorset. Events count as read when the query has committed them. The
    number is exact near the end of the feed; far from it, it may be too high by two percent. The
    publisher has to be zeh-spark serve.

    The feed may be a table of your own (outbox). Its rows are counted up to 10,000 for a
    request, and their age needs the setting time.

    With --cursorset the token needs the right that /metrics needs.

    \b
    Examples:
      zeh-spark lag http://127.0.0.1:8080/orders --checkpoint checkpoints/orders
      zeh-spark lag http://127.0.0.1:8080/orders --cursorset warehouse --json
    """
    if (checkpoint is None) == (cursorset is None):
        raise click.UsageError("Give either --checkpoint or --cursorset.")
    options = client_options(url, connect)
    if checkpoint:
        found, shown = _of_checkpoint(options, checkpoint, feed_id)
    else:
        found, shown = _of_cursor_set(options, str(cursorset))
    print_answer(shown, feed=str(options.url), **found)


def _of_checkpoint(
    options: ClientOptions, checkpoint: Path, feed_id: str | None
) -> tuple[dict[str, Any], str]:
    """Return the lag of a checkpoint as a document, and as text."""
    from zeh_spark.client.http.lag import metrics
    from zeh_spark.client.http.transport import Transport

    batch, n, at = committed_cursors(checkpoint, feed_id or options.url.identity)
    found = _asked(Transport(options), at.positions, n)
    document = {"batch": batch, **metrics(found), "partitions": found.of_partitions()}
    parts = found.partitions.items()
    rows = [(f"{each}", f"{events:,}", _age(age)) for each, (events, age) in parts]
    told = table(("PARTITION", "EVENTS BEHIND", "OLDEST"), rows)
    aged = document["secondsBehind"]
    said = _summary(found.total, aged and aged["max"], found.at_least)
    return document, f"{told}\n\n{said} after batch {batch}."


def _asked(transport: Transport, cursors: Mapping[int, str], n: int) -> Lag:
    from zeh_spark.client.http.lag import lag_at

    end = time.monotonic() + _PATIENCE_SECONDS
    while not (found := lag_at(transport, cursors, n)):
        if time.monotonic() > end:
            raise PublisherError(
                f"the publisher of {transport.url} has not counted the feed yet. Try again in a "
                f"minute"
            )
        time.sleep(0.2)
    return found


def _of_cursor_set(options: ClientOptions, name: str) -> tuple[dict[str, Any], str]:
    feed = options.url.parts.path.rstrip("/").rpartition("/")[2]
    found = {
        (labels["n"], metric): value
        for metric, labels, value in _gauges(options)
        if labels.get("feed") == feed and labels.get("cursorset") == name
    }
    numbers = sorted({n for n, _ in found}, key=int)
    if not numbers:
        raise StoreError(
            f"the publisher has no lag of the cursor set {name!r} of feed {feed!r}. See the "
            f"names on the feed's page of the console, or for a feed of a store with zeh-spark "
            f"cursor-sets {feed}. If it is there, try again in a minute"
        )
    # A table keeps cursors of each `n`: the reader that is furthest behind counts.
    lags = {
        n: (found.get((n, "zeh_consumer_lag_at_least"), 0), found[n, "zeh_consumer_lag_events"])
        for n in numbers
    }
    n = max(numbers, key=lags.__getitem__)
    at_least, events = bool(lags[n][0]), int(lags[n][1])
    seconds = found.get((n, "zeh_consumer_lag_seconds"))
    known = int(found[n, "zeh_consumer_partitions"])
    document = {
        "cursorset": name,
        "n": int(n),
        "partitionsWithPosition": known,
        "eventsBehind": {"total": events, **({"atLeast": True} if at_least else {})},
        "secondsBehind": None if seconds is None else {"max": seconds},
    }
    told = f"{_summary(events, seconds, at_least)} after the positions of {name!r}."
    if known < int(n):
        told += (
            f" It has a position in {known} of {counted(int(n), 'partition')}; events of the "
            f"others are not counted."
        )
    return document, told


def _gauges(options: ClientOptions) -> Iterator[tuple[str, dict[str, str], float]]:
    """Yield name, labels and value of each metric of a publisher."""
    from prometheus_client.parser import text_string_to_metric_families

    from zeh_spark.client.http.transport import Body, Transport

    parts = options.url.parts
    above = parts._replace(path=parts.path.rstrip("/").rpartition("/")[0], query="").geturl()
    transport = Transport(replace(options, url=FeedUrl(above)))

    def read() -> str:
        with transport.request("GET", "/metrics") as response:
            return Body(response, transport.url).whole().decode(errors="replace")

    for family in text_string_to_metric_families(transport.retry().call(read)):
        yield from ((each.name, each.labels, each.value) for each in family.samples)


def _summary(events: int, seconds: float | None, at_least: bool = False) -> str:
    if not events and seconds is not None:
        return "Nothing is unread"
    said = f"{'At least ' * (at_least or not events)}{counted(events, 'event')} unread"
    return said if seconds is None else f"{said}, the oldest for {_age(seconds)},"


def _age(seconds: float | None) -> str:
    return f"{seconds:,.1f} s" if seconds else "-"
