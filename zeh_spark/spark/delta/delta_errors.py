"""Failures of Delta as our errors, with a remedy: a session without Delta, and Delta's own errors.

Runs on the driver.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

from zeh_spark.errors import LakehouseError
from zeh_spark.spark.frames.compat import Py4JJavaError, is_connect

if TYPE_CHECKING:
    from delta import DeltaTable


_INSTALL = (
    "on a machine of your own, install the delta-spark that fits your Spark with pip install "
    "--no-deps delta-spark==VERSION (docs/operate/where-it-runs.md), and start the session with "
    "zeh_spark.configure(SparkSession.builder).getOrCreate(), in a new process or kernel: one that "
    "has started Spark loads no jars any more"
)


def delta_class(spark: SparkSession, table: str) -> type[DeltaTable]:
    """Return the class DeltaTable of a classic session.

    Raises LakehouseError if the session, or Python, has no Delta.
    """
    from py4j.java_gateway import JavaClass

    try:
        from delta import DeltaTable
    except ImportError as exc:
        raise LakehouseError(
            f"table {table}: this Python has no delta-spark: {_INSTALL}",
            table=table,
            anchor="this-session-has-no-delta",
        ) from exc
    jvm: Any = spark._jvm
    if not isinstance(jvm.io.delta.tables.DeltaTable, JavaClass):
        raise LakehouseError(
            f"table {table}: this session has no Delta: {_INSTALL}",
            table=table,
            anchor="this-session-has-no-delta",
        )
    # It makes Python's exceptions of Java's. delta-spark 4.0 to 4.3 do not import it themselves.
    import delta.exceptions.captured  # noqa: F401

    return DeltaTable


def check_delta(spark: SparkSession, table: str) -> None:
    """Raise LakehouseError if a classic session, or Python, has no Delta.

    On Spark Connect the first statement tells.
    """
    if not is_connect(spark):
        delta_class(spark, table)


@contextlib.contextmanager
def delta_errors(table: str) -> Iterator[None]:
    """Turn errors of Spark and Delta about a table into LakehouseError, with the remedy."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as exc:
        said = _said(exc)
        if ours := re.search(rf"\[USER_RAISED_EXCEPTION\] (table {re.escape(table)}: .*)", said):
            message = ours[1].partition(" SQLSTATE: ")[0]
            raise LakehouseError(message, table=table) from exc
        fitting = (_REMEDIES[each] for each in _REMEDIES if _condition(said).startswith(each))
        if remedy := next(fitting, None):
            raise LakehouseError(f"table {table}: {remedy}. ({said})", table=table) from exc
        raise


def _said(exc: PySparkException | Py4JJavaError) -> str:
    """Return an error's message with the causes that Java tells."""
    if not isinstance(exc, Py4JJavaError):
        return str(exc).partition("\n\nJVM stacktrace")[0]
    cause: Any = exc.java_exception
    said = [str(cause)]
    while (cause := cause.getCause()) is not None and len(said) < _MOST_CAUSES:
        said.append(str(cause))
    return "\n".join(said)


def _condition(said: str) -> str:
    """Return the first of Spark's and Delta's error conditions in a message.

    Rejected: getCondition(). A Py4JJavaError has none, and which of its causes has one differs
    between versions of Spark and Delta; the condition is in brackets in all of their messages.
    """
    found = re.search(r"\[([A-Z_]{2,}[0-9]*)", said)
    return found[1] if found else ""


def is_missing_path(exc: PySparkException) -> bool:
    """Return whether a path that was to be read has no files, or no Delta table."""
    missing = ("PATH_NOT_FOUND", "DELTA_TABLE_NOT_FOUND", "DELTA_PATH_DOES_NOT_EXIST")
    return _condition(_said(exc)) in missing


def is_found(look: Callable[[], object]) -> bool:
    """Return whether `look` finds something. It does not at a path without files or a table."""
    try:
        return bool(look())
    except AnalysisException as exc:
        if is_missing_path(exc):
            return False
        raise


def is_conflict(exc: PySparkException) -> bool:
    """Return whether another writer of the table was first, so that the write can be repeated."""
    return _condition(_said(exc)).startswith(_CONFLICTS) or type(exc).__name__ in _CONFLICTING


_CONFLICTS = ("DELTA_CONCURRENT_", "DELTA_METADATA_CHANGED", "DELTA_PROTOCOL_CHANGED")
_CONFLICTING = {
    "ConcurrentAppendException",
    "ConcurrentDeleteReadException",
    "ConcurrentDeleteDeleteException",
    "ConcurrentTransactionException",
    "ConcurrentWriteException",
    "MetadataChangedException",
    "ProtocolChangedException",
}
"""Delta's exceptions by their classes, which only classic sessions have."""

_MOST_CAUSES = 20
_TABLE = "Give the path or the name of a Delta table"
_COLUMNS = "Give the frame the table's columns and types; mergeSchema=true adds new columns"
_NEWER = "Use a newer Delta, that of the table's other writers"

_REMEDIES = {
    "DELTA_CONFIGURE_SPARK_SESSION": f"This session has no Delta: {_INSTALL}",
    "DATA_SOURCE_NOT_FOUND": f"This session has no Delta: {_INSTALL}",
    "DELTA_UNSUPPORTED_FEATURES": f"{_NEWER}, or drop the feature (ALTER TABLE … DROP FEATURE …)",
    "DELTA_INVALID_PROTOCOL_VERSION": _NEWER,
    "PARSE_": f"{_TABLE}: a path has a /, a name one to three parts, quoted as in SQL",
    "REQUIRES_SINGLE_PART_NAMESPACE": f"{_TABLE}: there is no such catalog",
    "DELTA_MISSING_DELTA_TABLE": _TABLE,
    "DELTA_TABLE_NOT_FOUND": _TABLE,
    "DELTA_PATH_DOES_NOT_EXIST": _TABLE,
    "DELTA_METADATA_MISMATCH": _COLUMNS,
    "DELTA_FAILED_TO_MERGE_FIELDS": _COLUMNS,
    "_LEGACY_ERROR_TEMP_DELTA_0007": _COLUMNS,  # DELTA_METADATA_MISMATCH, before Delta 4.1
}
