"""`format("zeroeventhub")`: the DataSource by which Spark reads and writes feeds.

Rule for editors: Spark does not say whether a DataSource is made to read or to write. Options that
fit neither are refused when it is made, so the user sees the error at `.load()`. The other options
are refused when the direction is known. Errors that need the schema wait for the reader's first
call. Rejected: to raise in `streamReader` itself, because the user then sees an unrelated
UnboundLocalError of Spark before our error.

Runs on the driver and in the Python process in which Spark plans a query.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException
from pyspark.sql.datasource import DataSource
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

from zeh_spark.errors import OptionError, UnknownOptionError, at_spark_border
from zeh_spark.options import parse
from zeh_spark.protocol.stamp_columns import KEY, POSITION, STAMP_COLUMNS
from zeh_spark.sink.options import SinkOptions, refused_for_a_write, sink_options
from zeh_spark.sink.rows import RowLayout, layout
from zeh_spark.sink.writer import BatchWriter, StreamWriter
from zeh_spark.source.batch import BatchReader
from zeh_spark.source.decode import Decoder
from zeh_spark.source.options import SourceOptions
from zeh_spark.source.stream import StreamReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_STAMPS: dict[str, DataType] = {
    each.name: {
        "timestamp": TimestampType(),
        "string": StringType(),
        "bigint": LongType(),
        "int": IntegerType(),
    }[each.kind]
    for each in STAMP_COLUMNS
}
_COLUMNS: dict[str, DataType] = {
    "partition": IntegerType(),
    **_STAMPS,
    POSITION: LongType(),
    KEY.name: StringType(),
    "headers": MapType(StringType(), StringType()),
    "data": StringType(),
}

_ENDLESS = OptionError(
    "option 'endingCursors' is for spark.read only: a stream has no end. Remove it, or use the "
    "trigger availableNow, which reads what the feed holds when the run begins",
    option="endingCursors",
)


class ZeroEventHubDataSource(DataSource):
    """A ZeroEventHub feed as a DataFrame: partition INT, headers MAP<STRING, STRING>, data STRING.

    `data` is each event's JSON byte for byte, or NULL if the publisher left it out. The option
    `stamps` adds typed columns (`protocol.stamp_columns`), and a schema may name any of them, and
    `position` and `key`. Which columns of a DataFrame are published is in `sink.rows`. Spark makes
    and calls this class; users name the format instead.

    Args:
        options: the options as Spark hands them over, with names in any case.

    Raises:
        OptionError: the options fit neither reading nor writing.
    """

    @at_spark_border
    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        self._source: SourceOptions | OptionError
        try:
            self._source = parse(SourceOptions, options)
        except OptionError as exc:
            if refusal := refused_for_a_write(options):
                raise _neither(exc, refusal) from None
            self._source = exc

    @classmethod
    def name(cls) -> str:
        """Return the name of the format (see `DataSource.name`)."""
        return "zeroeventhub"

    def schema(self) -> StructType:
        """Return the columns that a feed has for these options (see `DataSource.schema`)."""
        if isinstance(self._source, OptionError):
            raise self._source
        left_out = {POSITION, KEY.name}
        if self._source.stamps != "columns":
            left_out |= {*_STAMPS}
        fields = [StructField(name, _COLUMNS[name]) for name in _COLUMNS if name not in left_out]
        if self._source.mode == "PERMISSIVE":
            fields.append(StructField(self._source.column_name_of_corrupt_record, StringType()))
        return StructType(fields)

    @at_spark_border
    def reader(self, schema: StructType) -> BatchReader:
        """Return the reader of `spark.read` (see `DataSource.reader`)."""
        if isinstance(self._source, OptionError):
            raise self._source
        options = replace(self._source, columns=tuple(schema.fieldNames()))
        return BatchReader(options, decoder(schema, options))

    def streamReader(self, schema: StructType) -> StreamReader:
        """Return the reader of `spark.readStream`, which raises later if something is wrong."""
        if isinstance(self._source, OptionError):
            return StreamReader(None, self._source)
        if self._source.ending_cursors != "last":
            return StreamReader(self._source, _ENDLESS)
        options = replace(self._source, columns=tuple(schema.fieldNames()))
        return StreamReader(options, decoder(schema, options))

    @at_spark_border
    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Return the writer of `df.write` (see `DataSource.writer`)."""
        if overwrite:
            raise OptionError(
                "mode('overwrite') is refused: published events stay. Use mode('append')",
                option="mode",
                anchor="modeoverwrite-is-refused",
            )
        options = sink_options(self.options, streaming=False)
        return BatchWriter(options, _layout(schema, options))

    @at_spark_border
    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """Return the writer of `df.writeStream` (see `DataSource.streamWriter`)."""
        if overwrite:
            raise OptionError(
                "outputMode('complete') is refused: it would publish the whole result again in "
                "each batch. Use outputMode('append')",
                option="outputMode",
                anchor="modeoverwrite-is-refused",
            )
        options = sink_options(self.options, streaming=True)
        return StreamWriter(options, _layout(schema, options))


def _layout(schema: StructType, options: SinkOptions) -> RowLayout:
    return layout(schema, keeps_origin=options.keep_origin, keeps_key=options.keep_key)


def _neither(to_read: OptionError, to_write: OptionError) -> OptionError:
    """Return the error of the direction that the user probably meant, if neither one fits."""
    if to_read.option != to_write.option:  # one direction knows the option that the other lacks
        return to_write if isinstance(to_read, UnknownOptionError) else to_read
    if isinstance(to_read, UnknownOptionError) and isinstance(to_write, UnknownOptionError):
        return to_write if to_write.suggestion else to_read
    return to_read


def decoder(schema: StructType, options: SourceOptions) -> Decoder | OptionError:
    """Return the decoder for a user's schema, which chooses some of our columns in any order.

    Returns:
        The decoder; or an OptionError if the schema does not fit. It is returned, not raised: the
        reader raises it in a call in which Spark shows it.
    """
    corrupt = options.column_name_of_corrupt_record
    if corrupt in _COLUMNS:
        return OptionError(
            f"option 'columnNameOfCorruptRecord' is {corrupt!r}, which is the name of another "
            f"column of this source. Choose another name",
            option="columnNameOfCorruptRecord",
        )
    known = {**_COLUMNS, corrupt: StringType()}
    for field in schema.fields:
        if field.name not in known or field.dataType != known[field.name] or not field.nullable:
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
    if permissive and corrupt not in schema.fieldNames():
        return OptionError(
            f"mode=PERMISSIVE needs the column {corrupt!r} STRING in the schema, or bad lines "
            f"would vanish. Add the column, or leave the schema out",
            option="mode",
        )
    return Decoder(tuple(schema.fieldNames()), corrupt, permissive, options.hidden_headers)


def register(spark: SparkSession) -> None:
    """Register the format `zeroeventhub` with a session that does not find it by itself.

    Spark looks for data sources among the top-level modules of the driver's `sys.path`. This call
    is needed if the package comes from elsewhere (an import hook), or if the session is older than
    the installation. The package has to be installed on the executors in any case.

    A write looks for the format in the session that is active in the calling thread. Only the
    session's own Python thread has one, so call this in each other thread that writes. Otherwise
    Spark says DATA_SOURCE_NOT_FOUND for `df.write.format("zeroeventhub")`.

    Args:
        spark: the session. It becomes the calling thread's active session, too.
    """
    jvm: Any = getattr(spark, "_jvm", None)  # a session of Spark Connect belongs to no thread
    if jvm is not None:
        jvm.SparkSession.setActiveSession(spark._jsparkSession)
    try:
        spark.dataSource.register(ZeroEventHubDataSource)
    except AnalysisException as exc:
        # Spark 4.0 refuses what it has found by itself.
        if exc.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
