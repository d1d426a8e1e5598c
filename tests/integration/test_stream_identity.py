"""Which feed events come from: asked, kept in offsets, put among the headers."""

import json
import pickle

import pytest

from tests.fix_batch import batch_reader
from tests.fix_raw_server import NO_IDENTITY, refused
from tests.fix_stream import Feed, Log
from tests.patience import eventually
from zeh_spark.client.decoding.lines import Decoder
from zeh_spark.errors import CheckpointError, OptionError, PublisherError
from zeh_spark.wire.problems import URN as PROBLEM

A, B = "9f86d081884c7d65", "60303ae22b998861"
URL = "http://localhost:{}/feed/v1"
HEADERS = Decoder(("headers", "data"), "_corrupt_record", False)


class Stamped(Log):
    """Events whose `zeh-time` is their number."""

    def event(self, number, partition=0):
        headers = b'{"zeh-time":"%d"}' % number
        return b'{"partition":%d,"headers":%b,"data":%d}\n' % (partition, headers, number)


def tells(*epochs):
    """A publisher's answer without parameters; epochs are (id, time)."""
    document = {
        "type": f"{PROBLEM}partition-count-missing",
        "partitionCount": 1,
        "feed": {
            "id": epochs[-1][0].partition("~")[0],
            "epochs": [{"id": name, "time": time} for name, time in epochs],
        },
    }
    return refused(400, json.dumps(document))


COPY = tells((A, 0), (B, 3))
"""What a copy of the feed A tells, which became B."""


@pytest.fixture
def stamped(raw_server):
    """`stamped(count, answer)`: a feed whose publisher tells what the answer says."""

    def begin(count, answer=NO_IDENTITY, **more):
        raw_server.discovery = answer
        return Feed(raw_server, [Stamped(count, **more)])

    return begin


@pytest.fixture
def follow(start):
    """`follow(feed, …)`: a stream's reader."""
    return lambda feed, **given: start(feed, decoder=HEADERS, **given).reader


def feeds(reader, *between):
    """The `zeh-feed` of a batch's events."""
    return [
        dict(row["headers"]).get("zeh-feed")
        for partition in pickle.loads(pickle.dumps(reader.partitions(*between)))
        for batch in pickle.loads(pickle.dumps(reader)).read(partition)
        for row in batch.to_pylist()
    ]


def next_batch(reader, start):
    """The offset after the next events."""
    ends = [start]
    eventually(lambda: ends.append(reader.latestOffset(start)) or ends[-1] is not start)
    return json.loads(json.dumps(ends[-1]))


def first_batch(reader):
    start = reader.initialOffset()
    return start, json.loads(json.dumps(reader.latestOffset(start)))


@pytest.mark.parametrize(("given", "name"), [({}, URL), ({"feedId": "orders"}, "orders")])
def test_a_feed_without_an_identity_is_named_by_option_or_url(stamped, follow, given, name):
    """Other publishers' feeds work as before."""
    feed = stamped(2)
    reader = follow(feed, **given)

    start, end = first_batch(reader)

    assert [name.format(feed.server.port)] * 2 == feeds(reader, start, end)
    assert name.format(feed.server.port) == end["feed"] == end["id"]


@pytest.mark.parametrize(
    ("headers", "expected"),
    [("none", [None] * 2), ("type", [None] * 2), ("zeh-producer", [A] * 2), ("_all", [A] * 2)],
)
def test_only_who_asks_for_stamps_gets_the_feed(stamped, follow, headers, expected):
    """And the publisher is asked for what the option says, so a batch is repeated as it was."""
    feed = stamped(2, tells((A, 0)))
    reader = follow(feed, headers=headers)

    start, end = first_batch(reader)

    assert expected == feeds(reader, start, end)
    asked = {each.query.get("headers", "none") for each in feed.server.requests}
    assert {headers} == asked


def test_epochs_need_the_time_among_the_headers(stamped, follow):
    """Without it nobody could tell whose numbers an event has; the error says what to add."""
    reader = follow(stamped(2, tells((A, 0), (f"{A}~1", 1))), headers="zeh-producer,zeh-sequence")

    with pytest.raises(OptionError, match="Add zeh-time to 'headers'"):
        first_batch(reader)


@pytest.mark.parametrize("staged", [False, True])
def test_a_repeated_batch_has_the_same_ids(stamped, follow, tmp_path, staged):
    """The id of the epoch of their time; so it is after a restart, and with an epoch more."""
    given = {"stagingLocation": str(tmp_path)} if staged else {}
    feed = stamped(4, tells((A, 0), (f"{A}~1", 2)))
    first = follow(feed, **given)
    start, end = first_batch(first)
    before = feeds(first, start, end)
    feed.server.discovery = tells((A, 0), (f"{A}~1", 2), (f"{A}~2", 4))

    again = feeds(follow(feed, **given), start, end)

    assert [A, A, f"{A}~1", f"{A}~1"] == before == again
    assert A == end["id"]


def test_the_initial_offset_gets_the_id_with_the_first_events(stamped, follow):
    """Not before: Spark takes every other offset for news."""
    feed = stamped(0, tells((A, 0)))
    reader = follow(feed)
    initial = reader.initialOffset()

    unchanged = reader.latestOffset(initial)
    feed.logs[0].count = 3
    end = next_batch(reader, initial)

    assert initial is unchanged
    assert "id" not in initial
    assert A == end["id"]


@pytest.mark.parametrize(
    ("before", "after", "running", "expected"),
    [
        (tells((A, 0)), tells((A, 0), (f"{A}~1", 2)), True, [f"{A}~1", f"{A}~1", A]),
        (tells((A, 0)), COPY, False, [A, B, B]),
        (NO_IDENTITY, tells((A, 0)), True, [URL] * 3),
        (NO_IDENTITY, tells((A, 0)), False, [URL] * 3),
    ],
    ids=["an epoch begins", "a copy", "an upgrade while it runs", "an upgrade"],
)
def test_a_checkpoint_goes_on_with_its_feed(stamped, follow, before, after, running, expected):
    """The first events of an epoch that begins while the query runs have its id; the older ones of
    a copy keep the ids that they had. When a publisher is upgraded, and tells an id, the checkpoint
    keeps the name that it knows the feed by: to deduplication it would be another feed, whose
    events have not been seen.
    """
    feed = stamped(2, before)
    reader = follow(feed)
    _, end = first_batch(reader)
    feed.server.discovery = after
    feed.logs[0].count = 4
    reader = reader if running else follow(feed)

    later = next_batch(reader, end)

    names = [each.format(feed.server.port) for each in expected]
    assert names == [*feeds(reader, end, later), later["id"]]


@pytest.mark.parametrize(
    ("known", "now", "why"),
    [
        (tells((A, 0)), tells((B, 0)), f"{A}.* now serves another feed, '{B}'"),
        (tells((A, 0)), NO_IDENTITY, f"{A}.*sends no id, so it is another publisher"),
        (COPY, tells((A, 0)), f"{B}.* now serves another feed, '{A}'"),
    ],
    ids=["another feed", "no identity", "what it is a copy of"],
)
@pytest.mark.parametrize("when", ["running", "stopped", "pending"])
def test_a_checkpoint_is_not_read_on_from_another_feed(stamped, follow, known, now, why, when):
    """Whether it changes while the query runs, is stopped, or has a batch: nothing is taken."""
    feed = stamped(2, known)
    reader = follow(feed)
    start, end = first_batch(reader)
    feed.server.discovery = now
    feed.logs[0].count = 4

    with pytest.raises(CheckpointError, match=why) as caught:
        if when == "pending":
            feeds(follow(feed), start, end)
        next_batch(reader if when == "running" else follow(feed), end)
    assert end["id"] == caught.value.expected != caught.value.got


def test_what_was_taken_comes_again_when_the_identity_could_not_be_asked(stamped, follow):
    """A failure between fetching and the offset loses nothing."""
    feed = stamped(2, tells((A, 0)))
    reader = follow(feed, retryTimeout="0s")
    _, end = first_batch(reader)
    feed.logs[0].count = 4
    eventually(lambda: reader.reportLatestOffset()["readyEvents"] == 2)
    feed.server.discovery = refused(503, "maintenance")
    with pytest.raises(Exception, match="maintenance"):
        reader.latestOffset(end)
    feed.server.discovery = tells((A, 0))

    assert 2 == next_batch(reader, end)["partitions"]["0"]["events"]


# Batch queries


def batch(feed):
    return batch_reader(feed.server.url, HEADERS, retryTimeout="1s", partitionCount="1")


def test_a_batch_querys_events_say_which_feed_they_come_from(stamped):
    """As a stream's do."""
    reader = batch(stamped(4, tells((A, 0), (f"{A}~1", 2))))

    assert [A, A, f"{A}~1", f"{A}~1"] == feeds(reader)


def test_an_epoch_that_begins_under_a_batch_query_stops_it(stamped):
    """Its tasks knew the epochs of the beginning; a task that fails delivers nothing."""
    feed = stamped(4, tells((A, 0)))
    reader = batch(feed)
    (task,) = reader.partitions()
    feed.server.discovery = tells((A, 0), (f"{A}~1", 2))

    with pytest.raises(PublisherError, match=f"{A}~1.*Read again"):
        list(reader.read(task))


def test_a_reader_takes_no_address_and_no_secret_to_its_tasks(stamped, follow):
    """Executors decode. Where the feed has an id, nothing of the URL reaches them."""
    feed = stamped(2, tells((A, 0)))
    secrets = {"token": "hush-1", "http.secret.header.X-Key": "hush-2"}
    reader = follow(feed, url=f"{feed.server.url}?key=hush-3", **secrets)
    start, end = first_batch(reader)

    travelling = pickle.dumps((reader, reader.partitions(start, end)))

    assert not [each for each in (b"hush", b"localhost") if each in travelling]
