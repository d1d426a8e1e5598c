"""Arguments of `to_delta`, `DeltaFeedWriter` and `merge` that are misspelled."""

import pytest

from tests.cases import each_case
from zeh_spark.errors import OptionError
from zeh_spark.lakehouse import DeltaFeedWriter, merge
from zeh_spark.spark.delta.write_options import check_spelling


def writer(**options):
    return DeltaFeedWriter("/t", **{"name": "orders", "checkpointLocation": "/c", **options})


@each_case(
    ("given", "meant"),
    [
        ("merge_key", "merge_keys"),
        ("mergeKeys", "merge_keys"),
        ("delete", "deleted"),
        ("transfrom", "transform"),
        ("cursor_column", "cursorColumn"),
        ("mergeSchemas", "mergeSchema"),
        ("merge_schema", "mergeSchema"),
    ],
)
def test_a_misspelled_argument_of_to_delta_is_refused(given, meant):
    """Otherwise rows are appended that I wanted to merge, and nothing tells me."""
    with pytest.raises(OptionError, match=f"did you mean '{meant}'") as refused:
        writer(**{given: "x"})

    assert given == refused.value.option


def test_a_misspelled_argument_of_merge_is_refused():
    with pytest.raises(OptionError, match="did you mean 'deleted'"):
        merge(None, "/t", ["id"], delete="gone")


@each_case(
    ("options", "option"),
    [
        ({"name": ""}, "name"),
        ({"name": "a:b"}, "name"),
        ({"userMetadata": "mine"}, "userMetadata"),
        ({"txnappid": "mine"}, "txnappid"),
        ({"path": "/elsewhere"}, "path"),
        ({"deleted": "gone"}, "deleted"),
    ],
)
def test_a_bad_option_is_named(options, option):
    """Before anything runs."""
    with pytest.raises(OptionError) as raised:
        writer(**options)

    assert raised.value.option == option


@each_case(
    "option",
    ["mergeSchema", "MERGESCHEMA", "maxRecordsPerFile", "delta.columnMapping.mode", "replaceWhere"],
)
def test_options_of_delta_pass(option):
    check_spelling([option], ["merge_keys", "deleted"])

    assert writer(**{option: "x"})
