"""Why a batch is refused: each problem carries both sides' values and the remedy, ready to paste.

Rule for editors: a remedy is printed here and nowhere else, in the form that
`commit_decision.decide` compares with.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate, islice
from typing import Any

import msgspec

from zeh_spark.service.store.batches import (
    Call,
    Found,
    Numbers,
    ProducerState,
    StoredReceipt,
    TaskAttempt,
)
from zeh_spark.service.store.contracts import NAMED, FeedSchema, WrongEvent
from zeh_spark.service.store.log import FeedState
from zeh_spark.service.store.problems import Problem
from zeh_spark.wire import problems, wire
from zeh_spark.wire.phrases import counted, moment
from zeh_spark.wire.problems import ProblemType
from zeh_spark.wire.upload_format import Content

NAMES = ("chunk", "line", "partition", "path", "reason")
WRONG_BYTES = 40 << 10
"""Bytes in which wrong events are named: clients read 64 KiB of a refusal."""


def producer_deleted(call: Call) -> Problem:
    return _refused(
        problems.PRODUCER_DELETED,
        call,
        f"producer {call.producer!r} was deleted, or has expired because it was idle, and takes no "
        f"more batches",
        "publish under another producer",
    )


def incarnation_changed(call: Call, producer: ProducerState, option: str) -> Problem:
    name = "producer name" if call.incarnation == wire.PLAIN_INCARNATION else "producerId"
    return _refused(
        problems.INCARNATION_CHANGED,
        call,
        f"producer {call.producer!r} is used by incarnation {producer.incarnation!r} (a Spark "
        f"checkpoint), which has published up to batch {producer.last}, the last one at "
        f"{moment(producer.time)}; this call comes from incarnation {call.incarnation!r}: a new "
        f"or lost checkpoint, or another job with the same {name}",
        f"go back to the old checkpoint; or publish under another {name}; or, if this "
        f"checkpoint replaces the old one (events that the old one has published and this one "
        f"reads again are doubled, those that neither reads are missing), set once "
        f"replaceIncarnation={option}",
        current={"incarnation": producer.incarnation, "lastBatch": producer.last},
        option={"replaceIncarnation": option},
    )


def fenced(call: Call, producer: ProducerState) -> Problem:
    remedy = "two drivers run on one checkpoint; stop one of them"
    if call.incarnation == wire.PLAIN_INCARNATION:
        remedy = (
            "another program publishes under this name: give each program a producer name of its "
            "own; started again, this one continues after what is published"
        )
    return _refused(
        problems.FENCED,
        call,
        f"run {call.run!r} of producer {call.producer!r} was overtaken: run {producer.run!r} "
        f"published batch {producer.last} at {moment(producer.time)}, with owner level "
        f"{producer.level}",
        remedy,
        current={"run": producer.run, "level": producer.level, "lastBatch": producer.last},
    )


def batch_expired(call: Call) -> Problem:
    if call.incarnation == wire.BATCH_INCARNATION:
        name, _, batch = call.producer.partition("#")
        return _refused(
            problems.BATCH_EXPIRED,
            call,
            f"a batch {batch!r} of producer {name!r} was published, so long ago that its receipt "
            f"is gone: its content cannot be compared any more",
            "it is on the feed, so do not publish it again; give other events another name",
        )
    return _refused(
        problems.BATCH_EXPIRED,
        call,
        f"batch {call.batch} of producer {call.producer!r} is so old that its receipt is gone: it "
        f"can be neither confirmed nor denied",
        "the checkpoint was rolled back too far; restore a newer one, or start a new checkpoint "
        "after what the feed holds",
    )


def starting_sequence(call: Call, partition: int, number: int, own: Numbers) -> Problem:
    return _refused(
        problems.STARTING_SEQUENCE,
        call,
        f"producer {call.producer!r} is to begin with number {number} in partition {partition}, "
        f"and it began with {own.first} there; its next number is {own.next}",
        f"say {own.first}, or leave the starting numbers out, or publish under another name",
        current={"first": own.first, "next": own.next},
    )


def digest_version(call: Call, given: int, expected: int) -> Problem:
    return _refused(
        problems.DIGEST_VERSION,
        call,
        f"the content of batch {call.batch} of producer {call.producer!r} is counted here with "
        f"digest version {expected}, this call has version {given}: they cannot be compared",
        "run this batch once with a zeh-spark of the publisher's version, or the one that "
        "published it, then upgrade",
        expected={"digestVersion": expected},
        given={"digestVersion": given},
    )


def batch_conflict(call: Call, content: Content, receipt: StoredReceipt, option: str) -> Problem:
    cause = "publish other rows under another name"
    if call.incarnation != wire.BATCH_INCARNATION:
        cause = (
            "if this is a second write in the same foreachBatch, give each write a producerId of "
            "its own; else look for what makes the query give other rows when it is repeated: "
            "rand(), uuid(), a clock, a lookup, a source that changed"
        )
    return _refused(
        problems.BATCH_CONFLICT,
        call,
        f"batch {call.batch} of producer {call.producer!r} was published at "
        f"{moment(receipt.time)} with other rows: {counted(receipt.events, 'event')}, "
        f"content {receipt.digest}; now it has {counted(content.events, 'event')}, content "
        f"{content.digest}",
        f"{cause}; to keep what is published and drop these rows, set once keepFirst={option}",
        published={"events": receipt.events, "digest": receipt.digest},
        given={"events": content.events, "digest": content.digest},
        option={"keepFirst": option},
    )


def number_taken(call: Call, content: Content, receipt: StoredReceipt) -> Problem:
    return _refused(
        problems.NUMBER_TAKEN,
        call,
        f"another program published under the name {call.producer!r} at the same time: batch "
        f"{call.batch}, {counted(receipt.events, 'event')}; this request, of "
        f"{counted(content.events, 'event')}, published nothing",
        "publish its events again, and give each program a producer name of its own",
        published={"events": receipt.events, "digest": receipt.digest},
        given={"events": content.events, "digest": content.digest},
    )


def batch_gap(call: Call, producer: ProducerState, last: int, option: str) -> Problem:
    if last < 0:
        seen = f"batch {call.batch} of producer {call.producer!r} is the first that this feed sees"
        cause = (
            "the earlier ones went to another feed, store or producerId (perhaps this one did, "
            "too), or a restore undid them"
        )
    else:
        seen = f"producer {call.producer!r} has published up to batch {last}, this is {call.batch}"
        cause = (
            "a restore of the publisher undid the batches between, or they never came, for example "
            "because a foreachBatch leaves out empty batches: write those, too"
        )
    return _refused(
        problems.BATCH_GAP,
        call,
        f"{seen}: {cause}",
        f"go back to a checkpoint that repeats the missing batches; or, if their rows are not "
        f"wanted here (the sink is new on an old checkpoint, say), or were written by other means "
        f"under another producerId, set once acceptGap={option}",
        current={"incarnation": producer.incarnation or None, "lastBatch": last},
        option={"acceptGap": option},
    )


def layout_changed(call: Call, partition_count: int) -> Problem:
    return _refused(
        problems.LAYOUT_CHANGED,
        call,
        f"the batch is made for {counted(call.partition_count, 'partition')}, the feed has "
        f"{partition_count}",
        "run the batch again; nothing was published",
        partitionCount=partition_count,
    )


def upload_missing(call: Call, named: TaskAttempt, here: Found) -> Problem:
    again = "start the query again, which repeats the batch"
    if call.incarnation in (wire.BATCH_INCARNATION, wire.PLAIN_INCARNATION):
        again = "publish the events again"
    return _refused(
        problems.UPLOAD_MISSING,
        call,
        f"task {named.task}, attempt {named.attempt}, has staged "
        f"{counted(here.uploads, 'upload')} with {counted(here.content.events, 'event')} here; the "
        f"commit names {named.uploads} with {named.events}",
        f"{again}; nothing was published",
        task=named.task,
        expected={"uploads": named.uploads, "events": named.events},
        found={"uploads": here.uploads, "events": here.content.events},
    )


def content_mismatch(call: Call, declared: Content, found: Content) -> Problem:
    return _refused(
        problems.CONTENT_MISMATCH,
        call,
        f"what arrived is not what was sent: {counted(found.events, 'event')}, content "
        f"{found.digest}, against {counted(declared.events, 'event')}, content {declared.digest}",
        "run the batch again; if that does not help, something between driver, executors and "
        "publisher changes bodies. Nothing was published",
        given={"events": declared.events, "digest": declared.digest},
        found={"events": found.events, "digest": found.digest},
    )


def schema_changed(call: Call, checked: int, current: int) -> Problem:
    return _refused(
        problems.SCHEMA_CHANGED,
        call,
        f"the feed's schema was changed to version {current} after events of batch {call.batch} of "
        f"producer {call.producer!r} had been "
        f"{f'checked with version {checked}' if checked else 'uploaded without a check'}",
        "run the batch again, which checks them again; nothing was published",
        schemaVersion=current,
    )


def check_events(call: Call, schema: FeedSchema, wrong: Iterable[WrongEvent]) -> None:
    """Raise Problem if events of an upload break the feed's schema; it names the first ones."""
    if not (found := [*islice(wrong, NAMED)]):
        return
    first, many = found[0], len(found) > 1
    named = [{name: getattr(each, name) for name in NAMES} for each in found]
    ends = accumulate(len(msgspec.json.encode(each)) for each in named)
    remedy = "repair or filter such events, or ask the feed's owner to change its schema"
    if call.split_by:
        remedy = (
            f"run the batch again. If its dead letters are committed, they are those of version "
            f"{call.split_by}: until it is published, the feed needs a schema that takes such "
            f"events (zeh-spark schema FEED FILE --compatibility none)"
        )
    raise _refused(
        problems.WRONG_EVENTS,
        call,
        f"{counted(len(found), 'event')}{' or more' * (len(found) == NAMED)} of this upload "
        f"break{'' if many else 's'} version {schema.version} of the feed's schema. Line "
        f"{first.line} of chunk {first.chunk}, for partition {first.partition}, has {first.event}: "
        f"{first.path or 'the event'}: {first.reason}",
        f"{remedy}; nothing of the upload was kept",
        schemaVersion=schema.version,
        events=[each for each, end in zip(named, ends, strict=True) if end < WRONG_BYTES],
    )


def partition_lacking(call: Call, partition: int, partition_count: int) -> Problem:
    return Problem(
        problems.INVALID_UPLOAD,
        f"a chunk of batch {call.batch} is of partition {partition}, the feed has 0 to "
        f"{partition_count - 1}; nothing of the upload was kept",
    )


def upload_conflict(call: Call, name: str) -> Problem:
    return _refused(
        problems.UPLOAD_CONFLICT,
        call,
        f"upload {name} of batch {call.batch} is staged already with other content",
        "give each attempt at a task its own number",
    )


def quota_exceeded(call: Call, quota: int, staged: int, more: int) -> Problem:
    return _refused(
        problems.QUOTA_EXCEEDED,
        call,
        f"producer {call.producer!r} has {staged:,} bytes staged and not committed, and this "
        f"upload has {more:,} more; allowed are {quota:,}",
        "make batches smaller, or raise the publisher's --staging-quota",
        quota=quota,
        staged=staged,
    )


def too_many_producers(call: Call, most: int) -> Problem:
    return _refused(
        problems.TOO_MANY_PRODUCERS,
        call,
        f"producer {call.producer!r} is new, and this client (its token, or its address) has begun "
        f"{counted(most, 'producer')} already, as many as it may have",
        "publish under a name that is there; or let the publisher's operator delete producers, let "
        "idle ones expire (zeh-spark retention --producers), or raise --most-producers",
        maximum=most,
    )


def too_many_chunks(call: Call, chunks: int, most: int) -> Problem:
    return _refused(
        problems.TOO_MANY_CHUNKS,
        call,
        f"batch {call.batch} is staged in {chunks:,} chunks; a commit has at most {most:,}",
        "make fewer and larger chunks: repartition the rows, so that each task writes to few "
        "partitions of the feed; or make batches smaller, or raise the publisher's --most-chunks",
        chunks=chunks,
        maximum=most,
    )


def unknown_batch(producer: str, incarnation: str | None, batch: int, feed: FeedState) -> Problem:
    which = f"incarnation {incarnation!r}" if incarnation else "in its current incarnation"
    return Problem(
        problems.UNKNOWN_BATCH,
        f"batch {batch} of producer {producer!r}, {which}, is not committed",
        producer=producer,
        incarnation=incarnation,
        batch=batch,
        partitionCount=feed.partitions,
        feedId=feed.origin[:16].hex(),
        schemaVersion=feed.schema_version,
    )


def _refused(type: ProblemType, call: Call, detail: str, remedy: str, **members: Any) -> Problem:
    return Problem(
        type,
        f"{detail}; {remedy}",
        producer=call.producer,
        incarnation=call.incarnation,
        run=call.run,
        batch=call.batch,
        remedy=remedy,
        **members,
    )
