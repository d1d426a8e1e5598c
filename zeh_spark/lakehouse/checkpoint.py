"""A query's checkpoint as a table's writer sees it: its query, and where the query's feeds are.

Runs on the driver; reads files through Spark's file systems.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from zeh_spark.errors import CheckpointError, LakehouseError
from zeh_spark.source import offset_log
from zeh_spark.source.offsets import Reached, is_of_a_feed, reached


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
            return offset_log.query_id(self._read("metadata"))
        except (Py4JJavaError, ValueError) as exc:
            raise CheckpointError(
                f"checkpointLocation={self.location!r} is no checkpoint of a query: give the one "
                f"that the query has ({_reason(exc)})"
            ) from exc

    def feeds(self, number: int, table: str) -> list[Reached]:
        """Return where the query's feeds are after a batch.

        Raises:
            CheckpointError: the batch's offsets cannot be read.
            LakehouseError: the query reads another stream than feeds, or a feed twice.
        """
        try:
            found = offset_log.source_offsets(self._read(f"offsets/{number}"))
        except (Py4JJavaError, ValueError) as exc:
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
        files, path = self._file("state")
        return bool(files.exists(path))

    def _file(self, name: str) -> tuple[Any, Any]:
        jvm: Any = self.spark._jvm
        path = jvm.org.apache.hadoop.fs.Path(f"{self.location}/{name}")
        return path.getFileSystem(self.spark._jsparkSession.sessionState().newHadoopConf()), path

    def _read(self, name: str) -> str:
        """Return a file of the checkpoint, whatever characters its path has.

        Raises Py4JJavaError.
        """
        jvm: Any = self.spark._jvm
        files, path = self._file(name)
        stream = files.open(path)
        try:
            return str(jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()


def _reason(exc: Exception) -> str:
    return str(exc.java_exception) if isinstance(exc, Py4JJavaError) else str(exc)
