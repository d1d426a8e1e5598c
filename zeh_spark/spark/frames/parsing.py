"""Parse the column `data` with Spark's own JSON functions.

Rule for editors: no event is dropped without an error or a column that shows it. Spark's parser is
always asked for the text of what does not fit, and the error is raised here. Rejected: Spark's mode
FAILFAST, whose error advises to set the mode PERMISSIVE: that is an option of our source, with
another meaning. Runs on the driver, and only builds expressions.
"""

from __future__ import annotations

from functools import partial, reduce

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StringType, StructField, StructType, VariantType

from zeh_spark.errors import OptionError
from zeh_spark.spark.frames.compat import column_of, columns_of, is_refused_analysis
from zeh_spark.spark.frames.remainder import leaves, split
from zeh_spark.wire.stamp_columns import KEY, POSITION, STAMP_COLUMNS

OF_SOURCE = ("partition", "headers", "data", POSITION, KEY.name, *(s.name for s in STAMP_COLUMNS))
"""The columns that a frame of the source may have."""

_CORRUPT, _VALUE, _PARSED, _REST = "_zeh_corrupt", "value", "_zeh_parsed", "_zeh_rest"
_SHOWN = 200
_HELP = (
    ". Correct the schema, or keep such events in a column of their own: parsed(df, schema, "
    "corrupt='bad'). See zeh-spark explain an-event-does-not-fit-the-schema"
)


def parsed(
    df: DataFrame,
    schema: str | DataType,
    corrupt: str | None = None,
    *,
    rescued: str | None = None,
) -> DataFrame:
    """Return the frame with the JSON text in `data` parsed by a schema.

    The fields of a struct become columns instead of `data`. A value of any other type
    (`VARIANT`, `ARRAY<…>`) stays in the column `data`. The values are NULL if an event has no data,
    or if it is `null`, as in the tombstones of some publishers. A value that Spark reads as another
    one, as -56 of the TINYINT 200, is no error: `rescued` keeps it (docs/guides/read.md).

    Args:
        df: a streaming or batch frame with the column `data`, as the source gives it.
        schema: a type, or its DDL text, like `id BIGINT, amount DOUBLE` or `VARIANT`.
        corrupt: the name of a STRING column to add. It has the text of an event that does not fit
            the schema, and that event's fields are NULL. Without it, such an event fails the query.
        rescued: the name of a STRING column to add, like `_rescued_data`. It has the JSON text of
            all that the typed columns do not show: fields that the schema does not name and values
            that do not fit, at their paths in the event; NULL if there are none. See
            docs/guides/read.md for arrays and for what does not fit.

    Returns:
        The frame with the other columns unchanged.

    Raises:
        OptionError: the schema is empty, a field has the name of another column of the frame, or
            `corrupt` or `rescued` does not fit the schema, or both are given.
    """
    if isinstance(schema, str):
        if not schema.strip():
            raise OptionError("the schema is empty. Name at least one field", option="schema")
        schema = _type_of(schema)
    columns = columns_of(df)
    place = column_of(df, "partition") if columns else None
    if rescued is not None:
        if corrupt or not isinstance(schema, StructType) or rescued in ("", *schema.names):
            raise OptionError(
                f"rescued={rescued!r} has to be the name of a new column, for a schema with other "
                f"named fields, and without corrupt=",
                option="rescued",
            )
        _check_names(df, columns, StructType([*schema.fields, StructField(rescued, StringType())]))
        return _rescued(df, schema, rescued)
    if isinstance(schema, VariantType):
        return _variant(df, corrupt, place)
    if not isinstance(schema, StructType):
        return _unnamed(df, schema, corrupt, place)
    bad = StructField(corrupt or _CORRUPT, StringType())
    struct = StructType([*schema.fields, bad])
    _check_names(df, columns, struct if corrupt else schema)
    read = df.withColumn(_PARSED, _value(_text(), struct)).drop("data")
    if not corrupt:
        text = F.col(_PARSED).getField(_CORRUPT)
        why = F.concat(F.lit("not read: "), _unread(text, schema))
        read = read.withColumn(_PARSED, _checked(place, _PARSED, text, why, struct))
    names = (struct if corrupt else schema).fieldNames()
    fields = (F.col(_PARSED).getField(name).alias(name) for name in names)
    return read.select("*", *fields).drop(_PARSED)


def _type_of(ddl: str) -> DataType:
    """Return the type: `a INT` is a struct, and the name of a type is that type."""
    try:
        return DataType.fromDDL(ddl)
    except PySparkException as exc:
        if not is_refused_analysis(exc):
            raise
        raise OptionError(
            f"inside a query function of a pipeline, Spark does not read the DDL text {ddl!r}. "
            f"Make the type outside of it, with pyspark.sql.types.StructType.fromDDL({ddl!r}), and "
            f"give it to parsed",
            option="schema",
        ) from exc


def _text() -> Column:
    return F.nullif(F.col("data"), F.lit("null"))


def _value(text: Column, struct: StructType) -> Column:
    """Return the value of a text, with the text itself in the last field if it does not fit."""
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": struct.names[-1]}
    return F.from_json(text, struct, options)


def _rescued(df: DataFrame, schema: StructType, rescued: str) -> DataFrame:
    """Parse what fits, and add a column with the rest.

    Only for an event that does not fit as a whole, each leaf is read alone, and so Spark itself
    says which of them fit. Rejected: what its mode PERMISSIVE reads of such an event, because a
    setting decides whether it is anything (`spark.sql.json.enablePartialResults`); and a UDF in
    Arrow, because that needs pandas.
    """
    corrupt = StructField(_CORRUPT, StringType())
    struct = StructType([*schema.fields, corrupt])
    text, value, rest = F.col(_PARSED)["text"], F.col(_PARSED)[_VALUE], F.col(_REST)
    unfit = value[_CORRUPT].isNotNull()
    flags = []
    for path, kind in leaves(schema).items():
        nested = reduce(lambda kind, name: StructType([StructField(name, kind)]), path[:0:-1], kind)
        alone = _value(text, StructType([StructField(path[0], nested), corrupt]))
        flags.append(F.when(alone[_CORRUPT].isNull(), "1").otherwise("0"))
    split_event = F.udf(partial(split, schema=schema), "typed STRING, rest STRING", useArrow=False)
    read = df.withColumn(_PARSED, _pair(_text(), _value(_text(), struct))).drop("data")
    read = read.withColumn(_REST, split_event(text, F.when(unfit, F.concat(*flags))))
    again = F.when(rest["typed"].isNull(), value).otherwise(_value(rest["typed"], struct))
    fields = (F.when(~unfit, value[name]).alias(name) for name in schema.names)
    read = read.withColumn(_PARSED, _pair(text, again)).select(
        "*", *fields, F.when(unfit, text).otherwise(rest["rest"]).alias(rescued)
    )
    return read.drop(_PARSED, _REST)


def _pair(text: Column, value: Column) -> Column:
    return F.struct(text.alias("text"), value.alias(_VALUE))


def _unnamed(df: DataFrame, kind: DataType, corrupt: str | None, place: str | None) -> DataFrame:
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
    checked = read.withColumn("data", _checked(place, "data", text, why, struct))
    return checked.withColumn("data", F.col("data").getField(_VALUE))


def _variant(df: DataFrame, corrupt: str | None, place: str | None) -> DataFrame:
    value = F.try_parse_json("data")
    bad = F.when(F.col("data").isNotNull() & value.isNull(), F.col("data"))
    if corrupt:
        return df.withColumn(corrupt, bad).withColumn("data", value)
    why = F.lit("it is no VARIANT: an object may have a key twice, or it may be too large")
    read = df.withColumn("data", F.struct(value.alias(_VALUE), bad.alias(_CORRUPT)))
    found = F.when(
        F.col("data").getField(_CORRUPT).isNull(), F.col("data").getField(_VALUE)
    ).otherwise(_complaint(place, F.col("data").getField(_CORRUPT), why).cast(VariantType()))
    return read.withColumn("data", found)


def _checked(place: str | None, name: str, bad: Column, why: Column, struct: StructType) -> Column:
    """Return the parsed value, which raises an error if there is a text that does not fit.

    It is a column of its own, so that the optimizer computes it once for all fields. `bad` is the
    text, if it does not fit, and `why` says what does not fit.
    """
    return F.when(bad.isNull(), F.col(name)).otherwise(_complaint(place, bad, why).cast(struct))


def _complaint(place: str | None, text: Column, why: Column) -> Column:
    """Return what raises an error about an event that does not fit.

    `place` is the column with the event's partition, if there is one.
    """
    where = F.lit("")
    if place:
        where = F.concat(F.lit(", in partition "), F.col(place).cast("string"))
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
    read = F.from_json(F.to_json(F.col(_PARSED)), "map<string, string>")
    unread = F.array_except(
        F.array_intersect(names, F.map_keys(F.map_filter(given, lambda _, each: each.isNotNull()))),
        F.map_keys(read),
    )
    labels = F.map_from_arrays(names, shown)
    listed = F.array_join(F.transform(unread, lambda name: F.element_at(labels, name)), ", ")
    return F.coalesce(F.nullif(listed, F.lit("")), F.lit("a value inside a field"))


def _check_names(df: DataFrame, columns: list[str] | None, struct: StructType) -> None:
    data = column_of(df, "data") if columns else "data"
    taken = {name.lower() for name in columns or OF_SOURCE if name != data}
    where = "a column of the frame" if columns else "a column that a feed's frame may have"
    for name in struct.fieldNames():
        if name.lower() in taken:
            raise OptionError(
                f"the schema's field {name!r} has the name of {where}. Rename that column first: "
                f"df.withColumnRenamed({name!r}, …)"
                + ("" if columns else ", and call parsed outside of the query function"),
                option="schema",
            )
