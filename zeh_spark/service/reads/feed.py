"""What the read API asks of a feed, and the feed that a store's chunks make.

The same request gets the same answer until more is committed. Runs in the publisher's worker
threads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, TypeVar

from zeh_spark.service.reads import direct_plans, direct_reads
from zeh_spark.service.reads.answer_cache import AnswerCache
from zeh_spark.service.reads.committed import Consumer
from zeh_spark.service.reads.pages import Page, Part, open_page
from zeh_spark.service.reads.reading import cursors_at
from zeh_spark.service.store.contracts import FeedSchema
from zeh_spark.service.store.cursor_sets import NOBODY
from zeh_spark.service.store.interface import Store
from zeh_spark.service.store.log import Chunk, FeedState, Log
from zeh_spark.service.store.problems import Problem, no_cursors, no_cursors_on_replica
from zeh_spark.service.store.token_rights import Maker
from zeh_spark.wire import problems, wire
from zeh_spark.wire.direct_reads import OFFER, ChunksRequest, Plan, PlanRequest
from zeh_spark.wire.feed_identity import FeedIdentity
from zeh_spark.wire.page_headers import Standing
from zeh_spark.wire.served_lines import Block

T = TypeVar("T")

SaveCursors = Callable[[str, int, Mapping[int, str], str, Maker | None], None]
LoadCursors = Callable[[str, int, str], dict[int, str]]
"""`Feed.save_cursors` and `Feed.load_cursors`."""

DELIVERY = "exactly-once"
"""What discovery tells of a store's feed as `delivery`: see docs/explanation/protocols.md."""

EVERY = (wire.ALL_HEADERS,)
"""The headers of a reader that wants all."""


class Feed(ABC):
    """A feed of any kind. Methods may block and are called from worker threads.

    A feed of your own has `partitions`, `page` and `version`. The other methods say that it has no
    identity and keeps no cursors for readers, until it overrides them.
    """

    partitions: int
    """The number of stored partitions."""

    @abstractmethod
    def page(
        self, asked: Mapping[int, str], n: int, hint: int | None, headers: Collection[str]
    ) -> Iterator[Block]:
        """Yield the answer to a request, of about `hint` events.

        There is at least one block for each asked partition. With hint 0 all blocks are empty. No
        block has a special cursor.

        Args:
            asked: Cursors by partition of the reader's n.
            n: How many partitions the reader works with.
            hint: How many events to give, about; None if the feed decides.
            headers: Names of the headers that the reader wants, or `_all` among them. The feed need
                not read the others; if they are in its lines, the publisher leaves them out.

        Raises:
            Problem: Cursors or n are refused. It is raised before the first block.
        """

    @abstractmethod
    def version(self) -> object:
        """Return a value that differs once there may be more events.

        It is called every few milliseconds while a reader waits.
        """

    def own_version(self) -> object:
        """Return a value that differs once this feed may have more events.

        It is called once `version` has changed, which may also change with other feeds, and before
        a reader that may wait is answered.
        """
        return self.version()

    def for_reader(self, token: str, consumer: str) -> Feed:
        """Return the feed that answers a reader: this one, or what a feed of your own chooses.

        That has the same partitions, events and cursors: from a replica of the database, or a cold
        copy. It is called for each request for a page, and must not block. `version` of this feed
        has to tell of the events of each.

        Args:
            token: The name of the reader's token, or the subject of its JWT; empty without one.
            consumer: What it says of itself in the header ZEH-Consumer; empty without one.
        """
        return self

    def identity(self) -> FeedIdentity | None:
        """Return the feed's id and its epochs as of now; None if it has no id.

        Readers name a feed without an id by its URL, or by their option `feedId`.

        Raises:
            StoreError: The store does not answer. Returning None then would make another feed of
                it.
        """
        return None

    def description(self) -> dict[str, Any]:
        """Return what discovery tells of the feed, if it has an identity, besides that."""
        return {}

    def standing(self, asked: Mapping[int, str], n: int) -> Standing:
        """Return where the feed stands, for a reader that asks for it with a page.

        `asked` has the cursors of the request. Raises what `identity` raises.
        """
        identity = self.identity()
        return Standing(identity.epochs[-1] if identity else None)

    def cursors_at(self, n: int, time: int) -> dict[int, str]:
        """Return where each partition starts for a reader of all events since a time.

        The time is in ms since 1970.

        Raises:
            Problem: The feed does not know the times of its events, or the time is ahead.
        """
        raise Problem(
            problems.NO_COMMIT_TIMES,
            "the events of this feed have no times. Start at a cursor, or at _first or _last; for "
            "a table, its owner can name the column with the time: the setting time",
        )

    def save_cursors(
        self,
        name: str,
        n: int,
        cursors: Mapping[int, str],
        consumer: str = NOBODY,
        maker: Maker | None = None,
    ) -> None:
        """Keep a reader's cursors under a name, the spec's `cursorset` (see `CursorSets`).

        Raises:
            Problem: The feed keeps no cursors, or not these.
        """
        self._kept_cursors()[0](name, n, cursors, consumer, maker)

    def load_cursors(self, name: str, n: int, consumer: str = NOBODY) -> dict[int, str]:
        """Return the kept cursors (see `CursorSets.load_cursors`).

        Raises:
            Problem: The feed keeps no cursors, or not for this consumer.
        """
        return self._kept_cursors()[1](name, n, consumer)

    def _kept_cursors(self) -> tuple[SaveCursors, LoadCursors]:
        """Return what keeps cursors, and what returns them. Raises Problem if nothing does."""
        raise no_cursors()


class ChunkFeed(Feed):
    """A feed of a store. It is looked up when something is asked of it.

    Guarantee: a reader gets every event once and in order of g, however it cuts its pages. Memory
    is that of one read, whatever the hint.
    """

    def __init__(self, store: Store, name: str, cache: AnswerCache | None = None) -> None:
        self._store = store
        self._name = name
        self._cache = cache or AnswerCache(0)

    @cached_property
    def partitions(self) -> int:  # type: ignore[override]
        """The number of stored partitions. Raises UnknownFeedError."""
        return self._store.feed(self._name).partitions

    def page(
        self, asked: Mapping[int, str], n: int, hint: int | None, headers: Collection[str] = EVERY
    ) -> Iterator[Block]:
        """Yield a page (see `Feed.page`). Lines have all their headers, whichever are wanted."""
        for blocks in self.open(asked, n, hint, lambda part: [*part.blocks()]).parts:
            yield from blocks

    def open(
        self,
        asked: Mapping[int, str],
        n: int,
        hint: int | None,
        make: Callable[[Part], T],
        look: Callable[[Log, Sequence[Chunk]], object] | None = None,
        selected: Callable[[], int] | None = None,
    ) -> Page[T]:
        """Return a page, of whose parts `make` makes something (see `open_page`)."""
        return open_page(self._store, self._name, asked, n, hint, make, look, selected)

    def plan(self, request: PlanRequest) -> tuple[FeedState, Plan]:
        """Return the feed, and a plan of what it has after some cursors, with the newest epoch."""
        return direct_plans.plan(self._store, self._name, request)

    def chunks(
        self, request: ChunksRequest, count: Callable[[int], object] = int
    ) -> Iterator[bytes]:
        return direct_reads.requested_chunks(self._store, self._name, request, self._cache, count)

    def cursors_at(self, n: int, time: int) -> dict[int, str]:
        return cursors_at(self._store, self._name, n, time)

    def consumer(self, name: str) -> Consumer:
        return Consumer(self._store, self._name, name)

    def version(self) -> object:
        return self._store.version()

    def own_version(self) -> object:
        return state_of(self._store.feed(self._name))

    def identity(self) -> FeedIdentity:
        return self._store.identity(self._name)

    def description(self) -> dict[str, Any]:
        state = self._store.feed(self._name)
        found: dict[str, Any] = {"replica": True} if state.replica else {"delivery": DELIVERY}
        if state.schema_version:
            found["schemaVersion"] = state.schema_version
        return {**found, "reads": OFFER}

    def schema(self, version: int | None) -> FeedSchema:
        """Return a version of the feed's schema, by default the latest. Raises Problem."""
        found = self._store.schema(self._name, version)
        if found is None:
            which = "no schema" if version is None else f"no schema of version {version}"
            said = f"feed {self._name!r} has {which}. Its owner sets one with zeh-spark schema"
            raise Problem(problems.NO_SCHEMA, said)
        return found

    def _kept_cursors(self) -> tuple[SaveCursors, LoadCursors]:
        """Return what keeps cursors in the store. A replica refuses."""
        if self._is_replica():
            raise no_cursors_on_replica()
        store, name = self._store, self._name
        return partial(store.save_cursors, name), partial(store.load_cursors, name)

    def _is_replica(self) -> bool:
        return self._store.feed(self._name).replica


def state_of(feed: FeedState) -> object:
    """Return a value that differs once the feed has more events (see `Feed.own_version`)."""
    return feed.head, feed.history
