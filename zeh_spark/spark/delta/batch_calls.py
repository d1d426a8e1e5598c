"""One call for each table and name in a batch.

Rows of a second one would be taken for those of the first: a table's record names a batch, and not
its rows.

Runs on the driver.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from zeh_spark.errors import LakehouseError

_lock = threading.Lock()
_calls: dict[tuple[str, str], tuple[str, int]] = {}
"""The run and batch of the newest call for each table and name in this process; tables by what the
user calls them, and by their ids.
"""


@contextmanager
def only_call(table: str, name: str, run: str, number: int) -> Iterator[Callable[[str], None]]:
    """Take a table for a call in batch `number` of a query's run; a call that fails gives it back.

    Yields a function that takes the table by its id as well, once that is known.

    Raises:
        LakehouseError: another call of the batch wrote the table under the name, or writes it.
    """
    mine: list[tuple[str, str]] = []

    def take(identity: str) -> None:
        key = identity, name
        with _lock:
            if key in mine:
                return
            if _calls.get(key) == (run, number):
                raise LakehouseError(
                    f"table {table}, name={name!r}, was written in this batch ({number}) already, "
                    f"without the rows of this call. If the rows are the same, because your "
                    f"function was repeated after an error, start the query again. Otherwise unite "
                    f"the frames, and call it once for each table and batch; if the table has the "
                    f"batch, RESTORE it to the version before",
                    table=table,
                    got=number,
                    anchor="the-table-was-written-in-this-batch-already",
                )
            _calls[key] = run, number
            mine.append(key)

    try:
        take(table)
        yield take
    except BaseException:  # whatever ends the call, its table is free again
        with _lock:
            for key in mine:
                if _calls.get(key) == (run, number):
                    del _calls[key]
        raise
