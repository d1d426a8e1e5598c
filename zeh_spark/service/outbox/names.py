"""Names of the tables that a feed has beside the service's own, and quoting for SQL. Pure.

Rule for editors: every name and text in a statement is quoted by a function here.
"""

from __future__ import annotations

from zeh_spark.service.outbox.table import OutboxTable

HISTORY = "zeroeventhub_history"
REMOVED = "zeroeventhub_removed"
CURSORS = "zeroeventhub_cursors"
"""The tables beside the service's own.

`HISTORY` has one row for each table that is a feed. `REMOVED` has up to where rows of a table were
removed, if a trigger notes that. `CURSORS` has the cursors that the feed keeps for readers, if its
owner wants that.
"""


def quoted(name: str) -> str:
    """Return a name as a quoted identifier."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def qualified(table: OutboxTable, name: str) -> str:
    """Return a quoted name in the schema of the table."""
    return f"{quoted(table.schema)}.{quoted(name)}" if table.schema else quoted(name)
