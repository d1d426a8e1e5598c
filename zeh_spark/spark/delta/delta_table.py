"""A Delta table as the lakehouse sees it: its place, its history, and its transactions.

Rule for editors: prefer Delta's SQL and options, which every platform has. Ask its JVM classes only
for what these do not give (transactions) or give ten times slower (id and version), and have
another way for Spark Connect and for platforms that do not show them. Rejected: `DeltaTable` on
Spark Connect, which needs a plugin in the server.

Runs on the driver.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import count
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from zeh_spark.errors import LakehouseError
from zeh_spark.spark.delta import commits
from zeh_spark.spark.delta.checkpoint import hadoop_file
from zeh_spark.spark.delta.commits import CommitRecord, TableCommit, TableStanding
from zeh_spark.spark.delta.delta_errors import delta_class, delta_errors, is_found
from zeh_spark.spark.frames.compat import Py4JError, found_column, is_connect

if TYPE_CHECKING:
    from delta import DeltaTable
    from pyspark.sql import DataFrameWriter

_PAGE = 50
"""Commits that are read first; ten times more until one of the name is found."""

_LOGS = ("org.apache.spark.sql.delta.DeltaLog", "com.databricks.sql.transaction.tahoe.DeltaLog")


@dataclass(frozen=True, slots=True)
class LakeTableState:
    """What a table is now. A table that was dropped and created again has another id.

    Attributes:
        version: The version, which a new table may have too; None if the platform tells it slowly.
    """

    id: str
    version: int | None
    properties: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class LakeTable:
    """A Delta table by path or by name. It reads and changes properties; `save` writes rows.

    Attributes:
        text: The table as the user gave it: a path (`/lake/orders`, `s3://…`, delta.`/lake/orders`)
            or a name of one to three parts.
    """

    spark: SparkSession
    text: str
    page: int = _PAGE

    @property
    def path(self) -> str | None:
        """The table's path, absolute; None for a table that has a name.

        Spark resolves a relative path against the working directory, but in SQL against nothing.
        """
        quoted = re.fullmatch(r"delta\.`(.+)`", self.text, re.IGNORECASE)
        path = quoted[1] if quoted else self.text
        if not quoted and "/" not in path:
            return None
        if path.startswith("/") or re.match(r"[A-Za-z][\w+.-]*:", path):
            return path
        if is_connect(self.spark):
            raise LakehouseError(
                f"table {self.text}: this is a session of Spark Connect, whose server has a "
                f"working directory of its own. Give an absolute path",
                table=self.text,
            )
        files, place = hadoop_file(self.spark, path)
        return str(files.makeQualified(place).toString())

    @property
    def identifier(self) -> str:
        """The table as SQL names it."""
        return self.text if self.path is None else f"delta.`{self.path.replace('`', '``')}`"

    def exists(self) -> bool:
        """Return whether the table exists.

        Raises LakehouseError if there is something that is not a Delta table, or the session has no
        Delta.
        """
        with delta_errors(self.text):
            if self.path is None:
                return self.spark.catalog.tableExists(self.text) and self._is_delta()
            if self._is_delta():
                return True
        if self._has_files(self.path):
            raise LakehouseError(
                f"table {self.text}: there are files, which are not a Delta table. Take another "
                f"path, or CONVERT TO DELTA; remove them if a first write was killed there",
                table=self.text,
            )
        return False

    def _is_delta(self) -> bool:
        """Return whether there is a Delta table. Raises Spark's error for a name of another one."""
        if is_connect(self.spark):
            if (path := self.path) is None:
                return bool(self._details("id"))
            reader = self.spark.read.format("delta")
            return is_found(lambda: reader.load(path).schema is not None)
        delta = delta_class(self.spark, self.text)
        if self.path is None:
            return bool(delta.forName(self.spark, self.text))
        return bool(delta.isDeltaTable(self.spark, self.path))

    def _has_files(self, path: str) -> bool:
        """Return whether there are files that no writer of Delta has made.

        One that is writing its first commit, or was killed before it, has made the log's folder.
        """
        if is_connect(self.spark):
            files = self.spark.read.format("binaryFile").option("recursiveFileLookup", "true")
            log = is_found(lambda: files.load(f"{path}/_delta_log").schema)
            return not log and is_found(lambda: files.load(path).select("path").limit(1).count())
        system, place = hadoop_file(self.spark, path)
        if not system.exists(place):
            return False
        names = [each.getPath().getName() for each in system.listStatus(place)]
        return "_delta_log" not in names and any(not name.startswith(("_", ".")) for name in names)

    def _delta(self) -> DeltaTable:
        """Return Delta's own object for the table, in a classic session."""
        delta = delta_class(self.spark, self.text)
        with delta_errors(self.text):
            if self.path is None:
                return delta.forName(self.spark, self.text)
            return delta.forPath(self.spark, self.path)

    def frame(self) -> DataFrame:
        with delta_errors(self.text):
            return self.spark.read.table(self.identifier)

    def save(self, writer: DataFrameWriter) -> None:
        """Append the writer's rows; create the table if it does not exist."""
        writer = writer.format("delta").mode("append")
        with delta_errors(self.text):
            if self.path is None:
                writer.saveAsTable(self.text)
            else:
                writer.save(self.path)

    def standing(self, name: str, cursor_column: str | None = None) -> TableStanding:
        """Return where the table stands for a name.

        The history decides; then, as far as that does not tell, the column that keeps cursors and
        the table's transactions.
        """
        if not self.exists():
            return TableStanding(version=-1, generation=0)
        found = (
            commits.standing(known, name, self.text, complete=complete)
            for known, complete in self._pages()
        )
        stands = next(filter(None, found))
        if stands.unknown is None:
            return stands
        if cursor_column and (record := self._by_column(name, cursor_column)):
            others = tuple(each for each in stands.others if each.name != name)
            stands = TableStanding(stands.version, record, others, stands.version)
        return commits.with_transactions(stands, name, self.transactions())

    def versions(self, app: str) -> tuple[dict[int, CommitRecord], set[int]]:
        """Return an app's records that count, by number, and the numbers that a RESTORE took back.

        They are those in the newest commits that have any.
        """
        for known, complete in self._pages():
            found, undone = commits.versions(known, app, self.text)
            if found or complete:
                break
        return found, undone

    def _pages(self) -> Iterator[tuple[list[TableCommit], bool]]:
        """Yield the newest commits, more of them each time, and whether they are all."""
        for power in count():
            limit = self.page * 10**power
            known = self._history(limit)
            yield known, len(known) < limit

    def _history(self, limit: int) -> list[TableCommit]:
        written = F.col("operationMetrics")["numOutputRows"]
        with delta_errors(self.text):
            rows = (
                self.spark.sql(f"DESCRIBE HISTORY {self.identifier} LIMIT {limit}")
                .select("version", "operation", "operationParameters", "userMetadata", written)
                .collect()
            )
        return [
            TableCommit(version, operation or "", parameters or {}, metadata, count and int(count))
            for version, operation, parameters, metadata, count in rows
        ]

    def _by_column(self, name: str, column: str) -> CommitRecord | None:
        frame = self.frame()
        if found_column(frame.columns, column, case_sensitive=False) is None:
            return None
        mine = F.get_json_object(F.col(column)["record"], "$.name") == name
        newest = F.max_by(F.col(column)["record"], F.col(column)["number"])
        with delta_errors(self.text):
            (text,) = frame.where(mine).agg(newest).collect()[0]
        return commits.record_of(text, self.text)

    def transactions(self) -> dict[str, int] | None:
        """Return each app's number; None if they cannot be read, or some may have expired."""
        if "delta.setTransactionRetentionDuration" in self.properties():
            return None
        for log in self._logs():
            with contextlib.suppress(Py4JError, TypeError):
                snapshot = log.unsafeVolatileSnapshot()
                if snapshot.version() < 0:  # not this table's log
                    return None
                listed = snapshot.setTransactions()
                each = [listed.apply(place) for place in range(listed.size())]
                return {txn.appId(): txn.version() for txn in each}
        return None

    def state(self) -> LakeTableState | None:
        """Return what the table is now, from its newest version; None if there is no table.

        Delta's own log is asked, which takes a tenth of the time of `detail`. On a platform that
        does not show it, the version stays unknown, and nothing may be cached.
        """
        if not self.exists():
            return None
        for log in self._logs():
            with contextlib.suppress(Py4JError, TypeError):
                nothing = self._jvm.scala.Option.empty()
                snapshot = log.update(False, nothing, nothing)
                metadata = snapshot.metadata()
                found = self._jvm.scala.jdk.javaapi.CollectionConverters.asJava(
                    metadata.configuration()
                )
                return LakeTableState(metadata.id(), int(snapshot.version()), dict(found))
        identity, properties = self._details("id", "properties")
        return LakeTableState(identity, None, dict(properties))

    def set_properties(self, properties: Mapping[str, str]) -> None:
        pairs = ", ".join(f"{_literal(key)} = {_literal(properties[key])}" for key in properties)
        with delta_errors(self.text):
            self.spark.sql(f"ALTER TABLE {self.identifier} SET TBLPROPERTIES ({pairs})")

    def properties(self) -> dict[str, str]:
        return dict(self._details("properties")[0])

    def delete(self, condition: str) -> None:
        with delta_errors(self.text):
            self.spark.sql(f"DELETE FROM {self.identifier} WHERE {condition}").collect()

    def _details(self, *names: str) -> tuple[Any, ...]:
        with delta_errors(self.text):
            detail = self.spark.sql(f"DESCRIBE DETAIL {self.identifier}")
            return tuple(detail.select(*names).collect()[0])

    def _logs(self) -> Iterator[Any]:
        """Yield Delta's log of the table, as far as the platform shows it."""
        if is_connect(self.spark):
            return
        with contextlib.suppress(Py4JError, TypeError, AttributeError):
            yield self._delta()._jdt.deltaLog()
            return
        (where,) = self._details("location")
        for name in _LOGS:
            with contextlib.suppress(Py4JError, TypeError):
                log = reduce(getattr, name.split("."), self._jvm)
                yield log.forTable(self.spark._jsparkSession, where)

    @property
    def _jvm(self) -> Any:
        return self.spark._jvm


def check_free(table: str, df: DataFrame, names: Sequence[str]) -> None:
    """Raise LakehouseError for a frame with columns that the writer itself fills."""
    mine = {name.lower() for name in names}
    if taken := [name for name in df.columns if name.lower() in mine]:
        raise LakehouseError(
            f"table {table}: the frame has the column {taken[0]!r} already, which would be lost: "
            f"rename it (or drop it; deleted= may name it then)",
            table=table,
            got=taken,
        )


def _literal(text: str) -> str:
    """Return a raw string literal of SQL, which cannot hold a quotation mark: JSON escapes it."""
    quote = "\\u0027"
    return f"r'{text.replace(chr(39), quote)}'"
