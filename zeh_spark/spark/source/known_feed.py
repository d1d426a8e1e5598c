"""What a run of a query knows of its feed: which one it is, its partitions, and what it offers.

Rule for editors: a publisher is asked only for what is not known yet, and for the identity of the
events of a batch, once they were fetched, unless the answers with them told that no epoch has begun
while the query runs.

Runs on the driver.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zeh_spark.client.http.discovery import discover
from zeh_spark.client.http.transport import Transport
from zeh_spark.spark.source import offsets
from zeh_spark.spark.source.offsets import Offset
from zeh_spark.spark.source.options import SourceOptions
from zeh_spark.wire.feed_identity import Epoch, FeedIdentity, untold


class KnownFeed:
    """The feed of one run.

    Attributes:
        offered: whether the publisher offers direct reads; None while it was not asked.
    """

    def __init__(self, transport: Transport, options: SourceOptions) -> None:
        self.offered: bool | None = None
        self._transport = transport
        self._options = options
        self._identity: FeedIdentity | None = None
        self._partition_count = options.partition_count

    @property
    def id(self) -> str | None:
        """The feed's identity in the checkpoint: its own id, or its name if it tells no id."""
        return self._identity.id if self._identity else None

    def offset(self, document: Mapping[str, Any]) -> Offset:
        """Return an offset of the checkpoint, with its partitions.

        Raises CheckpointError if it is not one of this feed.
        """
        offset = offsets.parse(document, self._options)
        if offset != offsets.initial(self._options):
            self._transport.has_answered()  # when the query made its first batch
            self._partition_count = self._partition_count or offset.partition_count
        if self._identity is None or self._partition_count is None:
            self._identify(offset)
        elif offset.id:
            offsets.check_identity(offset.id, self._identity, self._options.url)
        return offset.resolved(self._partition_count or 0)

    @property
    def tells(self) -> bool:
        """Whether the publisher is one of ours, whose pages tell where the feed stands."""
        return bool(self.offered) or (self._identity is not None and self._identity.told)

    def stamping(self, offset: Offset, epochs: frozenset[Epoch | None]) -> FeedIdentity | None:
        """Return the identity for the events of a batch at an offset, after they were fetched.

        It is asked for unless the answers with the events told the newest of the known `epochs`.
        """
        known = self._identity
        if known is None or not epochs <= {known.epochs[-1]}:
            known = self._identify(offset)
        return self._options.stamping(known)

    def offers_direct_reads(self) -> bool:
        if self.offered is None:
            known = self._identity is not None and self._identity.told
            found = discover(self._transport, self._partition_count, has_identity=known)
            self.offered = found.direct
        return self.offered

    def _identify(self, offset: Offset) -> FeedIdentity:
        """Ask the publisher which feed it serves, and for the partition count of a new query.

        A checkpoint that began without an id continues with the feed's name, even if the publisher
        tells an id since: state and tables know its events by that name.

        Raises CheckpointError if it is not the feed of the offset, or of this run.
        """
        count, name = self._partition_count, self._options.feed
        known = offset.id or self.id
        if known == name and count is not None:
            self._identity = untold(name)
            return self._identity
        found = discover(self._transport, count, has_identity=bool(known))
        identity = found.named(name)
        offsets.check_identity(known, identity, self._options.url)
        if count is None:
            self._options.check_partitions(found.partition_count)
        self._identity, self._partition_count = identity, found.partition_count
        self.offered = found.direct
        return identity
