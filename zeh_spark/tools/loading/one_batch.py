"""Events into a feed of a store as one batch, whole or not at all, by whoever has the store.

After an interrupted commit, or a failed COMMIT, the store is asked whether the batch is published.
So nobody publishes it twice by trying again.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from zeh_spark.errors import OutcomeUnknownError, StoreError
from zeh_spark.service.app.upload_validation import verified_upload
from zeh_spark.service.store import refusals
from zeh_spark.service.store.batches import (
    Call,
    Declared,
    StagingResult,
    StoredReceipt,
    TaskAttempt,
    Upload,
)
from zeh_spark.service.store.interface import Store, StoreOutcomeUnknownError
from zeh_spark.service.store.problems import Problem
from zeh_spark.wire import problems, wire
from zeh_spark.wire.batch_uploader import KEPT_BYTES, STAGINGS, BatchUploader
from zeh_spark.wire.phrases import counted
from zeh_spark.wire.upload_format import Content, StagedChunk, upload_body

_RECEIPTS = 1_000
"""Receipts among which that of a commit in doubt is looked for, the newest ones."""


def next_batch(store: Store, feed: str, producer: str) -> Call:
    """Return the producer's next batch, whatever its number will be. It is never a repetition."""
    run = uuid.uuid4().hex
    return Call(producer, wire.PLAIN_INCARNATION, run, None, store.feed(feed).partitions)


def named_batch(store: Store, feed: str, producer: str, batch: str) -> Call:
    """Return a batch that may be repeated under its name, as `df.write` with `batchId`."""
    run, count = uuid.uuid4().hex, store.feed(feed).partitions
    return Call(f"{producer}#{batch}", wire.BATCH_INCARNATION, run, 0, count)


def publish(
    store: Store, feed: str, call: Call, fill: Callable[[BatchUploader], object]
) -> tuple[StoredReceipt, bool, Content]:
    """Publish the events that `fill` adds as one batch, as one task's first attempt.

    It returns the receipt, whether the batch is new (see `Batches.commit`), and its content.

    If the commit is interrupted, or the store does not tell whether it took effect, that is found
    out: it is published, or an error says that it is not. If the database has lost uploads in a
    crash, they are staged again, up to KEPT_BYTES of them. After OutcomeUnknownError it is not
    known whether the batch is published. After any other error, also one of `fill` or an
    interruption, it is not.
    """

    def send(number: int, chunks: list[StagedChunk]) -> bool:
        digest = hashlib.sha256(b"".join(each.digest for each in chunks)).digest()
        upload = Upload(0, 0, number, digest, tuple(chunks))
        staged: StagingResult | StoredReceipt = StagingResult.UNCHECKED
        while staged is StagingResult.UNCHECKED:
            if schema := store.schema(feed):
                body, n = upload_body(chunks), call.partition_count
                upload, wrong, _ = verified_upload(body, 0, 0, number, n, schema)
                refusals.check_events(call, schema, wrong)
            staged = store.stage(feed, call, upload)
        return not isinstance(staged, StoredReceipt)

    name = f"{call.producer}/{call.run if call.batch is None else call.batch}"
    batch = BatchUploader(send, call.partition_count, name, kept_bytes=KEPT_BYTES)

    with _released(store, feed, call):
        fill(batch)
        batch.finish()
    attempts = (TaskAttempt(0, 0, batch.uploads, batch.content.events),)
    declared = Declared(batch.content, attempts)
    for left in reversed(range(STAGINGS)):
        try:
            return *_commit(store, feed, call, declared), batch.content
        except Problem as exc:
            if exc.name != problems.UPLOAD_MISSING.name or not left:
                raise
            with _released(store, feed, call):
                if not batch.send_again():
                    raise
    raise AssertionError("unreachable")


@contextmanager
def _released(store: Store, feed: str, call: Call) -> Iterator[None]:
    """If staging fails, drop what was staged."""
    try:
        yield
    except BaseException:
        with suppress(StoreError):  # the first error is raised instead
            store.release(feed, call.producer, call.batch, call.run)
        raise


def _commit(store: Store, feed: str, call: Call, declared: Declared) -> tuple[StoredReceipt, bool]:
    """Commit a batch, and find out what became of a commit in doubt. Raises as `publish`."""
    try:
        return store.commit(feed, call, declared)
    except BaseException as exc:  # also Ctrl-C
        in_doubt = isinstance(exc, StoreOutcomeUnknownError) or not isinstance(exc, Exception)
        try:
            # Without its uploads, a commit that is still under way is refused.
            store.release(feed, call.producer, call.batch, call.run)
            found = _receipt(store, feed, call, declared.content) if in_doubt else None
        except (StoreError, KeyboardInterrupt) as failed:
            if in_doubt:
                raise _unknown(call, declared.content) from failed
            found = None
        if found:
            return found, found.run == call.run
        if isinstance(exc, StoreOutcomeUnknownError):
            raise StoreError(
                "the store failed while it committed, and nothing was published. Load the files "
                "again once the store is well",
                anchor="there-is-no-store-or-no-feed",
            ) from exc
        raise


def _receipt(store: Store, feed: str, call: Call, content: Content) -> StoredReceipt | None:
    """Return the receipt of a call's batch; None if it is not published. Raises StoreError."""
    count = store.producer(feed, call.producer).receipts  # waits for commits under way
    for each in store.receipts(feed, call.producer, count + 1, _RECEIPTS):
        is_named = call.batch is not None and call.incarnation == each.incarnation
        if content.is_in(each) and (is_named or each.run == call.run):
            return each
    return None


def _unknown(call: Call, content: Content) -> OutcomeUnknownError:
    return OutcomeUnknownError(
        f"whether {counted(content.events, 'event')} of producer {call.producer!r} were published "
        f"is not known: the commit did not end, and the store does not answer. Before you load "
        f"them again, look whether zeh-spark producers shows a batch of run {call.run}",
        batch=call.batch,
        run=call.run,
    )
