"""`parsed(df, schema, rescued=…)`: nothing of an event is lost, and nothing is typed wrongly."""

from __future__ import annotations

import json
import math
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql import functions as F

import zeh_spark
from zeh_spark.errors import OptionError

SCHEMA = (
    "id INT, amount DECIMAL(10,2), who STRUCT<name: STRING, age: TINYINT, at: STRUCT<z: INT>>, "
    "items ARRAY<STRUCT<sku: STRING, n: INT>>, t TIMESTAMP"
)
RESCUED = [
    ('{"id": 1, "amount": 1.20, "who": {"name": "x", "age": 5}, "items": [{"n": 1}]}', None),
    ('{"id": "1", "amount": 1.2}', '{"id":"1"}'),
    ('{"id": 1.5, "amount": 1.234}', '{"id":1.5,"amount":1.234}'),
    ('{"id": 2147483648, "ID": 1}', '{"id":2147483648,"ID":1}'),
    ('{"who": {"age": 200, "at": {"z": 1e2, "new": 1.10}}}',) * 2,
    ('{"who": {"age": 1}, "\\u0078": null, "y": 1e400}', '{"x":null,"y":1e400}'),
    ('{"who": "Ann"}',) * 2,
    ('{"items": [{"n": 1, "new": 2}], "id": 1}', '{"items":[{"n":1,"new":2}]}'),
    ('{"items": [{"n": 1, "n": 2}], "id": 1}',) * 2,
    ('{"id": 1, "id": 2}', '{"id": 1, "id": 2}'),
    ('{"id": 1, "who": {"age": 1, "age": 1}}', '{"id": 1, "who": {"age": 1, "age": 1}}'),
    (
        '{"id": 1, "new": {"a": 12345678901234567890.12345}}',
        '{"new":{"a":12345678901234567890.12345}}',
    ),
    ('{"t": "2020-01-01T00:00:00.1234567Z"}',) * 2,
    ('{"t": "12:00", "id": null}', '{"t":"12:00"}'),
    ("[1]", "[1]"),
    ("null", None),
]


def test_what_does_not_fit_is_in_a_column_of_its_own(stream, collected, publisher):
    """The stream does not stop. Values that fit are typed, also in nested structs."""
    publisher.publish(*({"id": i, "who": {"age": "ten"}} for i in range(3)))
    feed = stream(url=publisher.url).load()

    collected.run(zeh_spark.parsed(feed, SCHEMA, rescued="_rescued_data"))

    rows = {row["id"]: (row["who"], row["_rescued_data"]) for row in collected.rows}
    nobody = Row(name=None, age=None, at=None)
    assert dict.fromkeys(range(3), (nobody, '{"who":{"age":"ten"}}')) == rows


def test_only_the_exact_value_is_typed(spark):
    """Spark would round, overflow or choose one of two; arrays are one value."""
    frame = spark.createDataFrame(
        list(enumerate(text for text, _ in RESCUED)), "i INT, data STRING"
    )

    rows = zeh_spark.parsed(frame, SCHEMA, rescued="rest").orderBy("i").collect()

    expected = [rest and rest.replace(" ", "") for _, rest in RESCUED]
    assert expected == [row.rest and row.rest.replace(" ", "") for row in rows]
    assert (1, Decimal("1.20"), [Row(sku=None, n=1)]) == (
        rows[0].id,
        rows[0].amount,
        rows[0]["items"],
    )
    assert ([Row(sku=None, n=1)], None) == (rows[7]["items"], rows[8]["items"])


CHANGED = [
    ("DECIMAL(10,2)", "1.239", "1.24"),
    ("TIMESTAMP_NTZ", '"2026-03-01T10:00:00.1234567"', "2026-03-01 10:00:00.123456"),
    ("TIMESTAMP", "9999999999999", "-265697-05-04"),
    ("TINYINT", "200", "-56"),
    ("DOUBLE", "1e400", "Infinity"),
    ("DOUBLE", "9007199254740993", "9.007199254740992E15"),
    ("DATE", '"2026-03-01T10:00:00"', "2026-03-01"),
    ("DATE", '"20000"', "+20000-01-01"),
    ("STRING", '"\\ud800"', "?"),
    ("INT", '1,"a":2', "2"),
]
"""Types, what an event has, and how the value that Spark reads begins as text."""


def test_what_spark_changes_is_kept_by_rescued_only(spark):
    """As the guide says: it is no error, and with `corrupt=` not corrupt."""
    schema = ", ".join(f"c{n} STRUCT<a: {kind}>" for n, (kind, _, _) in enumerate(CHANGED))
    texts = [f'{{"c{n}":{{"a":{value}}}}}' for n, (_, value, _) in enumerate(CHANGED)]
    frame = spark.createDataFrame(list(enumerate(texts)), "i INT, data STRING")

    def read(**options):
        found = zeh_spark.parsed(frame, schema, **options).orderBy("i")
        shown = [F.col(f"c{n}.a").cast("string").alias(f"c{n}") for n in range(len(CHANGED))]
        rows = found.select(*shown, *options.values()).collect()
        return [row[f"c{n}"] for n, row in enumerate(rows)], rows

    (plain, _), (checked, corrupt), (typed, rescued) = read(), read(corrupt="x"), read(rescued="x")

    begins = [begin for _, _, begin in CHANGED]
    assert begins == [each[: len(begin)] for each, begin in zip(plain, begins, strict=True)]
    assert (plain, {None}) == (checked, {row.x for row in corrupt})
    assert ([None] * len(CHANGED), texts) == (typed, [row.x for row in rescued])


def test_the_schema_needs_names_and_free_ones(spark):
    frame = spark.createDataFrame([], "partition INT, data STRING")
    for schema, also in (("VARIANT", {}), ("rest INT", {}), ("a INT", {"corrupt": "bad"})):
        with pytest.raises(OptionError, match="rescued='rest' has to be the name of a new column"):
            zeh_spark.parsed(frame, schema, rescued="rest", **also)
    with pytest.raises(OptionError, match="'partition' has the name of a column"):
        zeh_spark.parsed(frame, "a INT", rescued="partition")


NUMBERS = """0 -0 1 200 300 40000 2147483648 9007199254740993 9223372036854775808 1.0 1.10 1.5 1.234
0.1 1e2 1E5 1e30 1e39 1e400 1e-7 123456789.25 12345678901234567890.123456789""".split()
TEXTS = ["", "1", "1.239", "x", "NaN", "aGk=", "2020-01-01", "2020-02-30", "12:00", "\ud800", "é",
         "2020-01-01T00:00:00.123456Z", "2020-01-01T00:00:00.1234567Z"]  # fmt: skip
TYPES = """TINYINT SMALLINT INT BIGINT FLOAT DOUBLE DECIMAL(10,2) DECIMAL(38,0) STRING BOOLEAN
BINARY DATE TIMESTAMP ARRAY<INT> ARRAY<STRING> MAP<STRING,DOUBLE> ARRAY<STRUCT<a:INT,b:DOUBLE>>
MAP<STRING,STRUCT<a:DECIMAL(10,2)>>""".split()
NAMES = ["a", "b", "x.y", "é"]


class Number(str):
    """The text of a number."""


class Pairs(list):  # type: ignore[type-arg]
    """The fields of an object, in which a name may come twice."""


scalars = st.sampled_from(NUMBERS).map(Number) | st.sampled_from([*TEXTS, None, True, False])
names = st.sampled_from([*NAMES, "A", "new"])
values = st.recursive(
    scalars,
    lambda below: st.lists(below, max_size=3) | st.dictionaries(names, below, max_size=3),
    max_leaves=6,
)
events = st.lists(st.tuples(names, values), min_size=1, max_size=6, unique_by=lambda pair: pair[0])
doubled = st.lists(st.tuples(names, values), min_size=1, max_size=6)
structs = st.recursive(
    st.sampled_from(TYPES),
    lambda below: st.dictionaries(st.sampled_from(NAMES), below, min_size=1, max_size=4).map(
        lambda fields: f"STRUCT<{', '.join(f'`{name}`: {kind}' for name, kind in fields.items())}>"
    ),
    max_leaves=6,
)
schemas = st.dictionaries(st.sampled_from(NAMES), structs, min_size=1, max_size=4).map(
    lambda fields: ", ".join(f"`{name}` {kind}" for name, kind in fields.items())
)


def write(value: Any) -> str:
    """JSON text with each number as it is, and names that are escaped."""
    if isinstance(value, Number):
        return str(value)
    if isinstance(value, Pairs | dict):
        pairs = value.items() if isinstance(value, dict) else value
        return f"{{{', '.join(f'{json.dumps(name)}: {write(each)}' for name, each in pairs)}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(write, value))}]"
    return json.dumps(value)


def read(text: str) -> Any:
    def fields(pairs: list[tuple[str, Any]]) -> Any:
        return dict(pairs) if len(dict(pairs)) == len(pairs) else Pairs(pairs)

    return json.loads(text, object_pairs_hook=fields, parse_int=Number, parse_float=Number)


def without(event: Any, rest: Any, typed: Any) -> Any:
    """The event without what is rescued and not typed. All that is rescued is in the event."""
    if not isinstance(event, dict) or (rest == event and typed is None):
        assert rest == event
        return None
    left = dict(event)
    for name, value in (rest or {}).items():
        known = typed[name] if typed is not None and name in typed else None
        if isinstance(known, Row) and isinstance(value, dict):
            left[name] = without(event[name], value, known)
        else:
            assert value == event[name]
            if known is None:
                del left[name]
    return left


OTHERWISE_SHOWN = ("", "aGk=", "2020-01-01", "2020-01-01T00:00:00.123456Z")
"""Texts that are shown as bytes, days and times."""


def is_shown(given: Any, typed: Any) -> bool:
    """Whether a typed value is the one that was in the event."""
    if given is None or (isinstance(given, bool) and not isinstance(typed, str)):
        return typed is given
    if isinstance(typed, Row | dict):
        found = typed.asDict() if isinstance(typed, Row) else typed
        return all(is_shown(given.get(name), found[name]) for name in found)
    if isinstance(typed, list):
        return len(given) == len(typed) and all(map(is_shown, given, typed))
    if isinstance(typed, float):
        near = Decimal(1e-6 * abs(typed)) if math.isfinite(typed) else -1
        return given == "NaN" or abs(Decimal(given) - Decimal(typed)) <= near
    if isinstance(given, Number):  # that of a time has its seconds
        return Decimal(given) == Decimal(
            typed.timestamp() if isinstance(typed, datetime) else typed
        )
    if isinstance(given, str):
        same = isinstance(typed, Decimal) and Decimal(given) == typed
        return same or given == typed or given in OTHERWISE_SHOWN
    return normal(given) == normal(read(typed))


def normal(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: normal(each) for name, each in value.items()}
    if isinstance(value, list):
        return [normal(each) for each in value]
    return Decimal(value).normalize() if isinstance(value, Number) else value


@given(schemas, st.lists(events.map(Pairs) | doubled.map(Pairs), min_size=40, max_size=40))
@settings(
    max_examples=6,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.generate),
)
def test_nothing_is_lost_and_nothing_typed_wrongly(spark, schema, drawn):
    """What is not rescued is what Spark reads in FAILFAST, and it is what was in the event."""
    texts = [write(event) for event in drawn]
    frame = spark.createDataFrame(list(enumerate(texts)), "i INT, data STRING")
    rows = zeh_spark.parsed(frame, schema, rescued="rest").orderBy("i").collect()
    typed = [
        Row(**{k: v for k, v in row.asDict().items() if k not in ("i", "rest")}) for row in rows
    ]

    left = []
    for text, row, columns in zip(texts, rows, typed, strict=True):
        event, rest = read(text), read(row.rest or "{}")
        assert isinstance(event, dict) or rest == event, text
        shown = {name: value for name, value in columns.asDict().items() if value is not None}
        left.append(without(event, rest, Row(**shown) if shown else None) or {})
        assert all(is_shown(left[-1].get(name), value) for name, value in shown.items()), text

    again = spark.createDataFrame(list(enumerate(map(write, left))), "i INT, data STRING")
    strict = again.select("i", F.from_json("data", schema, {"mode": "FAILFAST"}).alias("v"))
    assert [repr(row.v) for row in strict.orderBy("i").collect()] == [repr(each) for each in typed]
