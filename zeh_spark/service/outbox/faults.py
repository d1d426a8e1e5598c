"""Why a table cannot be a feed, the statements that repair it, and the errors that say so. Pure.

Rule for editors: an error prints the statements themselves whenever all faults have some, so that a
reader of the log can repair the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zeh_spark.errors import StoreError
from zeh_spark.service.outbox.table import HISTORY, OutboxTable


@dataclass(frozen=True, slots=True)
class Fault:
    """A reason why a table cannot be a feed."""

    reason: str
    statements: tuple[str, ...] = ()


def repair_statements(table: OutboxTable, faults: Sequence[Fault]) -> list[str]:
    """Return the statements that repair all faults, in order.

    Raises StoreError, which names all faults that no statement can repair.
    """
    if helpless := [each for each in faults if not each.statements]:
        raise refusal(table, helpless)
    return [statement for each in faults for statement in each.statements]


def refusal(table: OutboxTable, faults: Sequence[Fault]) -> StoreError:
    """Return the error for a table with faults, with the statements if all faults have some."""
    reasons = "; ".join(each.reason for each in faults)
    mendable = all(each.statements for each in faults)
    missing = "\n".join(each for fault in faults for each in fault.statements if mendable)
    remedy = f". zeh-spark ddl prints what is missing:\n{missing}" if missing else ""
    return StoreError(
        f"table {table.name} cannot be served as a feed: {reasons}{remedy}",
        anchor="the-table-cannot-be-served",
    )


def unreleased_history(table: OutboxTable) -> Fault:
    """Return the fault of a table of histories without feed ids, which no release has made."""
    return Fault(
        f"{HISTORY} has no column feed_id, so no release of zeh-spark has made it: drop it, and "
        f"run what zeh-spark ddl prints then. Readers of {table.name} have to begin again"
    )
