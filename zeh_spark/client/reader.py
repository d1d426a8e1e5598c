"""Read a feed without Spark: events in Arrow, with the cursors after them.

One request is under way at a time, in the caller's thread: a read that follows asks the partitions
in turn, and if none has anything new, one request waits for all (spec "wait"). Rejected: a thread
for each partition, which a service would have to end.

Rule for editors: nothing is read ahead of what the caller has. By asking for the next page he says
that he has kept the last one, and only then its cursors are reported to the publisher.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from itertools import islice
from typing import Any, TypeAlias
from urllib.parse import quote, urlencode

import pyarrow as pa

from zeh_spark.client.decoding.lines import Decoder
from zeh_spark.client.http.direct_client import cursors_at
from zeh_spark.client.http.discovery import discover, rediscover
from zeh_spark.client.http.feed_client import FeedClient, Page, PageRequest
from zeh_spark.client.http.responses import TransientError
from zeh_spark.client.options.given import parse
from zeh_spark.client.options.option_metadata import declared, option_name
from zeh_spark.client.options.reading_options import ReadingOptions
from zeh_spark.client.polling.cursor_loops import CursorRounds
from zeh_spark.client.polling.feed_end_probes import first_checkpoint
from zeh_spark.client.polling.finite_read import EndUnknownError, FiniteRead, find_end, joined
from zeh_spark.client.polling.position_reporter import PositionReporter
from zeh_spark.errors import (
    CheckpointError,
    CursorGoneError,
    OptionAdvice,
    OptionError,
    ZeroEventHubError,
)
from zeh_spark.wire import wire
from zeh_spark.wire.feed_identity import Epoch, untold
from zeh_spark.wire.stamp_columns import STAMP_COLUMNS

PageAndCursors: TypeAlias = tuple[pa.RecordBatch, str]

_ARGUMENTS = {each.name: each.field for each in declared(ReadingOptions).values()} | {
    "startingCursors": "cursors"
}
_GONE = OptionAdvice(
    "to go on without them, begin at {} with the error's `oldest` as that of this partition",
    ("startingCursors",),
)
_BEGIN_ELSEWHERE = OptionAdvice(
    "begin at {} that you kept earlier, or at 'first'", ("startingCursors",)
)

_MOST_SKIPPED = 100
"""Rounds in a row that only move cursors before a read pauses: some publishers move for ever."""
_MOST_WAITED_FOR = 100
"""Most partitions for which one request waits, so that its URL stays short."""


def reader(
    url: str,
    cursors: str | Mapping[Any, str] | None = None,
    *,
    follow: bool = False,
    **options: object,
) -> Pages:
    """Read a feed: yield pages of events, each with the cursors after it, from cursors on.

    A page is an Arrow record batch with events of one partition up to a checkpoint, in the columns
    of the Spark source: `partition`, `headers` (a map) and `data` (JSON, byte for byte). It has
    about `page_size_hint` events, and little more than 1 MiB, unless the publisher's checkpoints
    lie further apart. It has no rows if only a cursor moved, and the read does not follow.

    The cursors are JSON text, which also names the feed and its number of partitions. Keep them in
    the transaction that keeps the events. By asking for the next page you say that the last one was
    kept: after a transaction that failed, begin a new reader. No request is sent before the first
    page is asked for, or after the reader's `close()`. After an error the reader raises it again. A
    reader belongs to one thread.

    Args:
        url: the feed's address.
        cursors: where to begin: the cursors of the page that was kept last; a cursor for each
            partition, as dict or JSON; `first` or `last`. None begins at the first event, or at
            `starting_timestamp`.
        follow: whether to go on at the end of the feed. A page without events then says that all
            was read, and the next one waits for events, for up to `wait`.
        **options: options of the Spark source, in Python's spelling: those that say how to reach
            the publisher (`token`, `ca_file`, `retry_timeout="30s"`), and `headers`,
            `only`, `page_size_hint`, `partition_count`, `partitions`, `ending_cursors`, `feed_id`,
            `cursor_set`, `wait` and `poll_interval`. A value of None counts as not given; a list or
            tuple stands for its elements with commas between them.

    Raises:
        OptionError: an option or the cursors are not valid.
        CheckpointError: with the first page: the cursors belong to another feed.
        CursorGoneError: with a page: events were removed before they were read.
        PublisherError: with a page: the publisher refuses, or breaks the protocol.
        UnavailableError: with a page: the publisher did not answer within `retry_timeout`.
    """
    given = {
        option_name(name): ",".join(value) if isinstance(value, list | tuple) else str(value)
        for name, value in options.items()
        if value is not None
    }
    kept: dict[str, str] = {}
    if cursors is not None:
        given.pop("startingTimestamp", None)
        with suppress(ValueError):
            cursors = json.loads(cursors) if isinstance(cursors, str) else cursors
        if isinstance(cursors, Mapping):
            begun = {str(name): cursor for name, cursor in cursors.items()}
            kept = {name: begun.pop(name) for name in ("feed", "n", "reader") if name in begun}
            given = {**({"partitionCount": kept["n"]} if "n" in kept else {}), **given}
            cursors = json.dumps(begun)
        given["startingCursors"] = str(cursors).removeprefix("_")
    try:
        parsed = parse(ReadingOptions, {"url": url, **given})
        if follow:
            parsed.check_stream()
            if parsed.ending_cursors != "last":
                raise OptionError("follow=True excludes 'ending_cursors'. Leave one of them out")
    except OptionError as exc:
        raise _in_own_words(exc) from None
    stamps = [each.name for each in STAMP_COLUMNS] if parsed.stamps == "columns" else []
    columns = ("partition", *stamps, "headers", "data")
    return Pages(_Reader(replace(parsed, columns=columns), kept, follow).pages())


def _in_own_words(exc: ZeroEventHubError) -> ZeroEventHubError:
    """Return an error with a reader's arguments in the place of the Spark source's options."""
    advice = exc.advice
    if advice and not {*advice.options} <= _ARGUMENTS.keys():  # it is about a query of Spark
        advice = _GONE if isinstance(exc, CursorGoneError) else _BEGIN_ELSEWHERE
    said = re.sub(r"'(\w+)'", lambda found: f"'{_argument(found[1])}'", exc.what)
    return exc.reworded(said, advice=advice and advice.renamed(_argument))


def _argument(option: str) -> str:
    return _ARGUMENTS.get(option, option)


class Pages(Iterator[PageAndCursors]):
    """What a reader yields. After an error it raises the error again, and does not seem to end.

    After an interrupt, or any other exception, it raises that it was interrupted.
    """

    def __init__(self, pages: Generator[PageAndCursors, None, None]) -> None:
        self._pages = pages
        self._failure: ZeroEventHubError | None = None

    def __next__(self) -> PageAndCursors:
        if self._failure:
            raise self._failure
        try:
            return next(self._pages)
        except ZeroEventHubError as exc:
            self._failure = _in_own_words(exc)
            raise self._failure from exc.__cause__
        except StopIteration:
            raise
        except BaseException:  # also an interrupt: raised again, and remembered
            self._failure = ZeroEventHubError(
                "this reader was interrupted while it read a page. Begin a new one at the cursors "
                "that you kept"
            )
            raise

    def close(self) -> None:
        """Give up the connection. After that, no request is sent, and no page comes."""
        self._pages.close()


class _Reader:
    """One read. Guarantee: a page has what lies between two positions, each event once.

    `kept` has the ids of the feed and of the reader, and the number of partitions, if they came
    with the cursors.
    """

    def __init__(self, options: ReadingOptions, kept: dict[str, str], follows: bool) -> None:
        self._options = options
        self._kept = kept
        self._follows = follows
        self._client = FeedClient(options)
        self._decoder = Decoder(options.columns, "", False, options.hidden_headers)
        self._reporter = PositionReporter(options)
        self._events = 0
        self._doubts_epoch = False
        if name := self._reporter.reader(kept.get("reader")):
            kept["reader"] = name

    def pages(self) -> Generator[PageAndCursors, None, None]:
        try:
            yield from self._begin()
            yield from self._follow() if self._follows else self._read_to_end()
            if self._doubts_epoch:
                self._rediscover(told=False)
            self._reporter.wait()
        except EndUnknownError as exc:
            raise exc.as_error() from exc.__cause__
        finally:
            self._reporter.stop()

    def _begin(self) -> Iterator[PageAndCursors]:
        """Find where the read begins, and yield it, to be kept.

        A read that follows yields only what `last` means, because events may come after the others.
        """
        options, transport = self._options, self._client.transport
        count, given = self._identify(), options.starting_cursors
        everywhere = wire.LAST if given == "last" else wire.FIRST
        chosen = options.chosen(count)
        self._cursors = {**given} if isinstance(given, dict) else dict.fromkeys(chosen, everywhere)
        before = {**self._cursors}
        if options.starting_timestamp is not None:
            at = cursors_at(transport, count, options.starting_timestamp)
            self._cursors = {partition: at[partition] for partition in chosen}
        for partition, cursor in self._cursors.items():
            if cursor == wire.LAST:
                request = self._request(partition)
                self._cursors[partition] = first_checkpoint(self._client, request)
        if before != self._cursors and (not self._follows or {*before.values()} == {wire.LAST}):
            yield from self._yield_page()

    def _identify(self) -> int:
        """Ask which feed is served, and return its number of partitions.

        Raises CheckpointError if it is not the one that the cursors belong to, and OptionError if
        they are not those of all partitions.
        """
        options, known = self._options, self._kept.get("feed")
        transport, given = self._client.transport, options.starting_cursors
        if known:
            transport.has_answered()  # when the cursors were read
        is_untold = known == options.feed  # a feed that told no id then keeps its name
        found = discover(
            transport,
            options.partition_count,
            otherwise=len(given) if isinstance(given, dict) and not options.partitions else None,
            has_identity=bool(known) and not is_untold,
        )
        options.check_partitions(found.partition_count)
        self._identity = now = untold(options.feed) if is_untold else found.named(options.feed)
        if known and not now.knows(known):
            raise CheckpointError(
                f"the cursors belong to the feed {known!r}, and the publisher at {options.url} "
                f"{f'serves {now.id!r}' if now.told else 'sends no id'}. Correct the url; or, if "
                f"it is the same feed at another address, without an id, set feed_id={known!r}",
                expected=known,
                got=now.id,
                anchor="the-publisher-now-serves-another-feed",
            )
        self._kept |= {"feed": now.id, "n": str(found.partition_count)}
        self._count = found.partition_count
        return self._count

    def _request(self, partition: int) -> PageRequest:
        return PageRequest(
            partition,
            self._cursors[partition],
            self._count,
            self._options.page_size_hint,
            self._options.requested_headers,
            tell=self._identity.told,
            only=self._options.selected,
        )

    def _read_to_end(self) -> Iterator[PageAndCursors]:
        ends, requests = self._options.ending_cursors, map(self._request, self._cursors)
        for read in [find_end(self._client, request, ends) for request in requests]:
            while not read.ending.ended:
                with closing(read.next_page()) as intervals:
                    yield from self._answer(read.request.partition, intervals, read)

    def _follow(self) -> Iterator[PageAndCursors]:
        at_once = False  # whether the publisher did not wait when it was last asked to
        skipped = 0  # how many times in a row only cursors moved
        rounds = {each: CursorRounds(each, at) for each, at in self._cursors.items()}
        while True:
            before, events = {**self._cursors}, self._events
            for partition in before:
                with self._client.page(self._request(partition)) as page:
                    yield from self._answer(partition, rounds[partition].checked(page), page)
            skipped = skipped + 1 if events == self._events else 0
            moves = skipped < _MOST_SKIPPED or self._options.only  # by our publishers, not for ever
            if before != self._cursors and moves:
                at_once = False
                continue
            if self._doubts_epoch:
                self._rediscover(told=False)
            yield from self._yield_page()  # the caller learns that he has all that there is
            if at_once:
                time.sleep(self._options.poll_interval)
            at_once = not self._has_waited()

    def _has_waited(self) -> bool:
        """Have the publisher wait for events after any cursor; return whether it waited in vain.

        What it answers is read with the next pages. So is an error.
        """
        wait = int(self._options.wait)
        if not wait or len(self._cursors) > _MOST_WAITED_FOR:
            return False
        given = {f"cursor{each}": cursor for each, cursor in self._cursors.items()}
        given |= {"n": str(self._count), "pagesizehint": "1", "wait": str(wait)}
        began = time.monotonic()
        with suppress(TransientError, ZeroEventHubError):
            query = urlencode(given, quote_via=quote, safe="")
            with closing(self._client.transport.body(query)) as body:
                list(islice(body, 2))  # all of it, unless the publisher ignores the hint
        return time.monotonic() - began >= wait

    def _hear_of_epoch(self, epoch: Epoch | None) -> None:
        """Ask for the feed's epochs if there is another one. A proxy may keep that back."""
        if epoch is None:
            self._doubts_epoch = True
        elif epoch != self._identity.epochs[-1]:
            self._rediscover(told=True)

    def _rediscover(self, *, told: bool) -> None:
        transport, name = self._client.transport, self._options.feed
        self._identity = rediscover(transport, self._count, self._identity, name, told=told)
        self._kept["feed"] = self._identity.id
        self._doubts_epoch = False

    def _answer(
        self, partition: int, intervals: Iterable[wire.Interval], answer: Page | FiniteRead
    ) -> Iterator[PageAndCursors]:
        for interval in joined(intervals):
            page = answer.page if isinstance(answer, FiniteRead) else answer
            has_moved = interval.cursor != self._cursors[partition]
            self._cursors[partition] = interval.cursor
            if self._identity.told and interval.events:
                self._hear_of_epoch(page.standing.epoch)
            if interval.events or (has_moved and not self._follows):
                yield from self._yield_page(partition, interval.lines)

    def _yield_page(self, partition: int = 0, lines: bytes = b"") -> Iterator[PageAndCursors]:
        """Yield a page with its cursors, and report these when the caller is back."""
        feed = self._options.stamping(self._identity)
        events = self._decoder.whole(lines, partition, feed)
        self._events += events.num_rows
        yield events, json.dumps(wire.by_partition(self._cursors) | self._kept)
        self._reporter.keep(self._cursors, self._count, self._kept.get("reader"))
