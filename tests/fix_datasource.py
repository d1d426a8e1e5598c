"""The format as Spark calls it, without Spark. What crosses processes there is pickled here."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, TypeVar

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.types import LongType, MapType, StringType, StructField, StructType

from zeh_spark.spark.datasource import _COLUMNS, ZeroEventHubDataSource
from zeh_spark.spark.sink.writer import Publishing

_TYPES = {**_COLUMNS, "_corrupt_record": StringType()}
_KINDS = {
    str: (StringType(), pa.string()),
    int: (LongType(), pa.int64()),
    dict: (MapType(StringType(), StringType()), pa.map_(pa.string(), pa.string())),
}
T = TypeVar("T")


def read_plainly(url: str, columns: str = "", **options: str) -> list[dict[str, Any]]:
    """The rows of `spark.read`, sorted by data; `columns` are names of a schema: "key, data"."""
    source = ZeroEventHubDataSource({"path": url, **options})
    chosen = [StructField(name, _TYPES[name]) for name in columns.split(", ") if name]
    reader = source.reader(StructType(chosen) if chosen else source.schema())
    reader, tasks = _passed_on((reader, list(reader.partitions())))
    rows = [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]
    for row in rows:
        row.update({name: dict(row[name]) for name in ("headers",) if row.get(name) is not None})
    return sorted(rows, key=lambda row: str(row.get("data")))


def write_plainly(url: str, rows: Sequence[dict[str, Any]], **options: str) -> None:
    """Publish rows of texts, integers and maps of texts in one task, as `df.write` does."""
    batch, schema = _batch_of(rows)
    writer = ZeroEventHubDataSource({"path": url, **options}).writer(schema, overwrite=False)
    _passed_on(writer).commit([_written(writer, batch, {})])


@dataclass
class PlainQuery:
    """A query that publishes, batch by batch; `query` is the id that its checkpoint has."""

    url: str
    query: str = field(default_factory=lambda: str(uuid.uuid4()))

    def stage(
        self, number: int, rows: Sequence[dict[str, Any]], run: str = "", **options: str
    ) -> Callable[[], None]:
        """Write a batch, as its task does; gives what commits it."""
        batch, schema = _batch_of(rows)
        given = {"path": self.url, "producerId": "spark", **options}
        writer = ZeroEventHubDataSource(given).streamWriter(schema, overwrite=False)
        properties = {
            "streaming.sql.batchId": str(number),
            "sql.streaming.queryId": self.query,
            "spark.jobGroup.id": run,
        }
        message = _written(writer, batch, properties)
        return lambda: _passed_on(writer).commit([message], number)

    def publish(
        self, number: int, rows: Sequence[dict[str, Any]], run: str = "", **options: str
    ) -> None:
        self.stage(number, rows, run, **options)()


def _batch_of(rows: Sequence[dict[str, Any]]) -> tuple[pa.RecordBatch, StructType]:
    values = {name: value for row in rows for name, value in row.items() if value is not None}
    kinds = {name: _KINDS[type(value)] for name, value in values.items()}
    schema = StructType([StructField(name, kind) for name, (kind, _) in kinds.items()])
    lists = [
        {name: [*each.items()] if isinstance(each, dict) else each for name, each in row.items()}
        for row in rows
    ]
    arrow = pa.schema([(name, kind) for name, (_, kind) in kinds.items()])
    return pa.RecordBatch.from_pylist(lists, arrow), schema


def _written(writer: Publishing, batch: pa.RecordBatch, properties: Mapping[str, str]) -> Any:
    """The message of the task that writes this batch."""
    task = SimpleNamespace(
        partitionId=lambda: 0, taskAttemptId=lambda: 0, getLocalProperty=properties.get
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TaskContext, "_taskContext", task)
        return _passed_on(_passed_on(writer).write(iter([batch])))


def _passed_on(what: T) -> T:
    passed: T = pickle.loads(pickle.dumps(what))
    return passed
