"""A store in this process's memory.

Rule for editors: readers go by the head and take no lock, so a commit sets the head last. Methods
have the contracts of `interface.Store`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from zeh_spark.errors import StoreError
from zeh_spark.memory_store.accounts import Account
from zeh_spark.memory_store.log import Log
from zeh_spark.memory_store.staging import Staging, Stagings, Uploads, found_of
from zeh_spark.protocol.feed_identity import Epoch, FeedIdentity
from zeh_spark.protocol.wire import BATCH_INCARNATION
from zeh_spark.store import commit_decision, refusals
from zeh_spark.store.access import Maker, Token
from zeh_spark.store.acts import (
    ACTS_SHOWN,
    EVERY_ACT,
    Act,
    ActFilter,
    Action,
    Actor,
    log_act,
    new_act,
)
from zeh_spark.store.batches import (
    RECEIPTS,
    Call,
    CommitFacts,
    Declared,
    Numbers,
    ProducerState,
    StoredReceipt,
    TaskAttempt,
    Upload,
    base,
)
from zeh_spark.store.clock import check_commit
from zeh_spark.store.commit_decision import known_receipt, unwrapped
from zeh_spark.store.commit_plan import Moved, as_one, in_batch_order, joined, packs, published
from zeh_spark.store.cursor_sets import (
    NOBODY,
    CursorSet,
    check_consumer,
    check_made,
    check_n,
    freed_by,
)
from zeh_spark.store.epochs import identity_of, next_epoch
from zeh_spark.store.interface import (
    IDLE,
    STAGED_FOR,
    Anchor,
    Chunk,
    Clock,
    FeedState,
    Retention,
    StagingResult,
    check_partitions,
    frame_missing,
    new_feed,
    now_ms,
    unknown_feed,
)


class MemoryStore:
    """Feeds in this process's memory: for tests, and for services that fill a feed themselves.

    Guarantee: that of `Store`; events are durable as long as the process lives.

    Args:
        clock: Returns the time in milliseconds since 1970.
        receipts: How many receipts of each producer are kept.
    """

    def __init__(self, *, clock: Clock = now_ms, receipts: int = RECEIPTS) -> None:
        self.now = clock
        self._receipts = receipts
        self._lock = threading.Lock()
        self._feeds: dict[str, FeedState] = {}
        self._epochs: dict[str, tuple[Epoch, ...]] = {}
        self._logs: dict[str, Log] = {}
        self._blobs: list[bytes] = []
        self._stagings: dict[str, Stagings] = {}
        self._accounts: dict[tuple[str, str], Account] = {}
        self._cursors: dict[tuple[str, str, int], dict[int, str]] = {}
        self._tokens: dict[str, Token] = {}
        self._consumers: dict[tuple[str, str], str] = {}
        self._makers: dict[tuple[str, str], str] = {}
        self._began: dict[tuple[str, str], str] = {}
        self._retentions: dict[str, Retention] = {}
        self._acts: list[Act] = []
        self._version = 0
        self._seen = 0

    def create(self, name: str, partitions: int, *, by: Actor | None = None) -> FeedState:
        """Create a feed (see `Store.create`)."""
        feed = new_feed(name, partitions)
        with self._lock:
            if name in self._feeds:
                raise StoreError(f"feed {name!r} exists already. Choose another name")
            self._logs[name] = Log(partitions)
            self._stagings[name] = Stagings(self._blobs)
            self._feeds[name] = feed
            self._note(by, Action.CREATE_FEED, feed=name, partitions=partitions)
        return feed

    def feed(self, name: str) -> FeedState:
        """Return a feed as of now (see `Store.feed`)."""
        try:
            return self._feeds[name]
        except KeyError:
            raise unknown_feed(name) from None

    def feeds(self) -> list[FeedState]:
        """Return all feeds (see `Store.feeds`)."""
        with self._lock:
            return [feed for _, feed in sorted(self._feeds.items())]

    def staged(self) -> dict[str, int]:
        """Return the bytes that are staged, by feed (see `Store.staged`)."""
        with self._lock:
            sizes = {feed: staged.bytes() for feed, staged in self._stagings.items()}
        return {feed: size for feed, size in sizes.items() if size}

    def identity(self, feed: str) -> FeedIdentity:
        """Return the feed's id and its epochs (see `Store.identity`)."""
        return identity_of(self.feed(feed), self._epochs.get(feed, ()))

    def begin_epoch(
        self,
        feed: str,
        *,
        copy: bool = False,
        since: int | None = None,
        by: Actor | None = None,
    ) -> FeedIdentity:
        """Begin an epoch (see `Store.begin_epoch`)."""
        with self._lock:
            state = self.feed(feed)
            new = next_epoch(state, self.identity(feed), self.now(), copy=copy, since=since)
            self._epochs[feed] = (*self._epochs.get(feed, ()), new)
            self._feeds[feed] = replace(state, time=max(state.time, new.time))
            told = {"epoch": new.id, "copy": copy, "since": since}
            self._note(by, Action.NEW_HISTORY, feed=feed, **told)
        return self.identity(feed)

    def admit(self, feed: str, call: Call) -> StoredReceipt | None:
        """Return None if an upload is wanted (see `Store.admit`)."""
        with self._lock:
            decision = unwrapped(commit_decision.decide(self._known(feed, call), call))
        return decision if isinstance(decision, StoredReceipt) else None

    def stage(
        self, feed: str, call: Call, upload: Upload, quota: int | None = None
    ) -> StagingResult | StoredReceipt:
        """Keep an upload until `commit` (see `Store.stage`)."""
        with self._lock:
            self._tidy(feed, STAGED_FOR)
            decision = unwrapped(commit_decision.decide(self._known(feed, call), call))
            if isinstance(decision, StoredReceipt):
                return decision
            staged = self._stagings[feed]
            if staged.holds(call, upload, self.now()):
                return StagingResult.SAME
            check_partitions(call, upload, self.feed(feed).partitions)
            self._check_quota(feed, call, upload, quota)
            staged.add(call, upload, self.now())
        return StagingResult.NEW

    def staged_chunks(self, feed: str, call: Call, attempts: Sequence[TaskAttempt]) -> int:
        """Return how many chunks attempts have staged (see `Store.staged_chunks`)."""
        with self._lock:
            self.feed(feed)
            return sum(
                len(chunks) for _, chunks in self._stagings[feed].named(call, attempts).values()
            )

    def commit(self, feed: str, call: Call, declared: Declared) -> tuple[StoredReceipt, bool]:
        """Publish a batch (see `Store.commit`)."""
        with self._lock:
            known = self._known(feed, call)
            decision = unwrapped(commit_decision.decide(known, call, declared))
            act = commit_decision.accepted_override(feed, known, call, declared, self.now())
            if isinstance(decision, StoredReceipt):
                self._keep([act] if act else [])
                return decision, False
            moved = self._stagings[feed].named(call, declared.attempts)
            unwrapped(commit_decision.decide(known, call, declared, found_of(moved)))
            self._stagings[feed].forget(call, moved)
            receipt = self._publish(feed, known, call, declared, moved)
            self._keep([act] if act else [])
            self._tidy(feed, STAGED_FOR)
        return receipt, True

    def _publish(
        self,
        feed: str,
        known: CommitFacts,
        call: Call,
        declared: Declared,
        moved: Uploads,
    ) -> StoredReceipt:
        if call.maker:
            self._began.setdefault((feed, base(call.producer)), call.maker.client)
        account = self._accounts.setdefault((feed, call.producer), Account(known.producer))
        placed = [
            ((task, number, at), each)
            for (task, _, number), (_, chunks) in moved.items()
            for at, each in enumerate(chunks)
        ]
        packed = [self._packed(each) for each in packs(in_batch_order(placed))]
        now, state = self.now(), self.feed(feed)
        check_commit(now, state.time, self._latest)
        done = published(known, call, declared, state, packed, account.sequences, now)
        account.add(done.receipt, done.sequences, self._receipts)
        self._logs[feed].append(done.chunks)
        self._feeds[feed] = done.feed  # last: readers go by the head, without the lock
        self._version += bool(done.chunks)
        return done.receipt

    def release(
        self,
        feed: str,
        producer: str,
        batch: int | None,
        run: str,
        attempt: tuple[int, int] | None = None,
    ) -> int:
        """Delete staged uploads (see `Store.release`)."""
        self.feed(feed)
        with self._lock:
            return self._stagings[feed].drop(
                lambda each: (each.producer, each.batch, each.run) == (producer, batch, run),
                attempt,
            )

    def tidy(self) -> None:
        """Delete what is staged and needed no more (see `Store.tidy`)."""
        with self._lock:
            for feed in self._feeds:
                self._tidy(feed, STAGED_FOR)

    def producers(self, feed: str, after: str = "", limit: int = 1 << 31) -> list[ProducerState]:
        """Return the producers (see `Store.producers`)."""
        self.feed(feed)
        with self._lock:
            mine = [each.state for (of, _), each in self._accounts.items() if of == feed]
        behind = [each for each in mine if each.name > after]
        return sorted(behind, key=lambda each: each.name)[:limit]

    def producer(self, feed: str, name: str) -> ProducerState:
        """Return a producer's state (see `Store.producer`)."""
        self.feed(feed)
        with self._lock:
            account = self._accounts.get((feed, name))
            return account.state if account else ProducerState(name)

    def sequences(self, feed: str, name: str) -> dict[int, Numbers]:
        """Return a producer's numbers (see `Store.sequences`)."""
        self.feed(feed)
        with self._lock:
            account = self._accounts.get((feed, name))
            return dict(account.sequences) if account else {}

    def receipt(
        self, feed: str, name: str, batch: int, incarnation: str | None
    ) -> StoredReceipt | None:
        """Return the receipt of a batch (see `Store.receipt`)."""
        with self._lock:
            account = self._accounts.get((feed, name), Account(ProducerState(name)))
            which = account.state.incarnation if incarnation is None else incarnation
            call = Call(name, which, "", batch, 0)
            return known_receipt(self._known(feed, call), call)

    def receipts(self, feed: str, name: str, below: int, limit: int) -> list[StoredReceipt]:
        """Return the newest receipts (see `Store.receipts`)."""
        self.feed(feed)
        with self._lock:
            account = self._accounts.get((feed, name), Account(ProducerState(name)))
            numbers = sorted((n for n in account.receipts if n < below), reverse=True)
            return [account.receipts[number] for number in numbers[:limit]]

    def delete_producer(self, feed: str, name: str, *, by: Actor | None = None) -> None:
        """Permanently delete a producer (see `Store.delete_producer`)."""
        self.feed(feed)
        with self._lock:
            account = self._accounts.setdefault((feed, name), Account(ProducerState(name)))
            if not account.state.deleted:
                account.state = replace(account.state, deleted=True)
                self._began.pop((feed, name), None)
                self._note(by, Action.DELETE_PRODUCER, feed=feed, subject=name)

    def _known(self, feed: str, call: Call) -> CommitFacts:
        partitions = self.feed(feed).partitions
        account = self._accounts.get((feed, call.producer))
        above = self._accounts.get((feed, base(call.producer)))
        deleted = any(each is not None and each.state.deleted for each in (account, above))
        if account is None:
            made = 0
            if call.maker and (feed, base(call.producer)) not in self._began:
                made = list(self._began.values()).count(call.maker.client)
            return CommitFacts(ProducerState(call.producer, deleted=deleted), partitions, made=made)
        return account.facts(call, partitions, deleted=deleted)

    def _check_quota(self, feed: str, call: Call, upload: Upload, quota: int | None) -> None:
        staged = self._stagings[feed]
        if quota is None or staged.bytes(call.producer) + upload.bytes <= quota:
            return
        self._tidy(feed, IDLE)
        if (held := staged.bytes(call.producer)) + upload.bytes > quota:
            raise refusals.quota_exceeded(call, quota, held, upload.bytes)

    def _tidy(self, feed: str, patience: float) -> None:
        """Delete what is not needed: silent for too long, committed, or of an overtaken run."""
        before = self.now() - int(patience * 1000)

        def superfluous(each: Staging) -> bool:
            account = self._accounts.get((feed, each.producer))
            done = account and account.has_done(each.incarnation, each.batch, each.run)
            return each.touched < before or bool(done)

        self._stagings[feed].drop(superfluous)

    def _packed(self, pack: Sequence[Moved]) -> Moved:
        if len(pack) == 1:
            return pack[0]
        frame = joined(self._blobs[each.blob] for each in pack)
        for each in pack:
            self._blobs[each.blob] = b""
        self._blobs.append(frame)
        return as_one(pack, len(self._blobs) - 1, frame)

    def chunks(self, feed: str, positions: Mapping[int, int], upto: int, limit: int) -> list[Chunk]:
        """Return chunks in the order of g (see `Store.chunks`)."""
        return self._logs[feed].behind(positions, upto, limit)

    def scan(self, feed: str, after: int, upto: int, limit: int) -> list[Chunk]:
        """Return chunks of all partitions between two positions (see `Store.scan`)."""
        return self._logs[feed].scan(after, upto, limit)

    def unread(self, feed: str, positions: Mapping[int, int], upto: int) -> set[int]:
        """Return the partitions that have chunks after their positions (see `Store.unread`)."""
        return {each.partition for each in self._logs[feed].behind(positions, upto, 1)}

    def frames(self, blobs: Sequence[int]) -> list[bytes]:
        """Return the frames of chunks (see `Store.frames`)."""
        found = [self._blobs[blob] for blob in blobs]
        if b"" in found:
            raise frame_missing(blobs[found.index(b"")])
        return found

    def tags(self, feed: str, positions: Iterable[int]) -> dict[int, str]:
        """Return the tags of chunks (see `Store.tags`)."""
        return self._logs[feed].tags(positions)

    def last(self, feed: str, partitions: Iterable[int], upto: int) -> Chunk | None:
        """Return the last chunk of some partitions (see `Store.last`)."""
        return self._logs[feed].last(partitions, upto)

    def anchors(self, feed: str) -> dict[int, Anchor]:
        """Return what was removed last (see `Store.anchors`)."""
        return dict(self._logs[feed].anchors)

    def remove(self, feed: str, upto: int, *, by: Actor | None = None) -> None:
        """Remove the oldest chunks (see `Store.remove`)."""
        self.feed(feed)
        with self._lock:
            gone = self._logs[feed].remove(upto)
            for each in gone:
                self._blobs[each.blob] = b""
            state = self._feeds[feed]
            events, size = sum(each.events for each in gone), sum(each.size for each in gone)
            self._feeds[feed] = replace(state, events=state.events - events, size=state.size - size)
            if by and gone:
                told = {"upto": gone[-1].g, "chunks": len(gone), "events": events, "bytes": size}
                self._note(by, Action.PRUNE, feed=feed, **told)

    def retention(self, feed: str) -> Retention:
        """Return what the feed keeps (see `Store.retention`)."""
        return self._retentions.get(feed, Retention())

    def set_retention(self, feed: str, retention: Retention, *, by: Actor | None = None) -> None:
        """Set what the feed keeps (see `Store.set_retention`)."""
        self.feed(feed)
        with self._lock:
            before = self.retention(feed)
            self._retentions[feed] = retention
            if retention != before:
                told = {"before": asdict(before), "after": asdict(retention)}
                self._note(by, Action.SET_RETENTION, feed=feed, **told)

    def expire_names(self, feed: str, before: int, limit: int) -> int:
        """Delete the receipts of old batches with names (see `Store.expire_names`)."""
        self.feed(feed)
        with self._lock:
            old = [
                each
                for (of, _), each in self._accounts.items()
                if of == feed
                and each.state.incarnation == BATCH_INCARNATION
                and each.state.time < before
                and each.receipts
            ][:limit]
            for each in old:
                each.expire()
        return len(old)

    def expire_producers(self, feed: str, before: int, limit: int) -> int:
        """Delete producers that are idle (see `Store.expire_producers`)."""
        self.feed(feed)
        with self._lock:
            mine = [each for (of, _), each in self._accounts.items() if of == feed]
            in_use = {base(each.state.name) for each in mine if each.state.time >= before}
            idle = [
                each
                for each in mine
                if not each.state.deleted
                and each.state.incarnation != BATCH_INCARNATION
                and each.state.time < before
                and each.state.name not in in_use
            ][:limit]
            for each in idle:
                each.expire()
                each.state = replace(each.state, deleted=True)
                self._began.pop((feed, each.state.name), None)
        return len(idle)

    def save_cursors(
        self,
        feed: str,
        name: str,
        n: int,
        cursors: Mapping[int, str],
        consumer: str = NOBODY,
        maker: Maker | None = None,
    ) -> None:
        """Keep a reader's cursors (see `Store.save_cursors`)."""
        with self._lock:
            self._check_consumer(feed, name, consumer)
            kept = [each for of, known, each in self._cursors if (of, known) == (feed, name)]
            check_n(name, n, kept, consumer, freed_by(feed, name))
            if maker and not kept:
                made = list(self._makers.values()).count(maker.client)
                check_made(name, made, maker.most)
                self._makers[feed, name] = maker.client
            for other in set(kept) - {n}:
                del self._cursors[feed, name, other]
            if consumer:
                self._consumers[feed, name] = consumer
            self._cursors.setdefault((feed, name, n), {}).update(cursors)

    def load_cursors(self, feed: str, name: str, n: int, consumer: str = NOBODY) -> dict[int, str]:
        """Return a reader's cursors (see `Store.load_cursors`)."""
        with self._lock:
            self._check_consumer(feed, name, consumer)
            return dict(self._cursors.get((feed, name, n), {}))

    def _check_consumer(self, feed: str, name: str, consumer: str) -> None:
        bound = self._consumers.get((feed, name))
        check_consumer(name, bound, consumer, freed_by(feed, name))

    def saved_cursors(self, feed: str, name: str) -> dict[int, dict[int, str]]:
        """Return a reader's cursors for every n (see `Store.saved_cursors`)."""
        with self._lock:
            return {
                n: dict(cursors)
                for (of, known, n), cursors in self._cursors.items()
                if (of, known) == (feed, name)
            }

    def cursor_sets(self, feed: str) -> list[CursorSet]:
        """Return all kept cursors of a feed (see `Store.cursor_sets`)."""
        self.feed(feed)
        with self._lock:
            names = sorted({name for of, name, _ in self._cursors if of == feed})
        return [
            CursorSet(name, self._consumers.get((feed, name), NOBODY), by_n)
            for name in names
            if (by_n := self.saved_cursors(feed, name))
        ]

    def delete_cursor_set(self, feed: str, name: str, *, by: Actor | None = None) -> bool:
        """Forget a name (see `Store.delete_cursor_set`)."""
        self.feed(feed)
        with self._lock:
            self._consumers.pop((feed, name), None)
            self._makers.pop((feed, name), None)
            found = [key for key in self._cursors if key[:2] == (feed, name)]
            for key in found:
                del self._cursors[key]
            if found:
                self._note(by, Action.DELETE_CURSOR_SET, feed=feed, subject=name)
        return bool(found)

    def tokens(self) -> list[Token]:
        """Return all tokens (see `Store.tokens`)."""
        return list(self._tokens.values())

    def add_token(self, token: Token, *, by: Actor | None = None) -> None:
        """Keep a new token (see `Store.add_token`)."""
        with self._lock:
            self._tokens[token.id] = token
            self._note(by, Action.CREATE_TOKEN, subject=token.id, **token.told)

    def revoke_token(self, which: str, *, by: Actor | None = None) -> list[str]:
        """Revoke the tokens of an id or a name (see `Store.revoke_token`)."""
        with self._lock:
            found = [
                each.id
                for each in self._tokens.values()
                if which in (each.id, each.name) and each.revoked is None
            ]
            for each in found:
                self._tokens[each] = replace(self._tokens[each], revoked=self.now())
            if found:
                self._note(by, Action.REVOKE_TOKEN, subject=which, ids=sorted(found))
        return sorted(found)

    def acts(self, wanted: ActFilter = EVERY_ACT, limit: int = ACTS_SHOWN) -> list[Act]:
        """Return the newest acts (see `Store.acts`)."""
        with self._lock:
            return [each for each in reversed(self._acts) if wanted.matches(each)][:limit]

    def record(self, done: Sequence[Act]) -> None:
        """Keep acts (see `Store.record`)."""
        with self._lock:
            self._keep(done)

    def _note(self, by: Actor | None, action: Action, **about: Any) -> None:
        """Keep an act. The caller holds the lock."""
        self._keep([new_act(by, action, self.now(), **about)])

    def _keep(self, done: Iterable[Act]) -> None:
        for each in done:
            self._acts.append(replace(each, id=len(self._acts) + 1))
            if not each.id:
                log_act(each)

    def clock_seen(self) -> int:
        """Return the time that a publisher saw last (see `Store.clock_seen`)."""
        return self._seen

    def see_clock(self, now: int, *, by: Actor | None = None) -> None:
        """Note that the clock is right (see `Store.see_clock`)."""
        with self._lock:
            before, self._seen = self._seen, now
            if by:
                self._note(by, Action.ACCEPT_CLOCK, before=before, accepted=now)

    def skew(self) -> int:
        """Return 0: the clock is this machine's (see `Store.skew`)."""
        return 0

    def _latest(self) -> int:
        return max(self._seen, *(each.time for each in self._feeds.values()))

    def version(self) -> int:
        """Return a number that changes with each commit (see `Store.version`)."""
        return self._version

    def close(self) -> None:
        """Do nothing: there is nothing to close."""
