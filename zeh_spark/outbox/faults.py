"""Why a table cannot be a feed, and what the errors say that tell it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zeh_spark.errors import StoreError
from zeh_spark.outbox.names import HISTORY
from zeh_spark.outbox.table import OutboxTable


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a table cannot be a feed, and the statements that mend it."""

    reason: str
    statements: tuple[str, ...] = ()


def mended(table: OutboxTable, faults: Sequence[Fault]) -> list[str]:
    """The statements against faults. Raises StoreError for those that have none."""
    if helpless := [each for each in faults if not each.statements]:
        raise StoreError(refusal(table, helpless))
    return [statement for each in faults for statement in each.statements]


def refusal(table: OutboxTable, faults: Sequence[Fault]) -> str:
    reasons = "; ".join(each.reason for each in faults)
    mendable = all(each.statements for each in faults)
    missing = "\n".join(each for fault in faults for each in fault.statements if mendable)
    remedy = f". zeh-spark ddl prints what is missing:\n{missing}" if missing else ""
    return f"table {table.name} cannot be served as a feed: {reasons}{remedy}"


def gone_history(table: OutboxTable, missing: tuple[str, ...]) -> StoreError:
    return StoreError(refusal(table, [Fault(f"{HISTORY} has no row for it any more", missing)]))


def no_feed_ids(table: OutboxTable, missing: Sequence[str]) -> StoreError:
    return StoreError(
        f"{HISTORY} has no column feed_id yet, for the id that table {table.name} is to get as a "
        f"copy. Run these statements, which zeh-spark ddl prints, and then this again:\n"
        + "\n".join(missing)
    )
