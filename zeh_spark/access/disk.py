"""The limit of free disk space, below which a publisher of a SQLite store refuses uploads.

On a full disk, even removing events would fail. Uploads are refused before their bodies are read.
Staged batches can still be committed, and events can be read and removed. Runs in
threads of the publisher.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from zeh_spark.protocol import problems
from zeh_spark.store.problems import Problem


def check_room(file: Path | None, least_free: int) -> None:
    """Refuse an upload if the disk of the store's file is nearly full.

    Args:
        file: The file of a SQLite store; None for any other store, which has its own disk.
        least_free: Bytes that have to be free.

    Raises:
        Problem: Fewer are free (`store-full`).
    """
    if file is None:
        return
    free = shutil.disk_usage(file.parent).free
    if free < least_free:
        raise Problem(
            problems.STORE_FULL,
            f"the disk of the publisher's store has {free >> 20:,} MiB left, and uploads are taken "
            f"from {least_free >> 20:,} MiB on; its operator makes room, or lowers --least-free",
        )
