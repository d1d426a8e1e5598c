"""`format("zeroeventhub")`: the DataSource by which Spark reads and writes feeds.

Rule for editors: Spark does not say whether a DataSource is made to read or to write. Unknown
options are refused when it is made; all others when the direction is known. Each direction passes
over the options of the other one, because a view in SQL has one set of options for both. A read
refuses its own options of the other kind of query (`maxEventsPerTrigger` of `spark.read`), but
passes over those of a table, which serves both kinds. Errors of a stream wait for the reader's
first call. Rejected: to raise in `streamReader` itself, because the
user then sees an unrelated UnboundLocalError of Spark before our error.

Spark makes or unpickles this class in each of its Python processes, those of tasks among them.
Each needs one direction at most, so what reads and what writes is imported where it is made.

Runs on the driver, in the Python processes in which Spark plans a query, and in tasks.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException
from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import (
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from zeh_spark.client.options.auth import REGISTERED
from zeh_spark.client.options.given import parse, refuse_unknown
from zeh_spark.client.options.option_metadata import declared
from zeh_spark.errors import OptionError, at_spark_border
from zeh_spark.spark import sql_tables
from zeh_spark.spark.frames.compat import found_column
from zeh_spark.spark.sink.options import OF_SPARK, SinkOptions, sink_options
from zeh_spark.spark.source.options import SourceOptions, refuse_of_other_query
from zeh_spark.wire.stamp_columns import KEY, POSITION, STAMP_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from zeh_spark.client.decoding.lines import Decoder
    from zeh_spark.spark.sink.row_layout import RowLayout
    from zeh_spark.spark.sink.writer import BatchWriter, StreamWriter
    from zeh_spark.spark.source.stream import StreamReader

log = logging.getLogger(__name__)

_TYPES = {
    "timestamp": TimestampType(),
    "string": StringType(),
    "bigint": LongType(),
    "int": IntegerType(),
}
_STAMPS: dict[str, DataType] = {each.name: _TYPES[each.kind] for each in STAMP_COLUMNS}
_COLUMNS: dict[str, DataType] = {
    "partition": IntegerType(),
    **_STAMPS,
    POSITION: LongType(),
    KEY.name: StringType(),
    "headers": MapType(StringType(), StringType()),
    "data": StringType(),
}

_TO_READ, _TO_WRITE = frozenset(declared(SourceOptions)), frozenset(declared(SinkOptions))


class ZeroEventHubDataSource(DataSource):
    """A ZeroEventHub feed as a DataFrame: partition INT, headers MAP<STRING, STRING>, data STRING.

    `data` is each event's JSON byte for byte, or NULL if the publisher left it out. The option
    `stamps` adds typed columns (`wire.stamp_columns`), and a schema may name any of them, and
    `position` and `key`. Which columns of a DataFrame are published is in `sink.row_layout`. Spark
    makes and calls this class; users name the format instead. Raises OptionError if the options fit
    neither reading nor writing.
    """

    @at_spark_border
    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        table = sql_tables.options_of_new_table(options)
        self._for_table = table is not None
        self._given = dict(options) if table is None else table
        refuse_unknown(self._given, {*_TO_READ, *_TO_WRITE, *OF_SPARK})

    @classmethod
    def name(cls) -> str:
        """Return the name of the format (see `DataSource.name`)."""
        return "zeroeventhub"

    @at_spark_border
    def schema(self) -> StructType:
        """Return the columns that a feed has for these options (see `DataSource.schema`)."""
        source = self._source_options(StructType())
        left_out = {POSITION, KEY.name}
        if source.stamps != "columns":
            left_out |= {*_STAMPS}
        fields = [StructField(name, _COLUMNS[name]) for name in _COLUMNS if name not in left_out]
        if source.mode == "PERMISSIVE":
            fields.append(StructField(source.column_name_of_corrupt_record, StringType()))
        if not self._for_table:
            return StructType(fields)
        sql_tables.refuse_secrets(self._given, (SourceOptions, SinkOptions))
        return sql_tables.with_options(StructType(fields), self._given)

    @at_spark_border
    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of `spark.read` (see `DataSource.reader`)."""
        from zeh_spark.spark.source.batch import BatchReader

        refuse_of_other_query(self._given, streaming=False)
        options = self._source_options(schema)
        return BatchReader(options, decoder(schema, options))

    def streamReader(self, schema: StructType) -> StreamReader:
        """Return the reader of `spark.readStream`, which raises later if something is wrong."""
        from zeh_spark.spark.source.stream import StreamReader, check_inline

        try:
            refuse_of_other_query(self._given, streaming=True)
            options = self._source_options(schema)
            options.check_stream()
            if options.inline:
                check_inline(schema)
        except OptionError as exc:
            return StreamReader(None, exc)
        return StreamReader(options, decoder(schema, options))

    @at_spark_border
    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Return the writer of `df.write` (see `DataSource.writer`)."""
        from zeh_spark.spark.sink.writer import BatchWriter

        if overwrite:
            raise OptionError(
                "mode('overwrite') is refused: published events stay. Use mode('append'). If this "
                "is saveAsTable, createOrReplace or CREATE OR REPLACE TABLE, Spark has already "
                "dropped the table of that name: create it again. No event was lost",
                option="mode",
                anchor="modeoverwrite-is-refused",
            )
        options = sink_options(self._given, streaming=False, also=_TO_READ)
        writer = BatchWriter(options, _layout(schema, options))
        writer.check()
        return writer

    @at_spark_border
    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """Return the writer of `df.writeStream` (see `DataSource.streamWriter`)."""
        from zeh_spark.spark.sink.writer import StreamWriter

        if overwrite:
            raise OptionError(
                "outputMode('complete') is refused: it would publish the whole result again in "
                "each batch. Use outputMode('append')",
                option="outputMode",
                anchor="modeoverwrite-is-refused",
            )
        options = sink_options(self._given, streaming=True, also=_TO_READ)
        return StreamWriter(options, _layout(schema, options))

    def _source_options(self, schema: StructType) -> SourceOptions:
        """Return the options for a read into these columns. Raises OptionError."""
        given = sql_tables.options_of_table(schema, self._given)
        options = parse(SourceOptions, given, _TO_WRITE)
        return replace(options, columns=_meant(schema, options.column_name_of_corrupt_record))


def _layout(schema: StructType, options: SinkOptions) -> RowLayout:
    from zeh_spark.spark.sink.row_layout import layout

    return layout(schema, keeps_origin=options.keep_origin, keeps_key=options.keep_key)


def _meant(schema: StructType, corrupt: str) -> tuple[str, ...]:
    """Return our names of the schema's columns, which it may write in another case."""
    known = (*_COLUMNS, corrupt)
    return tuple(found_column(known, name) or name for name in schema.fieldNames())


def decoder(schema: StructType, options: SourceOptions) -> Decoder | OptionError:
    """Return the decoder for a user's schema, which chooses some of our columns in any order.

    An OptionError is returned, not raised, if the schema does not fit: the reader raises it in a
    call in which Spark shows it.
    """
    from zeh_spark.client.decoding.lines import Decoder

    corrupt = options.column_name_of_corrupt_record
    if found_column((*_COLUMNS,), corrupt):
        return OptionError(
            f"option 'columnNameOfCorruptRecord' is {corrupt!r}, which is the name of another "
            f"column of this source. Choose another name",
            option="columnNameOfCorruptRecord",
        )
    known = {**_COLUMNS, corrupt: StringType()}
    columns = _meant(schema, corrupt)
    for name, field in zip(columns, schema.fields, strict=True):
        if columns.count(name) > 1:
            return OptionError(
                f"the schema has the column {name!r} twice, in upper or lower case: "
                f"{', '.join(schema.fieldNames())}. Drop one of them",
                option="schema",
            )
        if name not in known or field.dataType != known[name] or not field.nullable:
            return OptionError(
                f"the schema's column {field.simpleString()!r} is not one of this source's: "
                f"{', '.join(f'{name} {kind.simpleString()}' for name, kind in known.items())}. "
                f"Read with these, and give the schema of 'data' to zeh_spark.parsed(df, schema)",
                option="schema",
            )
    if not schema.fields:
        return OptionError(
            "the schema has no columns, so events would vanish. Name at least one, like 'data'",
            option="schema",
        )
    permissive = options.mode == "PERMISSIVE"
    if permissive and corrupt not in columns:
        return OptionError(
            f"mode=PERMISSIVE needs the column {corrupt!r} STRING in the schema, or bad lines "
            f"would vanish. Add the column, or leave the schema out",
            option="mode",
        )
    names = tuple(schema.fieldNames())
    other_case = () if names == columns else names
    return Decoder(columns, corrupt, permissive, options.hidden_headers, other_case)


def register(spark: SparkSession, source: type[DataSource] = ZeroEventHubDataSource) -> None:
    """Register the format `zeroeventhub` with a session that does not find it by itself.

    Spark looks for data sources among the top-level modules of the driver's `sys.path`. This call
    is needed if the package comes from elsewhere (an import hook), or if the session is older than
    the installation. The package has to be installed on the executors in any case, in the same
    version. This call logs a warning if the program that runs Spark's workers is another Python
    than this one, and has not the same version on this machine. It starts no job, so it does not
    look at other machines: `zeh-spark doctor --spark` does.

    Call it, too, before several streams start at once in one session, however Spark found the
    format. Otherwise they may break the session: see "Task not serializable" in
    docs/operate/errors.md. With Spark Connect it cannot help.

    A write looks for the format in the session that is active in the calling thread. Only the
    session's own Python thread has one, so call this in each other thread that writes. Otherwise
    Spark says DATA_SOURCE_NOT_FOUND for `df.write.format("zeroeventhub")`.

    Call it after `register_auth`, which it makes known to Spark's processes. Spark 4.0 keeps the
    format that it has found by itself, so there only entry points are known to them.

    Args:
        spark: the session. It becomes the calling thread's active session, too.
        source: the format to register: `zeroeventhub`, or `lakeflow.LakeflowDataSource`.
    """
    from zeh_spark.spark.worker_python import find_faults  # not needed where tasks run

    program = getattr(getattr(spark, "_sc", None), "pythonExec", None)  # not with Spark Connect
    for fault in find_faults(program) if program else ():
        log.warning("Spark's workers will not find this format: %s. %s", fault.found, fault.remedy)
    jvm: Any = getattr(spark, "_jvm", None)  # a session of Spark Connect belongs to no thread
    if jvm is not None:
        jvm.SparkSession.setActiveSession(spark._jsparkSession)
    if REGISTERED:  # a class that no module has is pickled as a whole, with its factories
        source = type("WithFactories", (source,), {"factories": REGISTERED})
    try:
        spark.dataSource.register(source)
    except AnalysisException as exc:
        # Spark 4.0 refuses what it has found by itself.
        if exc.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
    if jvm is not None:
        environment = environment_of_workers(spark, source.name())
        for name, value in _ENVIRONMENT.items():
            environment.putIfAbsent(name, value)


_ENVIRONMENT = {
    "SPARK_AUTH_SOCKET_TIMEOUT": "15",
    "SPARK_BUFFER_SIZE": "65536",
    "SPARK_LOCAL_DIRS": "",
    "SPARK_PYTHON_RUNTIME": "PYTHON_WORKER",
}
"""What Spark sets for the workers of a format when a stream starts, to its own values each time.

The map is one for all streams of a session, goes into each of their tasks, and has no lock: two
streams that add these names at once break it for good. A name that is there is only set again,
which harms nobody.
"""


def environment_of_workers(spark: SparkSession, name: str = "zeroeventhub") -> Any:
    """Return the Java map of environment variables that a format's workers get."""
    sources = spark._jsparkSession.sessionState().dataSourceManager()
    return sources.lookupDataSource(name).dataSourceCls().envVars()
