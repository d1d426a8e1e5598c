"""What a user reads after a mistake, in the last lines: what, which value, where, what to do."""

import re
import sys

import pytest

from tests.fix_datasource import read_plainly
from tests.fix_spark import without_code
from tests.scratch_store import ScratchStore
from zeh_spark.errors import OptionError
from zeh_spark.testing import publish, running_publisher


@pytest.fixture
def base():
    store = ScratchStore()
    for feed in ("orders", "others"):
        store.create(feed, 4)
        publish(store, feed, [{"i": i} for i in range(40)])
    with running_publisher(store) as base:
        yield base


@pytest.fixture
def fail_stream(stream, collected):
    """Run a stream that has to fail; gives our part of the error."""

    def fail(**options):
        with pytest.raises(Exception) as raised:
            collected.run(stream(**options).load())
        return ours(raised.value)

    return fail


def ours(error):
    """What our error says: once, without a traceback, and with the docs' address below it."""
    text = str(error)
    assert "Traceback" not in text and 'File "' not in text, text
    (found,) = re.findall(r"zeh_spark\.errors\.(.*)", text)
    if sys.version_info >= (3, 11):
        assert re.search(r"^See zeh-spark explain ", text, re.MULTILINE), text
    return without_code(found)


def test_a_feed_that_is_not_there_is_named(fail_stream, spark, base):
    """By streams and by batch reads. 404: check the address."""
    with pytest.raises(Exception) as raised:
        spark.read.format("zeroeventhub").load(f"{base}/nope").collect()

    for said in (fail_stream(url=f"{base}/nope"), ours(raised.value)):
        assert said.startswith(f"PublisherError: {base}/nope answered 404 unknown-feed: ")
        assert "check the feed's address" in said


def test_options_are_checked_when_a_query_is_made(spark, base):
    """Those that are unknown or wrong: before anything is read."""
    for options, said in [
        ({"partitionCont": "4"}, "unknown option 'partitioncont'; did you mean 'partitionCount'?"),
        ({"pollInterval": "1 day"}, "option 'pollInterval' must be a duration"),
    ]:
        with pytest.raises(Exception) as raised:
            given = {"url": f"{base}/orders", **options}
            spark.read.format("zeroeventhub").options(**given).load()
        assert f"OptionError: {said}" in ours(raised.value)


def test_options_of_the_other_kind_of_query_are_refused(fail_stream, base):
    """What a query cannot follow is not passed over: a read has no micro-batches."""
    ends = '{"0": "a", "1": "b", "2": "c", "3": "d"}'

    said = fail_stream(url=f"{base}/orders", endingCursors=ends)

    assert said.startswith("OptionError: option 'endingCursors' is for spark.read only")
    said = "'maxEventsPerTrigger' is for spark.readStream only.*'endingCursors' says where a read"
    with pytest.raises(OptionError, match=said):
        read_plainly(f"{base}/orders", maxEventsPerTrigger="10")


@pytest.mark.parametrize(
    ("cursors", "said"),
    [
        ('{"0": "_first"}', "has cursors for 1 partition .0., but .*0-3"),
        (
            '{"0": "gone", "1": "_first", "2": "_first", "3": "_first"}',
            "answered 400 malformed-cursor: cursor0 is 'gone'",
        ),
    ],
    ids=["of some partitions", "that the feed never gave"],
)
def test_cursors_that_do_not_fit_are_refused(base, cursors, said):
    """A partition must not be forgotten; the publisher's own words come through."""
    with pytest.raises(Exception, match=said):
        read_plainly(f"{base}/orders", startingCursors=cursors, fetch="driver")


def test_a_checkpoint_of_another_feed_is_refused(stream, collected, fail_stream, base):
    """Cursors of one feed mean nothing in another. The error names the way on for the same feed at
    another address. (Other numbers of partitions and other versions: test_stream_offsets.py.)
    """
    collected.run(stream(url=f"{base}/orders").load())

    other = fail_stream(url=f"{base}/others")
    moved = base.replace("127.0.0.1", "localhost")
    collected.run(stream(url=f"{moved}/orders", feedId=f"{base}/orders").load())

    assert other.startswith(f"CheckpointError: the checkpoint belongs to the feed '{base}/orders'")
    assert f"feedId='{base}/orders'" in other
    assert len(collected.rows) == 40
