"""Parse the column `data` with Spark's own JSON functions.

Rule for editors: no event is dropped without an error or a column that shows it. Spark's parser is
always asked for the text of what does not fit, and the error is raised here. Rejected: Spark's mode
FAILFAST, whose error advises to set the mode PERMISSIVE: that is an option of our source, with
another meaning. Runs on the driver, and only builds expressions.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StringType, StructField, StructType, VariantType

from zeh_spark.errors import ERRORS_PAGE, OptionError
from zeh_spark.spark.frames.compat import column_of, quoted

_CORRUPT, _VALUE = "_zeh_corrupt", "value"
_SHOWN = 200
_HELP = (
    f". Correct the schema, or keep such events in a column of their own: parsed(df, schema, "
    f"corrupt='bad'). See {ERRORS_PAGE}#an-event-does-not-fit-the-schema"
)


def parsed(df: DataFrame, schema: str | DataType, corrupt: str | None = None) -> DataFrame:
    """Return the frame with the JSON text in `data` parsed by a schema.

    The fields of a struct become columns instead of `data`. A value of any other type
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
        if not schema.strip():
            raise OptionError("the schema is empty. Name at least one field", option="schema")
        schema = DataType.fromDDL(schema)  # `a INT` is a struct; a type's name alone is that type
    if isinstance(schema, VariantType):
        return _variant(df, corrupt)
    if not isinstance(schema, StructType):
        return _unnamed(df, schema, corrupt)
    bad = StructField(corrupt or _CORRUPT, StringType())
    struct = StructType([*schema.fields, bad])
    _check_names(df, struct if corrupt else schema)
    read = df.withColumn("data", _value(_text(), struct))
    if not corrupt:
        text = F.col("data").getField(_CORRUPT)
        why = F.concat(F.lit("not read: "), _unread(text, schema))
        read = read.withColumn("data", _checked(df, text, why, struct))
    others = [F.col(quoted(name)) for name in df.columns if name != column_of(df, "data")]
    names = (struct if corrupt else schema).fieldNames()
    return read.select(*others, *(F.col("data").getField(name).alias(name) for name in names))


def _text() -> Column:
    return F.nullif(F.col("data"), F.lit("null"))


def _value(text: Column, struct: StructType) -> Column:
    """Return the value of a text, with the text itself in the last field if it does not fit."""
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": struct.names[-1]}
    return F.from_json(text, struct, options)


def _unnamed(df: DataFrame, kind: DataType, corrupt: str | None) -> DataFrame:
    """Parse values that are no objects, as the one field of an object."""
    if corrupt:
        raise OptionError(
            f"corrupt={corrupt!r} needs a schema with named fields, got {kind.simpleString()}. "
            f"Name the fields, or leave corrupt= out",
            option="corrupt",
        )
    struct = StructType([StructField(_VALUE, kind), StructField(_CORRUPT, StringType())])
    before = f'{{"{_VALUE}":'
    read = df.withColumn("data", _value(F.concat(F.lit(before), _text(), F.lit("}")), struct))
    wrapped = F.col("data").getField(_CORRUPT)
    text = F.substr(wrapped, F.lit(len(before) + 1), F.length(wrapped) - len(before) - 1)
    why = F.lit(f"it is no {kind.simpleString()}")
    checked = read.withColumn("data", _checked(df, text, why, struct))
    return checked.withColumn("data", F.col("data").getField(_VALUE))


def _variant(df: DataFrame, corrupt: str | None) -> DataFrame:
    value = F.try_parse_json("data")
    bad = F.when(F.col("data").isNotNull() & value.isNull(), F.col("data"))
    if corrupt:
        return df.withColumn(corrupt, bad).withColumn("data", value)
    why = F.lit("it is no VARIANT: an object may have a key twice, or it may be too large")
    read = df.withColumn("data", F.struct(value.alias(_VALUE), bad.alias(_CORRUPT)))
    found = F.when(
        F.col("data").getField(_CORRUPT).isNull(), F.col("data").getField(_VALUE)
    ).otherwise(_complaint(df, F.col("data").getField(_CORRUPT), why).cast(VariantType()))
    return read.withColumn("data", found)


def _checked(df: DataFrame, bad: Column, why: Column, struct: StructType) -> Column:
    """Return the parsed value, which raises an error if there is a text that does not fit.

    It is a column of its own, so that the optimizer computes it once for all fields. `bad` is the
    text, if it does not fit, and `why` says what does not fit. The frame may tell the event's
    partition.
    """
    return F.when(bad.isNull(), F.col("data")).otherwise(_complaint(df, bad, why).cast(struct))


def _complaint(df: DataFrame, text: Column, why: Column) -> Column:
    """Return what raises an error about an event that does not fit."""
    where = F.lit("")
    if column_of(df, "partition"):
        where = F.concat(F.lit(", in partition "), F.col("partition").cast("string"))
    said = F.concat(
        F.lit("an event does not fit the schema of zeh_spark.parsed"),
        F.coalesce(where, F.lit("")),
        F.lit(": "),
        F.substring(text, 1, _SHOWN),
        F.lit(" ("),
        why,
        F.lit(")"),
        F.lit(_HELP),
    )
    return F.raise_error(said)


def _unread(text: Column, schema: StructType) -> Column:
    """Return which fields of an event's text Spark did not read, with the types in the schema."""
    names = F.array(*(F.lit(field.name) for field in schema))
    shown = F.array(*(F.lit(f"{field.name} {field.dataType.simpleString()}") for field in schema))
    given = F.from_json(text, "map<string, string>")
    read = F.from_json(F.to_json(F.col("data")), "map<string, string>")
    unread = F.array_except(
        F.array_intersect(names, F.map_keys(F.map_filter(given, lambda _, each: each.isNotNull()))),
        F.map_keys(read),
    )
    labels = F.map_from_arrays(names, shown)
    listed = F.array_join(F.transform(unread, lambda name: F.element_at(labels, name)), ", ")
    return F.coalesce(F.nullif(listed, F.lit("")), F.lit("a value inside a field"))


def _check_names(df: DataFrame, struct: StructType) -> None:
    taken = {name.lower() for name in df.columns if name != column_of(df, "data")}
    for name in struct.fieldNames():
        if name.lower() in taken:
            raise OptionError(
                f"the schema's field {name!r} has the name of a column of the frame. Rename that "
                f"column first: df.withColumnRenamed({name!r}, …)",
                option="schema",
            )
