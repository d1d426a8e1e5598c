"""What an answer with a page tells of its feed, in header fields: the epoch, the head, and the lag.

A reader that sends `TELL` gets them from our publisher. Other publishers ignore it. So no request
is made only to learn them.

    ZEH-Feed: 0a1b2c3d4e5f6071~216394000;since=1795244400000    the newest epoch: its id, and time
    ZEH-Head: 17.0a1b2c3d                                       the cursor of the newest chunk
    ZEH-Lag: {"0":{"events":12,"ms":3400}}                      what follows each cursor asked with

The epoch stands for the whole identity (see `feed_identity`): a reader that knows another one asks
for all epochs. Rejected: all epochs in the field, because proxies refuse answers whose header
fields have more than about 4 KiB together.

Rule for editors: what cannot be read counts as not told. Pure; runs on both sides.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from zeh_spark.wire.direct_reads import PartitionLag
from zeh_spark.wire.feed_identity import ID, Epoch

TELL = "ZEH-Tell"
"""The header of a request for these fields. Its value is 1."""

PROXY_TIME = "ZEH-Proxy-Time"
"""The header with which a caching proxy tells its time, in seconds since 1970 with decimals."""

FEED, HEAD, LAG = "ZEH-Feed", "ZEH-Head", "ZEH-Lag"

ONLY = "ZEH-Only"
"""The header of an answer that has only the events asked for. Its value is that of `only`."""

MOST_LAGS = 32
"""Partitions of a request for which the lag is told. Their field has less than 2 KiB."""

_EPOCH = re.compile(rf"({ID.pattern});since=([0-9]{{1,15}})")
_CURSOR = re.compile(r"[!-~]{1,100}")
_MAX_LAG = 4096

_decode_lags = msgspec.json.Decoder(dict[str, PartitionLag]).decode


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a feed stands, as of an answer. What is not told is None.

    Args:
        epoch: the newest epoch.
        head: the cursor of the newest chunk.
        lags: what follows the cursors that were asked with, by partition.
    """

    epoch: Epoch | None = None
    head: str | None = None
    lags: Mapping[str, PartitionLag] | None = None

    def fields(self) -> dict[str, str]:
        """Return the header fields that tell it."""
        fields = {}
        if self.epoch is not None:
            fields[FEED] = f"{self.epoch.id};since={self.epoch.time}"
        if self.head is not None:
            fields[HEAD] = self.head
        if self.lags is not None:
            fields[LAG] = msgspec.json.encode(self.lags).decode()
        return fields


def parse_fields(headers: Mapping[str, str]) -> Standing:
    """Return what the header fields of an answer tell."""
    epoch = _EPOCH.fullmatch(headers.get(FEED, ""))
    head = _CURSOR.fullmatch(headers.get(HEAD, ""))
    return Standing(
        Epoch(epoch[1], int(epoch[3])) if epoch else None,
        head[0] if head else None,
        _lags(headers.get(LAG, "")),
    )


def _lags(text: str) -> Mapping[str, PartitionLag] | None:
    try:
        return _decode_lags(text) if 0 < len(text) <= _MAX_LAG else None
    except (msgspec.MsgspecError, RecursionError):
        return None
