"""What a table's commits say, and what a batch may do next."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import each_case
from zeh_spark.errors import LakehouseError
from zeh_spark.spark.delta.commits import (
    BatchContent,
    CommitRecord,
    TableCommit,
    TableStanding,
    record_of,
    shown,
    standing,
    starting_cursors,
    with_transactions,
)
from zeh_spark.spark.delta.following import QueryBatch, next_record

FEED = "https://shop.example/orders"


def at(place):
    """Cursors of a feed with one partition."""
    return {FEED: {"0": f"c{place}"}}


def record(number, *, name="orders", app="zeh-spark:orders:0", query="q", batch=None):
    """A query's batch `number`, which ends at that place."""
    batch = number if batch is None else batch
    return CommitRecord(name, app, number, query, batch, at(number))


def commit(number, /, written=None, operation="WRITE", **parameters):
    return TableCommit(number, operation, parameters, written.to_json() if written else None)


def restore(number, to):
    return commit(number, operation="RESTORE", version=None if to is None else str(to))


def stands(*commits, complete=True, name="orders"):
    """Of a table with these commits, oldest first."""
    return standing(commits[::-1], name, "t", complete=complete)


def batch(number, query="q", start=None, end=None):
    return QueryBatch(query, number, at(number - 1 if start is None else start), end or at(number))


@given(
    st.builds(
        CommitRecord,
        *[st.text(min_size=1)] * 2,
        st.integers(0, 2**63 - 1),
        st.text(),
        st.integers(0, 2**63 - 1),
        st.dictionaries(st.text(), st.dictionaries(st.text(), st.text())),
    )
)
def test_a_record_comes_back_as_it_was(written):
    assert written == record_of(written.to_json(), "t")


@each_case("text", [None, "", "by hand", "7", "[]", '{"job": 1}'])
def test_what_others_write_is_no_record(text):
    """Metadata is anybody's."""
    assert record_of(text, "t") is None


@each_case(
    "other",
    [{"zeh_spark": 1}, {"zeh_spark": 3}, {"content": [7]}, {"content": "ab"}, {"number": "7"}],
)
def test_a_record_of_another_format_is_refused(other):
    """Another version's is not guessed at."""
    document = {**json.loads(record(0).to_json()), **other}
    text = json.dumps(document)

    with pytest.raises(LakehouseError, match=f"format {document['zeh_spark']}, .* reads format 2"):
        record_of(text, "t")


RECORDS = commit(0, record(0)), commit(1, record(1))
OTHERS = record(0, name="returns")
AFTER = record(1, app="zeh-spark:orders:2")
"""Of the generation that begins with a restore in version 2."""


@each_case(
    ("commits", "expected"),
    [
        # the newest record of the name counts; others wrote before and after it
        ([commit(0), commit(1, record(0)), commit(2, OTHERS), commit(3, record(1)), commit(4)],
         TableStanding(4, record(1), (OTHERS,))),
        # what a restore took back does not count, and the transactions that it left behind are not
        # met: a new generation begins
        ([*RECORDS, restore(2, 0)], TableStanding(2, record(0), (), 2)),
        # a restore to a version which was itself restored: what that had taken back stays away
        ([*RECORDS, restore(2, 0), commit(3, replace(AFTER, batch=9)), restore(4, 2)],
         TableStanding(4, record(0), (), 4)),
        # after a restore forwards, what was taken back is there again
        ([*RECORDS, restore(2, 0), restore(3, 1)], TableStanding(3, record(1), (), 3)),
        # the generation that began after a restore continues
        ([*RECORDS, restore(2, 0), commit(3, AFTER)], TableStanding(3, AFTER)),
        # a table that was replaced begins there, in a generation of its own: old transactions stay
        ([commit(0, record(0)), commit(1, operation="CREATE OR REPLACE TABLE"), commit(2)],
         TableStanding(2, None, (), 1)),
        ([commit(0, record(0)), commit(1, operation="REPLACE TABLE AS SELECT"), commit(2)],
         TableStanding(2, None, (), 1)),
        # Delta's own optimisation keeps the metadata of a commit, and is not a second one
        ([*RECORDS, commit(2, record(1), "OPTIMIZE")], TableStanding(2, record(1))),
        # a log that was cleaned is not taken for a new table: what is unknown is said
        ([commit(5), commit(6)], TableStanding(6, None, (), 6, "commits before version 5")),
        # nor is a copy that was made with INSERT, or with DataFrame.write, which is no MERGE
        ([commit(0, operation="CREATE TABLE"), replace(commit(1), rows=5), commit(2)],
         TableStanding(2, None, (), 2, "rows of WRITE in version 1")),
        # nor one of another engine, which does not tell how many rows it has written
        ([replace(commit(0), rows=None), commit(1)],
         TableStanding(1, None, (), 1, "rows of WRITE in version 0")),
        ([replace(commit(0, OTHERS), rows=5), replace(commit(1, operation="MERGE"), rows=5)],
         TableStanding(1, None, (OTHERS,), 0)),
        # nor is a clone, which has rows whose log it has not
        ([commit(0, operation="CLONE", source="delta.`t`", sourceVersion="5"), commit(1)],
         TableStanding(1, None, (), 1, "clone of delta.`t` version 5")),
    ],
)  # fmt: skip
def test_what_commits_say_of_a_table(commits, expected):
    assert expected == stands(*commits)


@each_case(
    ("commits", "expected"),
    [
        ([commit(7), commit(8)], None),
        ([commit(7, record(3)), commit(8)], None),
        ([commit(6, record(2)), commit(7, record(3)), commit(8)], record(3)),
    ],
)
def test_older_commits_are_asked_for_until_two_are_found(commits, expected):
    """The newest record, and the one that it has to follow."""
    found = stands(*commits, complete=False)

    assert expected == (found and found.record)


@each_case(
    ("commits", "told"),
    [
        # the log does not keep the time zone of a restore to a time
        ([commit(0, record(0)), restore(1, None)], "TO VERSION AS OF"),
        # batch 2 was written over a restore: it continues from number 1, which is not there
        ([*RECORDS, restore(2, 0), commit(3, record(2))],
         "taken back while the latter was written"),
    ],
)  # fmt: skip
def test_commits_that_say_nothing_certain_are_refused(commits, told):
    with pytest.raises(LakehouseError, match=told):
        stands(*commits)


@each_case("operation", ["CREATE OR REPLACE TABLE AS SELECT", "CREATE TABLE AS SELECT", "CONVERT"])
def test_a_table_that_begins_with_rows_may_hold_the_feed(operation):
    """They may be those of the same table, or of another one."""
    first = replace(commit(0, operation=operation), rows=5)

    assert stands(first, commit(1)).unknown == f"rows of {operation} in version 0"


CLEANED = TableStanding(6, None, (), 6, "commits before version 5")


def test_transactions_tell_what_a_cleaned_log_does_not():
    """Whether the name ever wrote, and how far."""
    apps = {"zeh-spark:orders:0": 9, "zeh-spark:orders:12": 10, "zeh-spark:orders2:50": 1, "x": 3}

    others = replace(CLEANED, others=(record(1, name="orders2"), record(1)))

    assert with_transactions(CLEANED, "orders", apps).unknown == "zeh-spark:orders:12@10"
    assert with_transactions(CLEANED, "orders", None) == CLEANED
    assert with_transactions(CLEANED, "returns", {"x": 3}).unknown is None
    assert with_transactions(others, "returns", apps).unknown is None
    # a new name is not taken for new where another one's record is gone: it may be that, mistyped
    assert with_transactions(CLEANED, "order", {"zeh-spark:orders:0": 9}) == CLEANED


def test_a_column_that_is_behind_the_transaction_is_not_believed():
    """Its newest rows were deleted."""
    by_column = replace(CLEANED, record=record(4), unknown=None)
    behind = with_transactions(by_column, "orders", {"zeh-spark:orders:0": 5})

    assert by_column == with_transactions(by_column, "orders", {"zeh-spark:orders:0": 4})
    assert (None, "zeh-spark:orders:0@5") == (behind.record, behind.unknown)


@each_case(
    ("stands", "given", "expected"),
    [
        # the next number, and the transaction of the same app
        (TableStanding(3, record(3)), batch(4), record(4)),
        # one that is there is not written: Spark gives it again after a crash
        (TableStanding(3, record(4)), batch(4), None),
        # a new checkpoint continues where the table is: its first batch follows another query's
        (TableStanding(3, record(3)), batch(0, "new", start=3, end=at(4)),
         record(4, query="new", batch=0)),
        # a generation has transactions of its own: Delta leaves out a number that was there
        (TableStanding(9, record(3), (), 8), batch(4), record(4, app="zeh-spark:orders:8")),
        # a first batch may begin anywhere: nobody knows better
        (TableStanding(-1, generation=0), batch(0, start=77), record(0)),
    ],
)  # fmt: skip
def test_a_batch_follows_the_one_before(stands, given, expected):
    assert expected == next_record("t", "orders", stands, given, None)


OUT_OF_PLACE = {
    "the other query still runs": batch(0, "new", start=0),
    "{_first}": QueryBatch("new", 0, {FEED: {}}, at(4)),
    "zeh_spark.lakehouse.cursors(spark, ": QueryBatch("new", 0, {FEED: {}}, at(4)),
    "begins its batch 0 at": batch(0, "new", start=99),
    "the checkpoint was taken back": batch(2),
    "now from": batch(3, end=at(99)),
    "lacks batches 4 to 4": batch(5),
    "reads the feed in other partitions": QueryBatch(
        "new", 0, {FEED: {"0": "c3", "1": "c3"}}, {FEED: {"0": "c4", "1": "c4"}}
    ),
    "holds all up to batch 3": QueryBatch("q", 5, at(3), at(5)),
    "set the source's option feedId": QueryBatch(
        "q", 4, {"https://other.example": {"0": "c3"}}, {"https://other.example": {"0": "c4"}}
    ),
}


@each_case("told", OUT_OF_PLACE)
def test_a_batch_that_does_not_follow_is_refused(told):
    """With both sides, and with the way on. F13: also from a checkpoint that was taken back, which
    would cut the feed otherwise than the table has it.
    """
    for accept in (None, "", "None", "nothing"):
        with pytest.raises(LakehouseError) as raised:
            next_record("t", "orders", TableStanding(3, record(3)), OUT_OF_PLACE[told], accept)

    assert told in str(raised.value) and "table t, name='orders'" in str(raised.value)
    assert at(3) == raised.value.expected


SUM = BatchContent(2, "0123456789")
CONTENTS = [
    (SUM, None, "written by a query with state, and this query is without state"),
    (None, SUM, "written by a query without state, and this query is with state"),
    (SUM, BatchContent(1, "abcdef"), "An option of the query was changed"),
    (SUM, BatchContent(2, "abcdef"), "its rows depend on chance or on a clock"),
]


@each_case(("there", "again", "told"), CONTENTS)
def test_a_batch_that_comes_again_with_other_rows_is_refused(there, again, told):
    """They would be missing, or be there twice."""
    stands = TableStanding(3, replace(record(4), content=there))
    given = replace(batch(4), content=again)

    with pytest.raises(LakehouseError, match=told):
        next_record("t", "orders", stands, given, None)

    assert next_record("t", "orders", stands, replace(given, content=there), None) is None


@each_case(
    ("stands", "given", "told"),
    [
        # Spark's state gives rows when time has passed, without new events that move a cursor
        (TableStanding(3, record(3)), QueryBatch("q", 5, at(3), at(3)), "lacks batches 4 to 4"),
        # a table without the batches before is another table, or another name
        (TableStanding(-1, generation=0), batch(3), "but this is batch 3 of its query"),
        # under a second name, the events of a feed would be there twice
        (TableStanding(5, None, (record(5, name="orders-2"),), 0), batch(0),
         "under name='orders-2'"),
    ],
)  # fmt: skip
def test_a_batch_for_a_table_that_lacks_others_is_refused(stands, given, told):
    with pytest.raises(LakehouseError, match=told):
        next_record("t", "orders", stands, given, None)


def test_other_partitions_have_to_be_accepted():
    """Their cursors cannot be compared."""
    new = OUT_OF_PLACE["reads the feed in other partitions"]
    with pytest.raises(LakehouseError) as raised:
        next_record("t", "orders", TableStanding(3, record(3)), new, None)
    accept = str(raised.value).partition("accept='")[2].partition("'")[0]

    found = next_record("t", "orders", TableStanding(3, record(3)), new, accept)

    assert (4, "new", 0) == (found.number, found.query, found.batch)


def test_what_is_not_known_has_to_be_accepted_by_its_name():
    """With the place where the batch begins: the remedy acts there, and once."""
    for accept in (None, CLEANED.unknown, told(batch(3, start=7))):
        with pytest.raises(LakehouseError, match="accept='commits before version 5 from "):
            next_record("t", "orders", CLEANED, batch(3), accept)

    found = next_record("t", "orders", CLEANED, batch(3), told(batch(3)))

    assert ("zeh-spark:orders:6", 7, 3) == (found.app, found.number, found.batch)


def told(of):
    """What the error says to accept."""
    with pytest.raises(LakehouseError) as raised:
        next_record("t", "orders", CLEANED, of, None)
    return raised.value.expected


def test_cursors_are_given_as_the_option_takes_them():
    """For the one feed, or the one that is named."""
    two = replace(record(1), cursors={**at(1), "other": {}})

    assert '{"0": "c1"}' == starting_cursors(record(1), None, "t")
    assert ["first", '{"0": "c1"}'] == [starting_cursors(two, f, "t") for f in ("other", FEED)]
    for wrong in (None, "a third"):
        with pytest.raises(LakehouseError, match=r"(?s)several feeds|no feed 'a third'"):
            starting_cursors(two, wrong, "t")


def test_many_cursors_are_shown_in_part():
    many = {FEED: {str(each): f"c{each}" for each in range(1024)}, "new": {}}

    assert f"{FEED} {{0: c0, 1: c1, 2: c2, 3: c3, …}}; new {{_first}}" == shown(many)
