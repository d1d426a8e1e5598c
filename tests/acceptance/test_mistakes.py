"""What a user reads after a mistake, in the last lines: what, which value, where, what to do."""

import re
import sys
import time

import pytest

from tests.fix_raw_server import NO_IDENTITY
from tests.fix_spark import without_code
from tests.scratch_store import ScratchStore
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

    def fail(schema=None, **options):
        with pytest.raises(Exception) as raised:
            reader = stream(**options)
            collected.run((reader.schema(schema) if schema else reader).load())
        return ours(raised.value)

    return fail


@pytest.fixture
def fail_batch(spark):
    def fail(schema=None, **options):
        with pytest.raises(Exception) as raised:
            reader = spark.read.format("zeroeventhub").options(**options)
            (reader.schema(schema) if schema else reader).load().collect()
        return ours(raised.value)

    return fail


@pytest.fixture(params=["stream", "batch"])
def fail(request, fail_stream, fail_batch):
    """Either of both: a read that has to fail."""
    return {"stream": fail_stream, "batch": fail_batch}[request.param]


def ours(error):
    """What our error says: once, without a traceback, and with the docs' address below it."""
    text = str(error)
    assert "Traceback" not in text and 'File "' not in text, text
    (found,) = re.findall(r"zeh_spark\.errors\.(.*)", text)
    if sys.version_info >= (3, 11):
        assert re.search(r"^See docs/operate/errors\.md#", text, re.MULTILINE), text
    return without_code(found)


def test_an_unknown_option_is_refused_with_the_likely_one(fail_stream, base):
    """A typing error in an option's name is not passed over."""
    assert (
        "OptionError: unknown option 'partitioncont'; did you mean 'partitionCount'?"
        in fail_stream(url=f"{base}/orders", partitionCont="4")
    )


def test_a_wrong_value_is_refused_with_what_is_allowed(fail_batch, base):
    """The message has the option, what it takes and what it got."""
    assert fail_batch(url=f"{base}/orders", pollInterval="1 day").startswith(
        "OptionError: option 'pollInterval' must be a duration"
    )


def test_a_missing_url_is_named(fail_batch):
    """Without an address there is nothing to read."""
    assert fail_batch().startswith("OptionError: option 'url' is missing")


def test_a_feed_that_is_not_there_is_named(fail, base):
    """404: check the address."""
    said = fail(url=f"{base}/nope")

    assert said.startswith(f"PublisherError: {base}/nope answered 404 unknown-feed: ")
    assert "check the feed's address" in said


def test_a_publisher_that_does_not_answer_is_named(fail, raw_server):
    """A closed port: the address, the reason and the option that says how long to try."""
    url = raw_server.url
    raw_server.close()

    said = fail(url=url, retryTimeout="1s")

    assert said.startswith(f"UnavailableError: the publisher of {url} does not answer")
    assert "Connection refused" in said
    assert "retryTimeout" in said


@pytest.mark.slow
def test_a_closed_port_is_told_within_seconds(fail, raw_server):
    """Without any option, at the first request of a query."""
    url = raw_server.url
    raw_server.close()
    begun = time.monotonic()

    said = fail(url=url)

    assert "there is no connection" in said and "Is the publisher running?" in said, said
    assert time.monotonic() - begun < 60  # retryTimeout is 120 s


def test_a_schema_with_other_columns_is_refused(fail, base):
    """The source's columns are fixed; types for `data` come after it."""
    said = fail(schema="id INT, data STRING", url=f"{base}/orders")

    assert said.startswith("OptionError: the schema's column 'id:int' is not one of this source's")
    assert "zeh_spark.parsed" in said


def test_a_stream_has_no_ending_cursors(fail_stream, base):
    """An option that a stream cannot follow is not passed over."""
    ends = '{"0": "a", "1": "b", "2": "c", "3": "d"}'

    said = fail_stream(url=f"{base}/orders", endingCursors=ends)

    assert said.startswith("OptionError: option 'endingCursors' is for spark.read only")


def test_a_read_has_no_micro_batches(fail_batch, base):
    """maxEventsPerTrigger would let me believe that it reads so many."""
    said = fail_batch(url=f"{base}/orders", maxEventsPerTrigger="10")

    assert said.startswith("OptionError: option 'maxEventsPerTrigger' is for spark.readStream only")
    assert "'endingCursors' says where a read ends" in said


def test_cursors_for_some_partitions_only_are_refused(fail_stream, base):
    """A partition must not be forgotten."""
    said = fail_stream(url=f"{base}/orders", startingCursors='{"0": "_first"}')

    assert "has cursors for 1 partition, but" in said
    assert "0 to 3" in said


def test_a_cursor_that_the_feed_never_gave_is_refused(fail_stream, base):
    """The publisher's own words come through."""
    cursors = '{"0": "gone", "1": "_first", "2": "_first", "3": "_first"}'

    assert "answered 400 malformed-cursor: cursor0 is 'gone'" in fail_stream(
        url=f"{base}/orders", startingCursors=cursors
    )


def test_a_checkpoint_of_another_feed_is_refused(stream, collected, fail_stream, base):
    """Cursors of one feed mean nothing in another."""
    collected.run(stream(url=f"{base}/orders").load())

    said = fail_stream(url=f"{base}/others")

    assert said.startswith(f"CheckpointError: the checkpoint belongs to the feed '{base}/orders'")
    assert f"feedId='{base}/orders'" in said


def test_a_feed_at_another_address_continues_with_its_id(stream, collected, base):
    """The way on that the error names."""
    collected.run(stream(url=f"{base}/orders").load())
    other = base.replace("127.0.0.1", "localhost")

    collected.run(stream(url=f"{other}/orders", feedId=f"{base}/orders").load())

    assert len(collected.rows) == 40


def test_another_partition_count_is_refused(stream, collected, fail_stream, base):
    """Cursors of 4 partitions do not fit 8."""
    collected.run(stream(url=f"{base}/orders").load())

    said = fail_stream(url=f"{base}/orders", partitionCount="8")

    assert said.startswith("CheckpointError: the checkpoint has 4 partitions")


def test_a_newer_checkpoint_is_refused(stream, collected, fail_stream, base):
    """A checkpoint of a later version is not guessed at."""
    collected.run(stream(url=f"{base}/orders").load())
    offsets = collected.folder / "checkpoint" / "offsets"
    log = offsets / "0"
    log.write_text(log.read_text().replace('"version": 2', '"version": 4'))
    (offsets / ".0.crc").unlink()

    assert "an offset of format 4" in fail_stream(url=f"{base}/orders")


def test_an_unwritable_staging_location_is_refused(fail_stream, base):
    """Before the first batch, not after a crash."""
    said = fail_stream(url=f"{base}/orders", stagingLocation="/proc/staging")

    assert said.startswith(
        "StagingError: option 'stagingLocation': cannot write to '/proc/staging'"
    )


def test_lines_that_are_no_events_stop_the_query(fail_batch, raw_server):
    """NaN is called by its name; the line is shown."""
    raw_server.respond, raw_server.discovery = feed_with_nan, NO_IDENTITY

    said = fail_batch(url=raw_server.url, partitionCount="1")

    assert "NaN is not JSON" in said
    assert '{"data":NaN}' in said


def test_lines_that_are_no_events_can_be_kept_aside(spark, raw_server):
    """PERMISSIVE puts them into the corrupt-record column."""
    raw_server.respond, raw_server.discovery = feed_with_nan, NO_IDENTITY
    frame = (
        spark.read.format("zeroeventhub")
        .option("mode", "PERMISSIVE")
        .option("partitionCount", 1)
        .load(raw_server.url)
    )

    rows = [tuple(row) for row in frame.select("data", "_corrupt_record").collect()]

    assert rows == [("1", None), (None, '{"data":NaN}'), ("3", None)]


def feed_with_nan(request):
    from tests.fix_raw_server import ok

    if request.query["cursor0"] != "_first":
        return ok(b'{"partition":0,"cursor":"c"}\n')
    return ok(b'{"data":1}\n{"data":NaN}\n{"data":3}\n{"partition":0,"cursor":"c"}\n')
