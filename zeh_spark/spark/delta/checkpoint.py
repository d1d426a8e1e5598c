"""A query's checkpoint as a table's writer sees it: its query, and where the query's feeds are.

Runs on the driver. It reads files through Spark's file systems; on Spark Connect, which does not
show them, through Spark's readers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from zeh_spark.errors import CheckpointError, LakehouseError
from zeh_spark.spark.delta.delta_errors import is_found
from zeh_spark.spark.frames.compat import Py4JJavaError, is_connect
from zeh_spark.spark.source import offsets
from zeh_spark.spark.source.offsets import Reached, is_of_a_feed, reached


@dataclass(frozen=True, slots=True)
class CheckpointFiles:
    """The checkpoint at `location`, a path or URI without a slash at its end."""

    spark: SparkSession
    location: str

    def query_id(self) -> str:
        """Return the id of the query that it belongs to.

        Raises CheckpointError if it is not a checkpoint.
        """
        try:
            return offsets.query_id(self._read("metadata"))
        except (*_UNREADABLE, ValueError) as exc:
            raise CheckpointError(
                f"checkpointLocation={self.location!r} is no checkpoint of a query: give the one "
                f"that the query has ({_reason(exc)})"
            ) from exc

    def feeds(self, number: int, table: str) -> list[Reached]:
        """Return where the query's feeds are after a batch.

        Raises CheckpointError if the batch's offsets cannot be read, and LakehouseError if the
        query reads another stream than feeds, or a feed twice.
        """
        try:
            found = offsets.source_offsets(self._read(f"offsets/{number}"))
        except (*_UNREADABLE, ValueError) as exc:
            raise CheckpointError(
                f"{self.location}/offsets/{number} cannot be read: {_reason(exc)}"
            ) from exc
        others = [each for each in found if not is_of_a_feed(each)]
        if others:
            raise LakehouseError(
                f"table {table}: the query reads from a stream that is no ZeroEventHub feed "
                f"(its offset is {others[0]!r}), whose place could not be found again in the "
                f"table: join it as a table instead, or write with zeh_spark.lakehouse.merge",
                table=table,
                got=others[0],
            )
        feeds = [reached(each) for each in found if is_of_a_feed(each)]
        for names in ([each.feed for each in feeds], [each.id for each in feeds if each.id]):
            if twice := next((name for name in names if names.count(name) > 1), None):
                raise LakehouseError(
                    f"table {table}: the query reads the feed {twice} twice, from two places or at "
                    f"two addresses: read it once, and use the frame twice",
                    table=table,
                    got=names,
                )
        return feeds

    def has_state(self) -> bool:
        """Return whether the query keeps state.

        Spark creates the folder when it plans the first batch.
        """
        if is_connect(self.spark):
            reader = self.spark.read.format("binaryFile").option("recursiveFileLookup", "true")
            return is_found(lambda: reader.load(self._pattern("state")).schema)
        files, path = hadoop_file(self.spark, f"{self.location}/state")
        return bool(files.exists(path))

    def is_running(self, number: int) -> bool:
        """Return whether this is the query's newest batch, and not complete yet."""
        later = (f"commits/{number}", f"offsets/{number + 1}")
        return self._has(f"offsets/{number}") and not any(map(self._has, later))

    def _has(self, name: str) -> bool:
        try:
            self._read(name)
        except _UNREADABLE:
            return False
        return True

    def _pattern(self, name: str) -> str:
        """Return the path of a file for Spark's readers, which would take a `*` for a pattern."""
        return re.sub(r"([\\{}\[\]*?])", r"\\\1", f"{self.location}/{name}")

    def _read(self, name: str) -> str:
        """Return a file of the checkpoint, whatever characters its path has.

        Raises Py4JJavaError, or PySparkException on Spark Connect.
        """
        if is_connect(self.spark):
            (row,) = self.spark.read.text(self._pattern(name), wholetext=True).collect()
            return str(row[0])
        jvm: Any = self.spark._jvm
        files, path = hadoop_file(self.spark, f"{self.location}/{name}")
        stream = files.open(path)
        try:
            return str(jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()


def hadoop_file(spark: SparkSession, location: str) -> tuple[Any, Any]:
    """Return a classic session's file system for a location, and the location as its path."""
    jvm: Any = spark._jvm
    path = jvm.org.apache.hadoop.fs.Path(location)
    return path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf()), path


def running_query(checkpoint: CheckpointFiles, number: int, table: str) -> tuple[str, str]:
    """Return the id of the query in whose foreachBatch the driver is, and what tells its run.

    A classic session tells it. Spark Connect does not, so there it is the checkpoint's query, which
    has to run in this session, and to be in this batch. Raises LakehouseError if it is no query's
    foreachBatch.
    """
    if not is_connect(checkpoint.spark):
        context = checkpoint.spark.sparkContext
        running = context.getLocalProperty("sql.streaming.queryId")
        if running is None:
            raise LakehouseError(
                f"table {table}: a DeltaFeedWriter was called outside of a query's foreachBatch. "
                f"Call it there, in the thread that Spark gives",
                table=table,
            )
        return running, _run_of(checkpoint.spark)
    stored = checkpoint.query_id()
    runs = [each.runId for each in checkpoint.spark.streams.active if each.id == stored]
    if not runs or not checkpoint.is_running(number):
        raise CheckpointError(
            f"checkpointLocation={checkpoint.location!r} is not that of the calling query: its "
            f"query ({stored}) is not in batch {number} in this session. Give both the same one, "
            f"and write to table {table} in the query's foreachBatch only",
            got=stored,
        )
    return stored, str(runs[0])


def _run_of(spark: SparkSession) -> str:
    """Return what a batch of one run has, and no batch of another run, in a classic session.

    That is the id of Spark's execution for the batch, which threads that the user starts inherit.
    Where a platform does not show it, it is the job group, which the user may replace.
    """
    told = spark.sparkContext.getLocalProperty
    return told("spark.sql.execution.root.id") or told("spark.jobGroup.id") or ""


_UNREADABLE = (Py4JJavaError, PySparkException)


def _reason(exc: Exception) -> str:
    told = str(exc.java_exception) if isinstance(exc, Py4JJavaError) else str(exc)
    return told.partition("\n\nJVM stacktrace")[0]
