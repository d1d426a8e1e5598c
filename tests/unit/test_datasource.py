"""The door for Spark, as far as it needs no JVM: schemas, and when a mistake shows."""

import pytest
from pyspark.sql.types import IntegerType, LongType, MapType, StringType, StructType

from tests.cases import each_case
from zeh_spark.client.decoding.lines import Decoder
from zeh_spark.client.options.given import parse
from zeh_spark.errors import OptionError
from zeh_spark.spark import sql_tables
from zeh_spark.spark.datasource import ZeroEventHubDataSource, decoder
from zeh_spark.spark.source.batch import BatchReader
from zeh_spark.spark.source.options import SourceOptions
from zeh_spark.spark.source.stream import StreamReader

URL = {"url": "https://orders.example/feed"}
TEXT = StringType()


def schema(*columns):
    made = StructType()
    for column in columns:
        made.add(*column)
    return made


COLUMNS = [("partition", IntegerType()), ("headers", MapType(TEXT, TEXT)), ("data", TEXT)]


def decoded(*columns, **given):
    return decoder(schema(*columns), parse(SourceOptions, {**URL, **given}))


def test_permissive_adds_the_corrupt_record_column():
    """Under the name that I chose. A mistake shows at .load(), not in the first batch."""
    assert schema(*COLUMNS) == ZeroEventHubDataSource(URL).schema()
    options = {**URL, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": "bad"}

    assert schema(*COLUMNS, ("bad", TEXT)) == ZeroEventHubDataSource(options).schema()
    with pytest.raises(OptionError, match="'url' is missing"):
        ZeroEventHubDataSource({}).schema()


def test_a_schema_of_mine_chooses_columns():
    """In any order and case, fewer than there are. The frame has the names as I write them."""
    few = Decoder(("data", "partition"), "_corrupt_record", False)
    assert few == decoded(COLUMNS[2], COLUMNS[0])
    columns = [("DATA", TEXT), ("Partition", IntegerType()), ("_CORRUPT_record", TEXT)]
    names = tuple(name for name, _ in columns)

    expected = Decoder(("data", "partition", "_corrupt_record"), "_corrupt_record", True, (), names)
    assert expected == decoded(*columns, mode="PERMISSIVE")


@each_case(
    ("columns", "given", "complaint"),
    [
        ([("data", TEXT), ("DATA", TEXT)], {}, "has the column 'data' twice, in upper or lower"),
        (
            [("data", TEXT), ("KEY", TEXT)],
            {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "KEY"},
            "'columnNameOfCorruptRecord' is 'KEY', which is the name of another column",
        ),
        ([("id", IntegerType())], {}, r"'id:int'.*zeh_spark.parsed"),
        ([("data", schema(("id", TEXT)))], {}, "'data:struct<id:string>'"),
        ([("partition", LongType())], {}, "'partition:bigint'"),
        ([("data", TEXT, False)], {}, "'data:string'"),
        ([("data", TEXT)], {"mode": "PERMISSIVE"}, "needs the column '_corrupt_record'"),
        ([], {}, "no columns"),
        ([("key", IntegerType())], {}, "'key:int'"),
    ],
)
def test_a_schema_that_loses_something_is_refused(columns, given, complaint):
    """Columns that are not the source's, and schemas in which rows or bad lines would vanish."""
    refusal = decoded(*columns, **given)

    assert isinstance(refusal, OptionError)
    with pytest.raises(OptionError, match=complaint):
        raise refusal


def test_a_wrong_schema_is_raised_by_the_first_call():
    """An error while Spark makes the reader would hide behind another one of Spark's."""
    options, refusal = parse(SourceOptions, URL), decoded()
    for first_call in (
        StreamReader(options, refusal).initialOffset,
        BatchReader(options, refusal).partitions,
    ):
        with pytest.raises(OptionError, match="no columns"):
            first_call()


@each_case(
    ("of_table", "given", "used"),
    [
        ({"auth": "azure", "auth.scope": "a"}, {"auth.scope": "b"},
         {"auth": "azure", "auth.scope": "b"}),
        ({"auth": "azure", "auth.scope": "a"}, {"token": "t"}, {"token": "t"}),
        ({"tokenfile": "f"}, {"auth": "azure"}, {"auth": "azure"}),
        ({"oauth.clientid": "c", "oauth.scope": "a"}, {"oauth.scope": "b"},
         {"oauth.clientid": "c", "oauth.scope": "b"}),
        ({"token": "t", "wait": "1s"}, {"wait": "2s"}, {"token": "t", "wait": "2s"}),
    ],
)  # fmt: skip
def test_a_query_of_a_table_has_one_source_of_tokens(of_table, given, used):
    """Its own, or that of the table, of which it may change an option."""
    table = sql_tables.with_options(schema(*COLUMNS), of_table)

    assert used == sql_tables.options_of_table(table, given)
