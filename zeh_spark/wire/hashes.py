"""Digests of many texts: sums of hashes, which do not depend on the order.

Pure; runs everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xxhash

MODULUS = 1 << 128

_FEW = 32


def sum_of(texts: Sequence[bytes]) -> int:
    """Return the sum of the xxh3-128 of some texts, modulo 2^128.

    It is summed in columns of 32 bits. Measured: twice as fast as Python's integers, if there are
    many.
    """
    if len(texts) < _FEW:
        return sum(map(xxhash.xxh3_128_intdigest, texts)) % MODULUS
    digests = np.frombuffer(b"".join(map(xxhash.xxh3_128_digest, texts)), ">u4").astype(np.uint64)
    total = 0
    for column in digests.reshape(-1, 4).sum(axis=0).tolist():
        total = (total << 32) + column
    return total % MODULUS


def sum_of_lines(lines: bytes) -> str:
    """Return a digest of lines which their order does not change, as 32 hex digits.

    It is the sum of the xxh3-128 of each line, modulo 2^128.
    """
    return in_hex(sum_of(lines.split(b"\n")[:-1]))


def in_hex(total: int) -> str:
    """Return a sum of hashes as 32 hex digits."""
    return f"{total % MODULUS:032x}"
