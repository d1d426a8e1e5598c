"""The audit of a feed: who published what, by the publisher's own account, and then the feed.

The feed is live, so its head is asked for first: what is committed later is not judged. Receipts
come before the events that they are compared with, so an event's receipt is there if it ever was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice

import msgspec

from zeh_spark.audit.chain import Chain, ListedState, state_of
from zeh_spark.audit.findings import Difference, Tally
from zeh_spark.audit.judge import Judge, NotOursError, belongs
from zeh_spark.audit.ledger import Ledger, ListedProducer
from zeh_spark.audit.reading import FeedReader, not_ours
from zeh_spark.client.feed_client import FeedClient
from zeh_spark.client.publish_client import PublishClient
from zeh_spark.errors import CursorGoneError, OptionError, PublisherError, StoreError
from zeh_spark.options import ClientOptions, parse
from zeh_spark.protocol.upload_format import DIGEST_VERSION
from zeh_spark.store.batches import MAX_NUMBER, StoredReceipt

_AT_A_TIME = 4
"""Producers that are asked for: more than that keep a publisher no busier."""

_FIRST_RECEIPTS, _RECEIPTS = 4, 50
"""How many are asked for: of a named batch there is one, of a stream there may be 1,000. Each has a
range for each partition, of which there may be 1,024.
"""


@dataclass(slots=True)
class Account:
    """What the producers' receipts say. `first`: the difference at the lowest position."""

    first: Difference | None = None
    newest: StoredReceipt | None = None
    producers: int = 0
    tally: Tally = field(default_factory=Tally)

    def add(self, difference: Difference | None) -> None:
        if difference and (not self.first or difference.position < self.first.position):
            self.first = difference


class Audit:
    """Of a feed, as far as `head`; with `only`, of one producer and its named batches."""

    def __init__(self, url: str, only: str | None = None) -> None:
        """Raises PublisherError, UnavailableError."""
        at_once = parse(ClientOptions, {"url": url, "retryTimeout": "10s"})
        options = parse(ClientOptions, {"url": url})
        self._url = str(options.url)
        try:
            partitions = FeedClient(at_once).discover().partition_count
        except OptionError as exc:
            raise not_ours(self._url, "it does not tell its partition count") from exc
        self._reader = FeedReader(options, partitions)
        self._client = PublishClient(options)
        self._only = only
        self.head = self._reader.head()

    def run(self, progress: Callable[[int], object] = lambda positions: None) -> Difference | Tally:
        """The first difference, or what was checked. `progress` is told how many positions were
        read.
        """
        with Ledger() as ledger:
            account = self._account(ledger)
            if self._only is not None and not account.producers:
                raise StoreError(f"producer {self._only!r} has never published to {self._url}")
            removed = self._reader.removed()
            with self._kept(removed):
                found = self._judged(ledger, account, removed, progress)
            if found and found.position > removed:
                self._check_kept(removed, found)
            return found or account.tally

    @contextmanager
    def _kept(self, removed: int) -> Iterator[None]:
        try:
            yield
        except CursorGoneError as exc:
            self._check_kept(removed, None)
            raise exc

    def _check_kept(self, removed: int, found: Difference | None) -> None:
        """Raises StoreError if retention has removed meanwhile what was to be looked at."""
        now = self._reader.removed()
        if now > removed and (found is None or found.position <= now):
            raise StoreError(
                f"the feed's retention removed what is up to position {now:,} of {self._url} while "
                f"it was audited; audit it again"
            )

    def _account(self, ledger: Ledger) -> Account:
        account = Account()
        for state, receipts in self._producers():
            self._producer(state, receipts, ledger, account)
        newest = account.newest
        if newest and newest.positions and newest.positions[1] > (end := self._reader.head()):
            account.add(
                Difference(
                    end + 1,
                    "the feed's last position",
                    f"{newest.positions[1]} at least",
                    end,
                    newest.producer,
                    newest.batch,
                )
            )
        return account

    def _producers(self) -> Iterator[tuple[ListedState, list[StoredReceipt]]]:
        """Their states, each with its newest receipts, which are asked for after it."""
        names = self._names()
        with ThreadPoolExecutor(_AT_A_TIME) as pool:
            while some := list(islice(names, 4 * _AT_A_TIME)):
                yield from pool.map(self._newest, some)

    def _names(self) -> Iterator[str]:
        try:
            for each in self._client.producers():
                name = each["producer"]
                if each["receipts"] and (self._only is None or belongs(name, self._only)):
                    yield name
        except PublisherError as exc:
            if exc.status not in {404, 405}:
                raise
            raise not_ours(self._url, "it has no list of producers") from exc

    def _newest(self, name: str) -> tuple[ListedState, list[StoredReceipt]]:
        return self._state(name), self._receipts(name, _FIRST_RECEIPTS)

    def _state(self, name: str) -> ListedState:
        with _understood(self._url, name):
            return state_of(self._client.producer(name))

    def _receipts(self, name: str, limit: int, below: int | None = None) -> list[StoredReceipt]:
        with _understood(self._url, name):
            return msgspec.convert(self._client.receipts(name, limit, below), list[StoredReceipt])

    def _producer(
        self, state: ListedState, page: list[StoredReceipt], ledger: Ledger, account: Account
    ) -> None:
        chain, name = Chain(state, self.head), state.producer
        account.producers, below = account.producers + 1, MAX_NUMBER
        while page:
            for receipt in page:
                account.add(chain.add(receipt))
                self._note(receipt, ledger, account)
            before, below = min(below, page[0].number + 1), page[-1].number
            more = 1 < below < before  # a number that was changed may lead back
            page = self._receipts(name, _RECEIPTS, below) if more else []
        newest = chain.state.receipts
        if chain.oldest > 1:  # how many are kept is told by how many there are now
            newest = self._state(name).receipts
        account.add(chain.end(newest))
        ledger.add_producer(name, ListedProducer(chain.oldest > 1, chain.first))
        for partition, following in chain.told().items():
            ledger.tell(name, partition, following)
        account.tally.producers += bool(chain.within or chain.oldest > 1)
        account.tally.batches += chain.empty
        account.tally.empty += chain.empty
        account.tally.gaps += chain.gaps

    def _note(self, receipt: StoredReceipt, ledger: Ledger, account: Account) -> None:
        if receipt.digest_version != DIGEST_VERSION:
            raise PublisherError(
                f"batch {receipt.batch} of producer {receipt.producer!r} was summed up in a way "
                f"that this zeh-spark does not know (version {receipt.digest_version}, not "
                f"{DIGEST_VERSION}): audit the feed with that version of the publisher"
            )
        if not receipt.positions:
            return
        newest = account.newest
        if not newest or not newest.positions or newest.positions[1] < receipt.positions[1]:
            account.newest = receipt
        if receipt.positions[0] <= self.head:
            ledger.add_receipt(receipt)

    def _judged(
        self, ledger: Ledger, account: Account, removed: int, progress: Callable[[int], object]
    ) -> Difference | None:
        judge = Judge(ledger, removed, self.head, account.tally, self._only)
        at, first = removed, account.first
        try:
            for piece in self._reader.pieces(self.head):
                if first and piece.position > first.position:
                    return first
                if difference := judge.chunk(piece):
                    return _lower(first, difference)
                progress(piece.position - at)
                at = piece.position
        except NotOursError as exc:
            raise not_ours(self._url, str(exc)) from None
        return _lower(first, judge.end())


def _lower(first: Difference | None, second: Difference | None) -> Difference | None:
    """At the lower position; the first one, if they are at the same."""
    if first and second:
        return first if first.position <= second.position else second
    return first or second


@contextmanager
def _understood(url: str, producer: str) -> Iterator[None]:
    try:
        yield
    except msgspec.ValidationError as exc:
        reason = f"its account of producer {producer!r} is not understood ({exc})"
        raise not_ours(url, reason) from None
