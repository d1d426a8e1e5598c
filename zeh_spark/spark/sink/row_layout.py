"""What the columns of a DataFrame mean, decided once from its schema.

Data that is text holds JSON and stays as it is; other data is rendered by `arrow_json`. A frame
without a column `data` is published with each row as an object. A column that has no meaning is an
error before the query starts, so that no task finds it. Columns are found in any case: a writer is
made in a process that does not know the session's setting, so tasks refuse a session whose names
are case-sensitive (`check_case`).

Runs on the driver; pure. A RowLayout is sent to executors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import types as T

from zeh_spark.errors import OptionError
from zeh_spark.spark.frames.compat import CASE_SENSITIVE, found_column
from zeh_spark.spark.sink.spark_types import INTEGERS, STRINGS, named, problems
from zeh_spark.wire.stamp_columns import BY_NAME, POSITION

_ENVELOPE = ("data", "headers", "partition", "key")
ORIGIN_PART = "origin_part"
"""The column that numbers the events which a relay makes of one (option `keepOrigin`)."""


@dataclass(frozen=True, slots=True)
class RowLayout:
    """What the columns of a frame mean, decided once from its schema. It is sent to executors.

    Attributes:
        text: Whether the column `data` holds JSON already.
        other_case: The frame's names of columns with a meaning that it writes in another case.
    """

    columns: tuple[str, ...]
    text: bool
    keeps_origin: bool = False
    keeps_key: bool = False
    other_case: Mapping[str, str] = field(default_factory=dict)

    @property
    def members(self) -> list[str]:
        """The names of the columns as members of an event: those of the frame."""
        return [self.other_case.get(name, name) for name in self.columns]

    def check_case(self, setting: str | None) -> None:
        """Raise OptionError if the session does not find a column that was found in another case.

        `setting` is the session's `spark.sql.caseSensitive`, as tasks are told it.
        """
        if not self.other_case or str(setting).lower() != "true":
            return
        name, theirs = next(iter(self.other_case.items()))
        raise OptionError(
            f"{CASE_SENSITIVE}=true, and the frame has a column {theirs!r}, which could be "
            f"{name!r} or a column of your own. Rename it to {name!r}; or, to publish it as a part "
            f"of the event, put the columns into it: struct(*) AS data",
            option=theirs,
            anchor="columns-whose-names-differ-only-in-case",
        )


def layout(
    schema: T.StructType, *, keeps_origin: bool = False, keeps_key: bool = False
) -> RowLayout:
    """Return what the columns of a frame mean.

    Raises OptionError for a column that cannot be published; its name is the error's `option`.
    """
    columns = tuple(schema.names)
    if not columns:
        raise OptionError("a frame without columns cannot be published", option="data")
    for name in columns:
        if columns.count(name) > 1:
            raise _refused(name, "is there twice: rename or drop one of them")
    meant = (*_ENVELOPE, *([ORIGIN_PART] if keeps_origin else ()))
    found = {theirs: name for name in meant if (theirs := found_column(columns, name))}
    other_case = {name: theirs for theirs, name in found.items() if theirs != name}
    columns = tuple(found.get(name, name) for name in columns)
    schema = T.StructType(
        [T.StructField(name, each.dataType) for name, each in zip(columns, schema, strict=True)]
    )
    if keeps_origin:
        schema = _check_origin(schema)
    if "data" in columns:
        _check_beside_data(schema)
    else:
        _check_object(schema)
    _check_type(schema, "key", (*STRINGS, *INTEGERS), "CAST it AS STRING")
    if keeps_key and "key" not in columns:
        raise _without_key(columns)
    text = "data" in columns and isinstance(schema["data"].dataType, STRINGS)
    return RowLayout(columns, text, keeps_origin, keeps_key, other_case)


def _without_key(columns: Sequence[str]) -> OptionError:
    """Return the error for `keepKey` without keys, with what is probably missing."""
    if "partition" in columns:
        remedy = "Put the column key in the place of partition, or leave out keepKey"
    else:
        remedy = "Add the column, like customer AS key, or leave out keepKey"
    return OptionError(
        f"keepKey=true needs the column key, and the frame has {', '.join(columns)}. {remedy}",
        option="keepKey",
        anchor="keepkey-needs-the-column-key",
    )


def _check_origin(schema: T.StructType) -> T.StructType:
    """Check what `keepOrigin` needs, and return the schema without the column that is for it."""
    if missing := [name for name in ("data", "headers") if name not in schema.names]:
        raise OptionError(
            f"keepOrigin=true needs the columns data and headers, and there is no {missing[0]}. "
            f"Read the feed with headers=_all, and keep its columns",
            option="keepOrigin",
        )
    _check_type(schema, ORIGIN_PART, INTEGERS, "CAST it AS INT")
    return T.StructType([field for field in schema if field.name != ORIGIN_PART])


def _check_beside_data(schema: T.StructType) -> None:
    columns = schema.names
    for name in columns:
        if name in BY_NAME or name == POSITION:
            raise _refused(
                name,
                "is a stamp of the feed that was read, and the event gets new ones: drop "
                "it, or put it into the event, struct(*) AS data",
            )
        if name not in _ENVELOPE and name.lower() in _ENVELOPE:
            raise _refused(
                name,
                f"has the same name as {name.lower()!r} for Spark, so which of them is meant is "
                f"not known: rename all but one",
            )
        if name not in _ENVELOPE:
            raise _refused(
                name,
                "has no meaning beside 'data': put it into the event, struct(*) AS data, "
                "or drop it",
            )
    if "partition" in columns and "key" in columns:
        raise _refused("key", "contradicts 'partition': keep the one that says where events go")
    _check_type(schema, "partition", INTEGERS, "CAST it AS INT, or name it key")
    if "headers" in columns:
        _check_headers(schema["headers"].dataType)
    _check_data(schema["data"].dataType)


def _check_headers(kind: T.DataType) -> None:
    if not (
        isinstance(kind, T.MapType)
        and isinstance(kind.keyType, STRINGS)
        and isinstance(kind.valueType, STRINGS)
    ):
        raise _refused("headers", f"is {named(kind)}: CAST it AS MAP<STRING, STRING>")


def _check_data(kind: T.DataType) -> None:
    if isinstance(kind, T.VariantType):
        raise _refused("data", "is VARIANT: publish to_json(data)")
    if not isinstance(kind, (*STRINGS, T.StructType, T.MapType, T.ArrayType)):
        raise _refused(
            "data",
            f"is {named(kind)}, which is no event: publish struct(data) AS data, or CAST it AS "
            f"STRING if it holds JSON",
        )
    _check_inside("data", kind)


def _check_object(schema: T.StructType) -> None:
    for name in schema.names:
        if name in ("partition", "headers"):
            raise _refused(
                name,
                "has a meaning only beside 'data': put the columns of the event into one, "
                "struct(…) AS data, or rename it",
            )
    for each in schema:
        _check_inside(each.name, each.dataType)


def _check_type(
    schema: T.StructType, name: str, kinds: tuple[type[T.DataType], ...], remedy: str
) -> None:
    """Refuse a column, if the frame has it, whose type is not one of these."""
    if name in schema.names and not isinstance(kind := schema[name].dataType, kinds):
        raise _refused(name, f"is {named(kind)}: {remedy}")


def _check_inside(column: str, kind: T.DataType) -> None:
    for problem in problems(column, kind):
        raise _refused(column, problem)


def _refused(column: str, problem: str) -> OptionError:
    return OptionError(
        f"the column {column!r} {problem}",
        option=column,
        anchor="the-column-has-no-meaning-beside-data",
    )
