"""The batches of a SQL store (see `Batches`): the transactions that uploads and commits are.

Payload is written once, into `blobs`, when it is staged. A commit moves rows of a few numbers.
`uploads`, `commits` and `producers` hold what a transaction does. Runs in the publisher and in
commands that write.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from sqlalchemy import Connection

from zeh_spark.service.sql import commits, producers, uploads
from zeh_spark.service.sql.transactions import Transactions
from zeh_spark.service.store.acts import log_act
from zeh_spark.service.store.batches import (
    Account,
    Call,
    Declared,
    Numbers,
    ProducerState,
    StagingResult,
    StoredReceipt,
    TaskAttempt,
    Upload,
)
from zeh_spark.service.store.commit_decision import known_receipt
from zeh_spark.service.store.problems import Problem

GROUP_EVENTS, GROUP_TASKS = 10_000, 1_000
"""About how many events and tasks commits in one transaction may have together.

The feed's other writers wait while such a transaction lasts.
"""


class SqlBatches(Transactions):
    """The batches of feeds in a SQL database (see `Batches`).

    Guarantee: `commit` returns after its transaction is on disk (fsync), and readers see it whole
    or not at all.
    """

    def staged(self) -> dict[str, int]:
        return self._read(uploads.staged_bytes)

    def admit(self, feed: str, call: Call) -> StoredReceipt | None:
        with suppress(Problem):
            return self._read(partial(uploads.admit, feed=feed, call=call))
        # The call was refused. Its batch may have been committed between the two reads.
        return self._look(feed, lambda connection, _: uploads.admit(connection, feed, call))

    def stage(
        self, feed: str, call: Call, upload: Upload, quota: int | None = None
    ) -> StagingResult | StoredReceipt:
        def work(connection: Connection) -> StagingResult | StoredReceipt:
            return uploads.stage(connection, feed, call, upload, quota, self.now)

        def stage() -> StagingResult | StoredReceipt:
            # The commit notices that an upload with events is lost. An upload without events is
            # only counted: without it, a commit would succeed that has to be refused.
            with self._errors():
                return self._database.writes.stage(work, durable=not upload.chunks)

        try:
            return stage()
        except Problem:  # perhaps because of a commit between two reads
            return self._look(feed, lambda c, _: uploads.admit(c, feed, call)) or stage()

    def staged_chunks(self, feed: str, call: Call, attempts: Sequence[TaskAttempt]) -> int:
        with self._reading_of(feed) as (connection, feed_id):
            return uploads.staged_chunks(connection, feed_id, call, attempts)

    def commit(self, feed: str, call: Call, declared: Declared) -> tuple[StoredReceipt, bool]:
        def work(connection: Connection, asked: Sequence[commits.Commit]) -> list[commits.Done]:
            return commits.commit(connection, feed, asked, self.now, self._receipts)

        with self._errors():
            receipt, new, act = self._database.writes.commit(
                feed, (call, declared), work, _share(declared)
            )
        if act:
            log_act(act)
        return receipt, new

    def tidy(self) -> bool:
        return self._write(lambda db: uploads.tidy(db, self.now()), durable=False)

    def release(
        self,
        feed: str,
        producer: str,
        batch: int | None,
        run: str,
        attempt: tuple[int, int] | None = None,
    ) -> int:
        dropped = 0

        def work(connection: Connection, feed_id: int) -> int | None:
            return uploads.release(connection, feed_id, producer, batch, run, attempt)

        while (some := self._write_to(feed, work)) is not None:
            dropped += some
        return dropped

    def producers(self, feed: str, after: str = "", limit: int = 1 << 31) -> list[ProducerState]:
        with self._reading_of(feed) as (connection, feed_id):
            return producers.some_producers(connection, feed_id, after, limit)

    def accounts(self, feed: str, after: str, limit: int, receipts: int) -> list[Account]:
        with self._reading_of(feed) as (connection, feed_id):
            return producers.some_accounts(connection, feed_id, after, limit, receipts)

    def producer(self, feed: str, name: str) -> ProducerState:
        def work(connection: Connection, feed_id: int) -> ProducerState:
            return producers.find_producer(connection, feed_id, name)[1]

        return self._look(feed, work)

    def sequences(self, feed: str, name: str) -> dict[int, Numbers]:
        with self._reading_of(feed) as (connection, feed_id):
            key, _ = producers.find_producer(connection, feed_id, name)
            return {} if key is None else producers.all_sequences(connection, [key])[key]

    def receipt(
        self, feed: str, name: str, batch: int, incarnation: str | None
    ) -> StoredReceipt | None:
        def work(connection: Connection, feed_id: int) -> StoredReceipt | None:
            which = incarnation
            if which is None:
                which = producers.find_producer(connection, feed_id, name)[1].incarnation
            call = Call(name, which, "", batch, 0)
            _, known = producers.what_is_known(connection, feed, call)
            return known_receipt(known, call)

        return self._look(feed, work)

    def receipts(self, feed: str, name: str, below: int, limit: int) -> list[StoredReceipt]:
        with self._reading_of(feed) as (connection, feed_id):
            key, _ = producers.find_producer(connection, feed_id, name)
            return [] if key is None else producers.newest_receipts(connection, key, below, limit)


def _share(declared: Declared) -> float:
    events, tasks = declared.content.events, len(declared.attempts)
    return max(events / GROUP_EVENTS, tasks / GROUP_TASKS)
