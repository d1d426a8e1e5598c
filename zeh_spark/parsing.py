"""Parse the column `data` with Spark's own JSON functions.

Rule for editors: no event is dropped without an error or a column that shows it. Runs on the
driver, and only builds expressions.
"""

from __future__ import annotations

from typing import cast

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StringType, StructField, StructType, VariantType

from zeh_spark.errors import OptionError


def parsed(df: DataFrame, schema: str | DataType, corrupt: str | None = None) -> DataFrame:
    """Return the frame with the JSON text in `data` parsed by a schema.

    The fields of a struct become columns in the place of `data`. A value of any other type
    (`VARIANT`, `ARRAY<…>`) stays in the column `data`. The values are NULL if an event has no data,
    or if it is `null`, as in the tombstones of some publishers.

    Args:
        df: a streaming or batch frame with the column `data`, as the source gives it.
        schema: a type, or its DDL text, like `id BIGINT, amount DOUBLE` or `VARIANT`.
        corrupt: the name of a STRING column to add. It has the text of an event that does not fit
            the schema, and that event's fields are NULL. Without it, such an event fails the query.

    Returns:
        The frame with the other columns unchanged.

    Raises:
        OptionError: the schema is empty, a field has the name of another column of the frame, or
            `corrupt` is given for a schema without named fields.
    """
    if isinstance(schema, str):
        schema = _from_ddl(schema)
    if isinstance(schema, VariantType):
        return _variant(df, corrupt)
    mode = {"mode": "FAILFAST"}
    struct = schema
    if corrupt:
        struct = _with_corrupt(schema, corrupt)
        mode = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": corrupt}
    text = F.nullif(F.col("data"), F.lit("null"))
    value = F.from_json(text, cast("StructType", struct), mode)
    if not isinstance(struct, StructType):
        return df.withColumn("data", value)
    _check_names(df, struct)
    others = [F.col(name) for name in df.columns if name != "data"]
    fields = [F.col("data").getField(name).alias(name) for name in struct.fieldNames()]
    return df.withColumn("data", value).select(*others, *fields)


def _from_ddl(schema: str) -> DataType:
    """Return the type: `a INT, b STRING` is a struct; a type's name alone is that type."""
    if not schema.strip():
        raise OptionError("the schema is empty. Name at least one field", option="schema")
    return DataType.fromDDL(schema)


def _variant(df: DataFrame, corrupt: str | None) -> DataFrame:
    if not corrupt:
        return df.withColumn("data", F.parse_json("data"))
    value = F.try_parse_json("data")
    bad = F.when(F.col("data").isNotNull() & value.isNull(), F.col("data"))
    return df.withColumn(corrupt, bad).withColumn("data", value)


def _with_corrupt(schema: DataType, corrupt: str) -> StructType:
    if not isinstance(schema, StructType):
        raise OptionError(
            f"corrupt={corrupt!r} needs a schema with named fields, got {schema.simpleString()}. "
            f"Name the fields, or leave corrupt= out",
            option="corrupt",
        )
    return StructType([*schema.fields, StructField(corrupt, StringType())])


def _check_names(df: DataFrame, struct: StructType) -> None:
    taken = {name.lower() for name in df.columns if name != "data"}
    for name in struct.fieldNames():
        if name.lower() in taken:
            raise OptionError(
                f"the schema's field {name!r} has the name of a column of the frame. Rename that "
                f"column first: df.withColumnRenamed({name!r}, …)",
                option="schema",
            )
