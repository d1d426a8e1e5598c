"""What a table may be published with, and the order of its changes; without Spark."""

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as T

from tests.cases import each_case
from zeh_spark.spark.delta.delta_options import SETTINGS, limited, refusal
from zeh_spark.spark.delta.delta_reader import in_order, key_problem, merged

CHANGES = "publish the changes themselves, with change_feed=True"


@each_case(
    ("option", "value", "remedy"),
    [
        ("ignoreChanges", True, CHANGES),
        ("ignoreDeletes", "true", CHANGES),
        ("ignoreFileDeletion", True, CHANGES),
        ("skipChangeCommits", "TRUE", CHANGES),
        ("failOnDataLoss", False, "begin with a new checkpoint, and startingVersion"),
        ("excludeRegex", ".*", "filter the rows of the frame"),
        ("ignoreMissingFiles", True, "restore the files, or begin with a new checkpoint"),
        ("ignoreCorruptFiles", True, "restore the files, or begin with a new checkpoint"),
        ("readChangeFeed", False, "say change_feed=True or False"),
        ("readChangeData", True, "say change_feed=True or False"),
    ],
)
def test_options_that_leave_rows_out_are_refused(option, value, remedy):
    """By name, in whatever case, with what to do instead."""
    for name in (option, option.lower()):
        refused = refusal({"startingVersion": 3, name: value}, {})

        assert refused and refused.option == name
        assert refused.what.startswith(f"option {name!r} is refused: ")
        assert str(refused).endswith(remedy)


@each_case(
    "options",
    [
        {},
        {"ignoreChanges": False, "ignoreDeletes": "false", "skipChangeCommits": "False"},
        {"failOnDataLoss": True, "ignoreMissingFiles": "false"},
        {"startingVersion": 3, "MAXFILESPERTRIGGER": 1, "schemaTrackingLocation": "/x"},
        {"fs.azure.account.key": "x", "schemaLocation": "/x", "endingVersion": 9},
    ],
)
def test_all_other_options_are_deltas(options):
    """Also those that are refused, with the value that changes nothing."""
    assert refusal(options, dict.fromkeys(SETTINGS, "false")) is None


@each_case(
    ("given_name", "meant"),
    [
        ("startingVersoin", "startingVersion"),
        ("starting_timestamp", "startingTimestamp"),
        ("skipChangeCommit", "skipChangeCommits"),
    ],
)
def test_an_option_that_is_misspelt_is_refused(given_name, meant):
    """A feed that begins too early cannot be taken back."""
    refused = refusal({given_name: "3"}, {})

    assert refused.what == f"option {given_name!r} is unknown; did you mean {meant!r}?"


@each_case("setting", SETTINGS)
def test_settings_that_leave_rows_out_are_refused(setting):
    """The session's, too: Delta's source heeds them."""
    refused = refusal({}, {**dict.fromkeys(SETTINGS, None), setting: "TRUE"})

    assert refused and refused.option == setting
    assert f"{setting}=true is refused: rows of " in str(refused)


@each_case(
    ("options", "change_feed", "expected"),
    [
        ({}, False, {"maxBytesPerTrigger": "128m"}),
        ({"startingVersion": 3}, False, {"startingVersion": 3, "maxBytesPerTrigger": "128m"}),
        ({"maxfilespertrigger": 7}, False, {"maxfilespertrigger": 7}),
        ({"maxBytesPerTrigger": "1g"}, False, {"maxBytesPerTrigger": "1g"}),
        # Delta cuts commits where a limit strikes: what replaces could come before what it replaces
        ({}, True, {"maxFilesPerTrigger": 2**31 - 1}),
        ({"maxBytesPerTrigger": 1}, True, None),
        ({"maxfilespertrigger": 1}, True, None),
    ],
)
def test_a_batch_has_a_limit_unless_it_has_changes(options, change_feed, expected):
    """A table of terabytes is not one batch."""
    refused = refusal(options, {}, change_feed=change_feed)
    assert (expected is None) == bool(refused)
    if refused:
        assert refused.option in options
    else:
        assert expected == limited(options, change_feed=change_feed)


@each_case("kind", [T.DoubleType(), T.TimestampType(), T.BinaryType(), T.DateType()])
def test_only_texts_and_integers_are_keys(kind):
    """As in the sink. The error names the expression that makes a text of another type."""
    keys = T.StringType(), T.VarcharType(9), T.ByteType(), T.LongType()
    assert [None] * 4 == [key_problem("id", each) for each in keys]
    said = key_problem("day", kind)

    assert said and f"'day' is {kind.simpleString().upper()}" in said
    assert "key='CAST(day AS STRING)'" in said


places = st.lists(st.lists(st.integers(0, 6), max_size=20), max_size=6)


@given(places)
def test_rows_come_in_the_order_of_their_places(runs):
    """However they arrive; none is lost, one place's keep their order, no place is published."""
    batches = [batch(each, begin=100 * number) for number, each in enumerate(runs)]

    came = [row for each in in_order(iter(batches)) for row in each.to_pylist()]

    rows = [row for each in batches for row in each.to_pylist()]
    rows.sort(key=lambda row: row["place"])
    assert came == [{"data": row["data"]} for row in rows]


def test_rows_that_are_in_order_are_not_copied():
    """As those of a table that is read from its beginning are."""
    given_batch = batch([1, 1, 2])

    pieces = list(merged([given_batch]))

    address = given_batch.column(1).buffers()[1].address
    assert {each.column(1).buffers()[1].address for each in pieces} == {address}


def test_pieces_become_batches_of_some_size():
    """A thousand commits with a row each do not become a thousand batches."""
    batches = [batch(range(begin, 40_000, 4)) for begin in range(4)]

    came = list(in_order(iter(batches)))

    assert [each.num_rows for each in came] == [10_000] * 4
    numbers = np.concatenate([np.asarray(each.column("data")) for each in came])
    assert len(np.unique(numbers)) == 10_000


def batch(found, begin=0):
    found = list(found)
    numbers = range(begin, begin + len(found))
    return pa.RecordBatch.from_pydict(
        {"data": pa.array(numbers, pa.int64()), "place": pa.array(found, pa.int64())}
    )
