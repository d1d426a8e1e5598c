"""The tables that a feed has beside the service's own, and names and text as SQL. Pure."""

from __future__ import annotations

from zeh_spark.outbox.table import OutboxTable

HISTORY = "zeroeventhub_history"
REMOVED = "zeroeventhub_removed"
"""The tables beside the service's own: one row for each table that is a feed, and up to where its
rows were removed, where a trigger notes that.
"""


def quoted(name: str) -> str:
    """An identifier."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def qualified(table: OutboxTable, name: str) -> str:
    """A name in the table's schema."""
    return f"{quoted(table.schema)}.{quoted(name)}" if table.schema else quoted(name)
