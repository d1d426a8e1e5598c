"""What depends on the Spark that runs: its version, Spark Connect, and how it finds columns.

Rule for editors: test whether a feature exists, never which version runs, because platforms
backport features. Look for a column by its name with `column_of` or `found_column` only, because
Spark ignores upper and lower case by default. Runs wherever the source and the sink run: on the
driver and on executors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

from zeh_spark.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable as ReadAllAvailable
    from pyspark.sql.streaming.datasource import ReadMaxBytes as ReadMaxBytes
    from pyspark.sql.streaming.datasource import (
        SupportsTriggerAvailableNow as SupportsTriggerAvailableNow,
    )

    HAS_ADMISSION_CONTROL = True
except ImportError:  # Spark 4.0 and 4.1: latestOffset() without arguments, no limits
    HAS_ADMISSION_CONTROL = False

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Stands in for the missing base."""

    class ReadAllAvailable:  # type: ignore[no-redef]
        """These versions never give one."""

    class ReadMaxBytes:  # type: ignore[no-redef]
        """These versions never ask for one."""

        def __init__(self, max_bytes: int) -> None:
            self.max_bytes = max_bytes


try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter as DataSourceStreamArrowWriter
except ImportError:  # the worker of Spark 4.0 looks for the batch class in streams, too
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter

    class DataSourceStreamArrowWriter(  # type: ignore[no-redef, misc]  # for the missing base
        DataSourceStreamWriter, DataSourceArrowWriter
    ):
        """Spark 4.0 hands batches of Arrow to a writer of this kind, too."""


try:
    from py4j.protocol import Py4JError as Py4JError
    from py4j.protocol import Py4JJavaError as Py4JJavaError
except ImportError:  # a client of Spark Connect has no Java

    class Py4JError(Exception):  # type: ignore[no-redef, unused-ignore]
        """Is never raised."""

    class Py4JJavaError(Py4JError):  # type: ignore[no-redef, misc]
        """Is never raised."""


def is_connect(spark: SparkSession) -> bool:
    """Return whether this is a session of Spark Connect, which shows no JVM."""
    return not hasattr(spark, "_jsparkSession")


def columns_of(df: DataFrame) -> list[str] | None:
    """Return the frame's columns; None in a query function of a declarative pipeline."""
    try:
        return df.columns
    except PySparkException as exc:
        if not is_refused_analysis(exc):
            raise
        return None


def is_refused_analysis(exc: PySparkException) -> bool:
    """Return whether this is how Spark refuses analysis in a pipeline's query function."""
    return (exc.getCondition() or "").startswith("ATTEMPT_ANALYSIS")


CASE_SENSITIVE = "spark.sql.caseSensitive"


def column_of(df: DataFrame, name: str) -> str | None:
    """Return the column that the frame's session finds by a name; None if there is none.

    Raises OptionError if there are several.
    """
    try:
        sensitive = str(df.sparkSession.conf.get(CASE_SENSITIVE, "false")).lower() == "true"
    except PySparkException:  # a platform may show only some settings, as serverless ones do
        return found_column(df.columns, name)
    return found_column(df.columns, name, case_sensitive=sensitive)


def found_column(
    columns: Sequence[str], name: str, *, case_sensitive: bool | None = None
) -> str | None:
    """Return which of the columns Spark finds by a name; None if there is none.

    `case_sensitive` is the session's setting. It is None if it is not known: Spark makes the
    readers and writers of a Python data source in a process without a session. Then the column with
    exactly this name is found, or else one in another case. Raises OptionError if there are
    several.
    """
    exact = [each for each in columns if each == name]
    any_case = [each for each in columns if each.lower() == name.lower()]
    found = exact if case_sensitive or (case_sensitive is None and exact) else any_case
    if len(found) > 1:
        raise OptionError(
            f"the columns {' and '.join(map(repr, found))} have the same name for Spark, so which "
            f"of them is meant by {name!r} is not known. Rename or drop all but one",
            option=name,
            anchor="columns-whose-names-differ-only-in-case",
        )
    return found[0] if found else None


def quoted(name: str) -> str:
    """Return a column's name, quoted for SQL: a name may have dots, and is no path then."""
    return f"`{name.replace('`', '``')}`"
