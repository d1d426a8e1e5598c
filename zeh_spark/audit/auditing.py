"""The audit of a feed: who published what, by the publisher's own account, and then the feed.

The feed is live, so its head is asked for first: what is committed later is not judged. Receipts
come before the events that they are compared with, so an event's receipt is there if it ever was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from zeh_spark.audit.chain import Chain, state_of
from zeh_spark.audit.findings import Difference, Tally
from zeh_spark.audit.judge import Judge, NotOursError, belongs
from zeh_spark.audit.ledger import Known, Ledger
from zeh_spark.audit.reading import FeedReader, not_ours
from zeh_spark.chunks import DIGEST_VERSION
from zeh_spark.client import FeedClient
from zeh_spark.errors import OptionError, PublisherError, StoreError
from zeh_spark.options import ClientOptions, parse
from zeh_spark.publish import PublishClient
from zeh_spark.publisher.batches import Receipt

_RECEIPTS_AT_A_TIME = 50
"""A receipt has a range for each partition, of which there may be 1,024."""


@dataclass(slots=True)
class Account:
    """What the producers' receipts say. `first`: the difference at the lowest position."""

    first: Difference | None = None
    newest: Receipt | None = None
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
            partitions = FeedClient(at_once).partition_count()
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
            return self._judged(ledger, account, progress) or account.tally

    def _account(self, ledger: Ledger) -> Account:
        account = Account()
        for each in self._producers():
            name = each["producer"]
            if each["receipts"] and (self._only is None or belongs(name, self._only)):
                try:
                    self._producer(name, ledger, account)
                except msgspec.ValidationError as exc:
                    reason = f"its account of producer {name!r} is not understood ({exc})"
                    raise not_ours(self._url, reason) from None
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
        try:
            yield from self._client.producers()
        except PublisherError as exc:
            if exc.status not in {404, 405}:
                raise
            raise not_ours(self._url, "it has no list of producers") from exc

    def _producer(self, name: str, ledger: Ledger, account: Account) -> None:
        chain = Chain(state_of(self._client.producer(name)), self.head)
        account.producers += 1
        below: int | None = None
        while below is None or below > 1:
            page = msgspec.convert(
                self._client.receipts(name, _RECEIPTS_AT_A_TIME, below), list[Receipt]
            )
            for receipt in page:
                account.add(chain.add(receipt))
                self._note(receipt, ledger, account)
            if not page or page[-1].number == below:
                break
            below = page[-1].number
        newest = chain.state.receipts
        if chain.oldest > 1:  # how many are kept is told by how many there are now
            newest = state_of(self._client.producer(name)).receipts
        account.add(chain.end(newest))
        ledger.add_producer(name, Known(chain.oldest > 1, chain.first))
        for partition, following in chain.told().items():
            ledger.tell(name, partition, following)
        account.tally.producers += bool(chain.within or chain.oldest > 1)
        account.tally.batches += chain.empty
        account.tally.empty += chain.empty
        account.tally.gaps += chain.gaps

    def _note(self, receipt: Receipt, ledger: Ledger, account: Account) -> None:
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
        self, ledger: Ledger, account: Account, progress: Callable[[int], object]
    ) -> Difference | None:
        judge = Judge(ledger, self.head, account.tally, self._only)
        at, first = 0, account.first
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
