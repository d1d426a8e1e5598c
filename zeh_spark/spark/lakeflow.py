"""`format("lakeflow_connect")`: feeds in the pipelines of Databricks' community connectors.

Unity Catalog injects the options of a connection into the format of this name only. Its pipelines
first read a metadata table, to learn how to ingest each table, and then stream from each table.
Here a table is a feed, and the connection's `url` is the address above its feeds. It was played
through on open-source Spark, and has never run on Databricks.

Facts: github.com/databrickslabs/lakeflow-community-connectors, in which the metadata table was
renamed in May 2026. Runs on the driver and in the Python process in which Spark plans a query.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import quote

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import ArrayType, StringType, StructType

from zeh_spark.errors import OptionError, at_spark_border
from zeh_spark.spark.datasource import ZeroEventHubDataSource

_METADATA = {"_lakeflow_metadata", "_community_table_metadata"}
_COLUMNS = (
    StructType()
    .add("tableName", "string")
    .add("primary_keys", ArrayType(StringType()))
    .add("cursor_field", "string")
    .add("ingestion_type", "string")
)
_OF_LAKEFLOW = {
    "tablename", "tablenamelist", "tableconfigs", "isdeleteflow", "sourcename",
    "externaloptionsallowlist", "databricks.connection",
}  # fmt: skip
"""Options that the connection and the pipeline add, in lower case."""


class LakeflowDataSource(ZeroEventHubDataSource):
    """Feeds as the tables of a connection, with the columns and options of `zeroeventhub`.

    Register it in the pipeline: `zeh_spark.register(spark, LakeflowDataSource)`. Raises OptionError
    if the table is not named, or deletes are asked for, which feeds do not have.
    """

    @at_spark_border
    def __init__(self, options: Mapping[str, str]) -> None:
        given = {name.lower(): value for name, value in options.items()}
        own = {name: value for name, value in given.items() if name not in _OF_LAKEFLOW}
        table = given.get("tablename", "")
        self._names = None
        if table in _METADATA:  # with names in JSON, or between commas, as it was before
            self._names = _parse_names(given.get("tablenamelist", ""))
        else:
            if not table or table[0] in "_." or given.get("isdeleteflow") == "true":
                raise OptionError(
                    f"tableName={table!r} has to be a feed, which has no table of deletes, or one "
                    f"of {sorted(_METADATA)}. Ingest feeds with the type 'append'",
                    option="tableName",
                )
            if "?" in (above := own.get("url", "")):
                raise OptionError("option 'url' must be an address without a query", option="url")
            own["url"] = f"{above.rstrip('/')}/{quote(table, safe='')}"
        super().__init__(own)

    @classmethod
    def name(cls) -> str:
        """Return the name that connections inject their options into."""
        return "lakeflow_connect"

    def schema(self) -> StructType:
        """Return the columns of a feed, or of the metadata table."""
        return super().schema() if self._names is None else _COLUMNS

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of `spark.read`."""
        return super().reader(schema) if self._names is None else MetadataReader(self._names)


class MetadataReader(DataSourceReader):
    """Tells of each feed that it is ingested by appending what is new."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def read(self, partition: InputPartition) -> Iterator[tuple[str, None, None, str]]:
        """Return a row for each feed, in the order in which they were named."""
        return ((name, None, None, "append") for name in self._names)


def _parse_names(text: str) -> list[str]:
    try:
        names = json.loads(text) if text.startswith("[") else text.split(",")
        return [name.strip() for name in names if name]
    except (ValueError, AttributeError):
        raise OptionError(
            f"option 'tableNameList' must be a JSON list of names; got {text!r}. Correct it",
            option="tableNameList",
        ) from None
