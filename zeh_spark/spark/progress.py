"""Monitor running queries, and drain a feed with the Spark versions that cannot do it.

Spark gives Python sources no channel for metrics. The numbers are therefore in the offsets (events
and bytes of each batch). From Spark 4.2, more are in what the source reports as its latest offset:
the lag, pages, retries, ignored lines, time spent fetching, events ready. `ProgressListener` reads
them there. Before Spark 4.2 the lag is in the offsets, too. What a query publishes is in no
progress, so it asks the publisher (`sink.commits`).

Rule for editors: nothing here decides what a query does. Runs on the driver.
"""

from __future__ import annotations

import logging
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson
from pyspark.sql.streaming.listener import StreamingQueryListener, StreamingQueryProgress

from zeh_spark.errors import OptionError, ZeroEventHubError
from zeh_spark.spark.sink.commits import SinkCommit, SinkCommits
from zeh_spark.spark.source.offsets import is_of_a_feed
from zeh_spark.wire.phrases import counted

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )
    from pyspark.sql.streaming.query import StreamingQuery


@dataclass(frozen=True, slots=True)
class FeedProgress:
    """One micro-batch of one feed in one run of a query.

    The totals, `pages` to `fetch_seconds`, count from the run's start. They and `ready_events` are
    None before Spark 4.2.

    Args:
        run_id: Spark's id of the run.
        query: the query's name, None if it has none.
        feed: the feed's name in the checkpoint: the option `feedId`, or its URL.
        batch_id: the number of the micro-batch in its checkpoint.
        events: the events of this feed in the micro-batch.
        bytes: the bytes of those events, as they were read.
        events_per_second: the events divided by the time that the micro-batch took.
        pages: requests for events that were answered.
        retries: requests that were repeated.
        ignored_lines: lines of the feed that were passed over.
        fetch_seconds: the time spent fetching, in seconds.
        ready_events: events that are fetched and wait for the next micro-batch.
        events_behind: events of the feed that the query has not read after the micro-batch; None if
            the publisher does not tell it.
        max_events_behind: those of the partition that has most of them.
        at_least: whether there may be more of them: a table's rows are counted up to a limit.
        seconds_behind: the age of the oldest of them in seconds, 0 without one; None if the
            publisher does not tell it, or it is not known.
        has_more: whether the feed may hold more events than a run with availableNow took. It is
            known on Spark 4.0 and 4.1, where the first micro-batch ends the run; and on any Spark
            if the run ended after many answers without events, which is no proof of the end.
    """

    run_id: str
    query: str | None
    feed: str
    batch_id: int
    events: int
    bytes: int
    events_per_second: float
    pages: int | None = None
    retries: int | None = None
    ignored_lines: int | None = None
    fetch_seconds: float | None = None
    ready_events: int | None = None
    events_behind: int | None = None
    max_events_behind: int | None = None
    seconds_behind: float | None = None
    has_more: bool | None = None
    at_least: bool = False

    def __str__(self) -> str:
        line = f"{self.query}  " if self.query else ""
        line += (
            f"{self.feed}  batch {self.batch_id}  {counted(self.events, 'event')}  "
            f"{self.bytes / 1e6:,.1f} MB  {self.events_per_second:,.0f} events/s"
        )
        if self.events_behind is not None:
            line += f"  {'at least ' * self.at_least}{self.events_behind:,} behind"
            line += f" ({self.seconds_behind:,.1f} s)" if self.seconds_behind else ""
        elif self.has_more:
            line += "  more events are unread"
        if self.ready_events:
            line += f"  {self.ready_events:,} ready"
        if self.retries:
            line += f"  {counted(self.retries, 'retry', 'retries')}"
        return line


def feed_progress(progress: dict[str, Any]) -> list[FeedProgress]:
    """Return the progress of each feed in a query's progress.

    Args:
        progress: the query's progress, as Spark gives it or parsed from its JSON.

    Returns:
        One for each source that is a feed; other sources are left out.
    """
    if isinstance(progress, StreamingQueryProgress):  # in Spark 4.0 and 4.1 its offsets are no JSON
        progress = orjson.loads(progress.json)
    offsets = [
        [_document(source.get(name)) for name in ("endOffset", "latestOffset")]
        for source in progress.get("sources", ())
    ]
    return [_feed_progress(progress, *each) for each in offsets if is_of_a_feed(each[0])]


def _feed_progress(
    progress: dict[str, Any], end: dict[str, Any], report: dict[str, Any]
) -> FeedProgress:
    partitions = end["partitions"].values() if _has_run(progress) else ()
    events = sum(each.get("events", 0) for each in partitions)
    seconds = progress.get("durationMs", {}).get("triggerExecution", 0) / 1000
    behind = report if "eventsBehind" in report else end.get("behind") or {}
    unread, aged = behind.get("eventsBehind") or {}, behind.get("secondsBehind") or {}
    return FeedProgress(
        run_id=progress["runId"],
        query=progress.get("name"),
        feed=end["feed"],
        batch_id=progress["batchId"],
        events=events,
        bytes=sum(each.get("bytes", 0) for each in partitions),
        events_per_second=events / seconds if seconds else 0.0,
        pages=report.get("pages"),
        retries=report.get("retries"),
        ignored_lines=report.get("ignoredLines"),
        fetch_seconds=report.get("fetchSeconds"),
        ready_events=report.get("readyEvents"),
        events_behind=unread.get("total"),
        max_events_behind=unread.get("max"),
        seconds_behind=aged.get("max"),
        has_more=end.get("behind", {}).get("more"),
        at_least=unread.get("atLeast", False),
    )


def _document(offset: Any) -> dict[str, Any]:
    """Return an offset as a dict. Spark's versions give JSON text, or a parsed value."""
    if isinstance(offset, str):
        try:
            offset = orjson.loads(offset)
        except ValueError:
            return {}
    return offset if isinstance(offset, dict) else {}


class ProgressListener(StreamingQueryListener):
    """A listener that counts what the queries of a session read from feeds and publish to them.

    Register it with `spark.streams.addListener(ProgressListener(live=True))`. Its attribute
    `latest` has the newest `FeedProgress` of each run and feed, by (run id, feed); `total_events`
    has the number of their events in all, by the same; `commits` has the newest `SinkCommit` of
    each run, feed and producer, by (run id, the feed's address, producer).

    Args:
        live: show the progress. In a terminal or a notebook it is one line that is updated in
            place; anywhere else it is a line on standard error for each micro-batch.
        logger: gets a line for each micro-batch at level INFO, for runs that nobody watches.
        report: is called with each `FeedProgress`, for a metrics system for example.
        sinks: where the queries publish: for each producer the feed's address and the producer's
            name, as for `zeh_spark.receipts`, and perhaps a mapping with options that say how to
            reach the publisher, like `token`, and which dead-letter feed it has, `deadLetterUrl`.
            After each micro-batch of a query the publisher is asked for its receipt, for 4 seconds
            at most. If it does not answer, that is logged once, and it is not asked for a minute.
        report_commit: is called with each `SinkCommit`.

    Raises:
        OptionError: an option of a sink is not valid.
    """

    def __init__(
        self,
        *,
        live: bool = False,
        logger: logging.Logger | None = None,
        report: Callable[[FeedProgress], object] | None = None,
        sinks: Sequence[tuple[str, str] | tuple[str, str, Mapping[str, object]]] = (),
        report_commit: Callable[[SinkCommit], object] | None = None,
    ) -> None:
        self.latest: dict[tuple[str, str], FeedProgress] = {}
        self.total_events: dict[tuple[str, str], int] = {}
        self.commits: dict[tuple[str, str, str], SinkCommit] = {}
        _check_sinks(sinks)
        self._sinks = [SinkCommits(*sink) for sink in sinks]
        self._report = report
        self._report_commit = report_commit
        self._show = _live_line() if live else None
        self._logger = logger

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing (see `StreamingQueryListener.onQueryStarted`)."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Count, report and show a micro-batch's events (see `StreamingQueryListener`)."""
        document = orjson.loads(event.progress.json)
        lines = self._read(document)
        if published := self._published(document):
            named = lines[-1:] or ([document["name"]] if document.get("name") else [])
            lines[-1:] = ["  ".join([*named, *map(str, published)])]
        for line in lines:
            if self._show:
                self._show(line)
            if self._logger:
                self._logger.info("%s", line)

    def _read(self, document: dict[str, Any]) -> list[str]:
        """Count and report what a micro-batch has read. Return a line for each feed."""
        lines = []
        for progress in feed_progress(document):
            key = (progress.run_id, progress.feed)
            self.latest[key] = progress
            total = self.total_events.get(key, 0) + progress.events
            self.total_events[key] = total
            if self._report:
                self._report(progress)
            lines.append(f"{progress}  {total:,} in all")
        return lines

    def _published(self, document: dict[str, Any]) -> list[SinkCommit]:
        """Report and return what a micro-batch has published."""
        found = [commit for sink in self._sinks if (commit := sink.of(document))]
        for commit in found:
            self.commits[commit.run_id, commit.feed, commit.producer] = commit
            if self._report_commit:
                self._report_commit(commit)
        return found

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Do nothing (see `StreamingQueryListener.onQueryIdle`)."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """End the line that `live` shows (see `StreamingQueryListener`)."""
        if self._show:
            self._show(None)


def _check_sinks(sinks: Any) -> None:
    """Raise OptionError if sinks have another form."""
    for sink in sinks if isinstance(sinks, (list, tuple)) else [None]:
        match sink:
            case [str(), str()] | [str(), str(), Mapping()]:
                continue
        raise OptionError(
            f"sinks={sinks!r} must be a list of (url, producer), or (url, producer, options) with "
            f"options like {{'token': …}}",
            option="sinks",
        )


def _live_line() -> Callable[[str | None], None]:
    """Return a function that shows a line over the one before; None ends it."""
    if (ipython := sys.modules.get("IPython")) and ipython.get_ipython():  # this is a notebook
        from IPython.display import display  # type: ignore[import-not-found, unused-ignore]

        handle = display({"text/plain": ""}, raw=True, display_id=True)  # type: ignore[no-untyped-call, unused-ignore]
        return lambda text: handle.update({"text/plain": text}, raw=True) if text else None

    return _terminal_line if sys.stderr.isatty() else _plain_line


def _terminal_line(text: str | None) -> None:
    if text is None:
        sys.stderr.write("\n")
    else:  # cut to the terminal's width, because a wrapped line cannot be written over
        sys.stderr.write(f"\r\x1b[2K{text[: shutil.get_terminal_size().columns - 1]}")
    sys.stderr.flush()


def _plain_line(text: str | None) -> None:
    """Write the line so that it stays: standard error is a file or a pipe."""
    if text is not None:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


_KEPT = "spark.sql.streaming.numRecentProgressUpdates"
_RUNS_WITHOUT_EVENTS = 100
"""Runs without an event after which `drain` gives up, though the cursors still move."""


def drain(
    start: Callable[[], StreamingQuery], *, timeout: float | None = None, live: bool = False
) -> int:
    """Run a query again and again until the feed gives no new events.

    Spark 4.0 and 4.1 need this, because their trigger AvailableNow makes a single micro-batch,
    which may not have all events of the feed. Later versions read the feed to its end in one run.
    It ends after a run without a micro-batch, or after two runs in a row without events, because a
    run may only repeat a micro-batch that the sink already has, or only find where to begin. A
    run that says itself that events are unread (`FeedProgress.has_more`) is not one of the two.

    Args:
        start: starts the query and returns it; each time with the trigger `availableNow` and the
            same checkpointLocation.
        timeout: seconds after which no other run begins; None for no limit. A run that has begun is
            not interrupted.
        live: show a line for each run and feed, as `ProgressListener` does.

    Returns:
        The number of runs.

    Raises:
        OptionError: Spark keeps no progress of the run (`numRecentProgressUpdates`).
        ZeroEventHubError: the feed still gave events when `timeout` had passed; or no events for
            100 runs, while its cursors moved.
        StreamingQueryException: the query failed.
    """
    began, show = time.monotonic(), _live_line() if live else None
    runs = without_events = 0
    while True:
        query = start()
        query.awaitTermination()
        runs += 1
        if not (progress := query.recentProgress):  # Spark reports each run, also without a batch
            raise OptionError(
                f"drain: whether the run brought events is not known, because Spark has kept no "
                f"progress of it: {_KEPT} is less than 2. What was read is committed. Set it to "
                f"100, Spark's default, and call drain again",
                option=_KEPT,
                anchor="drain-does-not-know-whether-a-run-brought-events",
            )
        batches = [each for each in progress if _has_run(each)]
        if show and batches:
            for each in feed_progress(batches[-1]):
                show(f"run {runs}  {each}")
        without_events = 0 if any(map(_has_events, batches)) else without_events + 1
        if not batches or (
            without_events >= 2 and not any(each.has_more for each in feed_progress(batches[-1]))
        ):
            return runs
        if without_events == _RUNS_WITHOUT_EVENTS:
            raise ZeroEventHubError(
                f"drain: the last {without_events} of {runs} runs brought no event, though the "
                f"cursors of the feed moved. What was read is committed. Ask the owner of the feed "
                f"why its publisher skips so much, and call drain again to continue"
            )
        if timeout is not None and time.monotonic() - began > timeout:
            raise ZeroEventHubError(
                f"drain: the feed still gives events after {timeout:g} s. What was read is "
                f"committed: call drain again to continue, with a longer timeout"
            )


def _has_run(progress: dict[str, Any]) -> bool:
    """Return whether a progress is that of a micro-batch, and not of a look for events."""
    return "addBatch" in (progress.get("durationMs") or {}) or bool(progress.get("numInputRows"))


def _has_events(progress: dict[str, Any]) -> bool:
    """Return whether a micro-batch has events of a feed, or rows of another source.

    The feeds' own counts are needed: a sink that skips a micro-batch reads no row. Rejected: the
    progress's own numInputRows, which Spark Connect 4.0 and 4.1 do not fill.
    """
    rows = any(source["numInputRows"] for source in progress["sources"])
    return rows or any(each.events for each in feed_progress(progress))
