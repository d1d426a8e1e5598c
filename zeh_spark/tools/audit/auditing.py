"""The audit of a feed: read the producers' receipts, then the feed, and compare them.

Rule for editors: keep the order, because others may publish meanwhile.

1. The head is asked for first. What is committed later is not judged.
2. The receipts are read before the events that they are compared with. So the receipt of an event
   is there if it ever was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from zeh_spark.client.http.discovery import discover
from zeh_spark.client.http.publish_client import PublishClient
from zeh_spark.client.http.transport import Transport
from zeh_spark.client.options.client_options import ClientOptions
from zeh_spark.client.options.given import parse
from zeh_spark.errors import (
    CursorGoneError,
    OptionError,
    PublisherError,
    PublishError,
    StoreError,
    UnavailableError,
    ZeroEventHubError,
)
from zeh_spark.service.store.batches import MAX_NUMBER, StoredReceipt
from zeh_spark.tools.audit.chain import Chain, ListedState, state_of
from zeh_spark.tools.audit.findings import Difference, Tally
from zeh_spark.tools.audit.judge import Judge, NotOursError, belongs
from zeh_spark.tools.audit.ledger import Ledger, ListedProducer
from zeh_spark.tools.audit.reading import FeedReader, not_ours
from zeh_spark.wire.problems import TABLE_FEED
from zeh_spark.wire.upload_format import DIGEST_VERSION

_FIRST_RECEIPTS, _RECEIPTS = 4, 50
"""How many receipts the first and each later request asks for.

A named batch has one receipt, a stream may have 1,000. A receipt has a range for each of up to
1,024 partitions.
"""


@dataclass(slots=True)
class Account:
    """What the receipts of all producers say."""

    first: Difference | None = None
    newest: StoredReceipt | None = None
    producers: int = 0
    tally: Tally = field(default_factory=Tally)

    def add(self, difference: Difference | None) -> None:
        """Keep a difference if none at a lower or the same position is kept."""
        if difference and (not self.first or difference.position < self.first.position):
            self.first = difference


class Audit:
    """An audit of a feed, from its first position to the head that it has now.

    Args:
        only: A producer, to check only its batches and its named batches; None, to check all.
    """

    def __init__(
        self, url: str, only: str | None = None, connect: Mapping[str, str] | None = None
    ) -> None:
        at_once = parse(ClientOptions, {**(connect or {}), "url": url, "retryTimeout": "10s"})
        options = parse(ClientOptions, {**(connect or {}), "url": url})
        self._url = str(options.url)
        try:
            partitions = discover(Transport(at_once)).partition_count
        except OptionError as exc:
            raise not_ours(self._url, "it does not give its partition count") from exc
        self._reader = FeedReader(options, partitions)
        self._client = PublishClient(options)
        self._only = only
        self.head = self._head()

    def _head(self) -> int:
        """Return the feed's last position. A table feed has none, and says so when it is asked."""
        try:
            return self._reader.head()
        except PublisherError as strange:
            try:
                next(self._client.producers(), None)
            except (PublisherError, UnavailableError) as exc:
                raise exc if _is_table(exc) else strange from None
            raise

    def run(self, progress: Callable[[int], object] = lambda positions: None) -> Difference | Tally:
        """Read the receipts and the feed, and compare them.

        `progress` is called with the number of positions that were read since its last call. It
        returns the difference at the lowest position, or what was checked if there is none. Raises
        StoreError if the producer to check has never published, or if retention removed events
        meanwhile; PublisherError if the publisher is of another kind.
        """
        with closing(Ledger()) as ledger:
            account = self._account(ledger)
            if self._only is not None and not account.producers:
                raise StoreError(
                    f"producer {self._only!r} has never published to {self._url}. List the feed's "
                    f"producers with zeh-spark producers {self._url}."
                )
            removed = self._reader.removed()
            try:
                self._judge(ledger, account, removed, progress)
            except CursorGoneError:
                self._check_kept(removed)
                raise
            if account.first and account.first.position > removed:
                self._check_kept(removed, account.first)
            return account.first or account.tally

    def _check_kept(self, removed: int, found: Difference | None = None) -> None:
        """Raise StoreError if retention has meanwhile removed what was to be checked."""
        now = self._reader.removed()
        if now > removed and (found is None or found.position <= now):
            raise StoreError(
                f"the feed's retention removed what is up to position {now:,} of {self._url} while "
                f"it was audited. Audit it again."
            )

    def _account(self, ledger: Ledger) -> Account:
        """Read the receipts of all producers, check them, and note them in the ledger."""
        account = Account()
        for listed in self._producers():
            with _understood(self._url, listed["producer"]):
                state, receipts = state_of(listed), _receipts_of(listed["newestReceipts"])
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

    def _producers(self) -> Iterator[Mapping[str, Any]]:
        """Yield each producer's state with its newest receipts, which are looked up after it."""
        try:
            for each in self._client.producers(_FIRST_RECEIPTS):
                if "newestReceipts" not in each:
                    raise not_ours(self._url, "its list of producers has no receipts")
                if each["receipts"] and (
                    self._only is None or belongs(each["producer"], self._only)
                ):
                    yield each
        except PublisherError as exc:
            if exc.status not in {404, 405} or _is_table(exc):
                raise
            raise not_ours(self._url, "it has no list of producers") from exc

    def _state(self, name: str) -> ListedState:
        with _understood(self._url, name):
            return state_of(self._client.producer(name))

    def _receipts(self, name: str, limit: int, below: int | None = None) -> list[StoredReceipt]:
        with _understood(self._url, name):
            return _receipts_of(self._client.receipts(name, limit, below))

    def _producer(
        self, state: ListedState, page: list[StoredReceipt], ledger: Ledger, account: Account
    ) -> None:
        """Check all receipts of a producer, from `page` with the newest to the oldest."""
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
        if chain.oldest > 1:  # how many are kept depends on how many there are now
            newest = self._state(name).receipts
        account.add(chain.end(newest))
        ledger.add_producer(name, ListedProducer(chain.oldest > 1, chain.first))
        for partition, first in state.first_sequences.items():
            ledger.begins(name, partition, first)
        for partition, following in chain.told().items():
            ledger.tell(name, partition, following)
        account.tally.producers += bool(chain.within or chain.oldest > 1)
        account.tally.batches += chain.empty
        account.tally.empty += chain.empty
        account.tally.gaps += chain.gaps

    def _note(self, receipt: StoredReceipt, ledger: Ledger, account: Account) -> None:
        """Note a receipt that claims positions up to the head."""
        if receipt.digest_version != DIGEST_VERSION:
            raise PublisherError(
                f"batch {receipt.batch} of producer {receipt.producer!r} has a digest of version "
                f"{receipt.digest_version}, and this zeh-spark knows version {DIGEST_VERSION}. "
                f"Audit the feed with the version of zeh-spark that its publisher runs."
            )
        if not receipt.positions:
            return
        newest = account.newest
        if not newest or not newest.positions or newest.positions[1] < receipt.positions[1]:
            account.newest = receipt
        if receipt.positions[0] <= self.head:
            ledger.add_receipt(receipt)

    def _judge(
        self, ledger: Ledger, account: Account, removed: int, progress: Callable[[int], object]
    ) -> None:
        """Read the feed up to its first difference, unless the account has one before that."""
        judge, at = Judge(ledger, removed, self.head, account.tally, self._only), removed
        try:
            for piece in self._reader.pieces(self.head):
                if account.first and piece.position > account.first.position:
                    return
                if difference := judge.chunk(piece):
                    account.add(difference)
                    return
                progress(piece.position - at)
                at = piece.position
        except NotOursError as exc:
            raise not_ours(self._url, str(exc)) from None
        account.add(judge.end())


def _receipts_of(documents: object) -> list[StoredReceipt]:
    return msgspec.convert(documents, list[StoredReceipt])


def _is_table(exc: ZeroEventHubError) -> bool:
    return isinstance(exc, PublishError) and exc.problem == TABLE_FEED.name


@contextmanager
def _understood(url: str, producer: str) -> Iterator[None]:
    """Turn a document of another form into a PublisherError."""
    try:
        yield
    except msgspec.ValidationError as exc:
        reason = f"its account of producer {producer!r} is not understood ({exc})"
        raise not_ours(url, reason) from None
