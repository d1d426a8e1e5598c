"""Some events of a feed (`only`), as clients and runs of the source read them."""

import json
import re
from collections import Counter
from contextlib import closing

import pytest

from tests.cases import each_case
from tests.fix_raw_server import NO_IDENTITY, ok
from tests.patience import eventually
from zeh_spark.errors import OptionError, PublisherError, ReplayError
from zeh_spark.publish import Producer
from zeh_spark.publisher import Block, Feed
from zeh_spark.reading import reader
from zeh_spark.service.reads import pages
from zeh_spark.spark.source import prefetch
from zeh_spark.testing import running_publisher

ALL = "headers=_all&n=2&cursor0=_first&cursor1=_first"
PAID = '{"type":["paid"]}'
KINDS = ("paid", "open", "late", "päid")


@pytest.fixture
def orders(publisher):
    """A feed of 1,000 orders of four types in turn, in chunks of about ten."""
    with Producer(publisher.url, "shop") as producer:
        for number in range(0, 1_000, 20):
            with producer.batch() as batch:
                for i in range(number, number + 20):
                    batch.add(i, key=i // 4, headers={"type": KINDS[i % 4], "i": f"{i}"})
    return publisher


def wanted(*kinds, events=1_000):
    return Counter(i for i in range(events) if KINDS[i % 4] in kinds)


def numbers(lines):
    return Counter(line["data"] for line in lines if "data" in line)


@each_case(
    ("only", "kinds"),
    [
        (PAID, ["paid"]),
        ('{"type": ["paid", "p\\u00e4id"]}', ["paid", "päid"]),
        ('{"type":["nobody"]}', []),
        ('{"colour":["red"]}', []),
    ],
)
def test_an_answer_has_the_selected_events_and_says_so(orders, only, kinds):
    """ZE-13: they come with their own headers and numbers, and the cursors of all events."""
    every = orders.get(f"{ALL}&pagesizehint=1000").lines

    answer = orders.get(f"{ALL}&pagesizehint=1000&only={only}")

    assert json.loads(only) == json.loads(answer.headers["ZEH-Only"])
    assert wanted(*kinds) == numbers(answer.lines)
    assert [each for each in every if "cursor" in each] == [
        each for each in answer.lines if "cursor" in each
    ]
    assert all(each in every for each in answer.lines)
    assert answer.headers["Cache-Control"] == "no-store"


@each_case(("name",), [('say "type"',), ("a\\b",), ("two\nlines",), ("",), ("\x7f",), ("😀",)])
def test_a_header_of_any_name_can_be_selected(publisher, name):
    """Whatever the name is with which I published, I can read by it."""
    with Producer(publisher.url, "shop") as producer, producer.batch() as batch:
        for i in range(6):
            batch.add(i, headers={name: f"\x7f{i % 3}"})

    pages = reader(publisher.url, only=json.dumps({name: ["\x7f1"]}))

    assert [1, 4] == sorted(int(i) for page, _ in pages for i in page.column("data").to_pylist())


def test_the_hint_counts_the_selected_events(orders, monkeypatch):
    """A page has as many of them as I ask for, and the next page continues after them."""
    monkeypatch.setattr(pages, "_CHUNKS", 5)  # that are read at a time
    first = orders.get(f"{ALL}&pagesizehint=30&only={PAID}")
    cursors = "&".join(f"cursor{each}={at}" for each, at in first.cursors.items())
    rest = orders.get(f"headers=_all&n=2&{cursors}&pagesizehint=1000&only={PAID}")

    assert 30 <= numbers(first.lines).total() < 1000 // 4
    assert wanted("paid") == numbers(first.lines) + numbers(rest.lines)


def test_a_page_ends_after_much_was_read(publisher):
    """None of 80 MB is selected, so two pages lead to the only one that is."""
    event = {"text": "x" * 62_500}
    with Producer(publisher.url, "shop") as producer:
        for number in range(8):
            with producer.batch() as batch:
                for each in range(160):
                    batch.add(event, key=0, headers={"type": "big", "at": f"{number}-{each}"})
        with producer.batch() as batch:
            batch.add(1, key=0, headers={"type": "paid"})
    partition = next(
        each for each in (0, 1) if publisher.get(f"n=2&cursor{each}=_first&pagesizehint=1").data
    )

    first = publisher.get(f"n=2&cursor{partition}=_first&only={PAID}")
    second = publisher.get(f"n=2&cursor{partition}={first.cursors[partition]}&only={PAID}")

    assert ([], [1]) == (first.data, second.data)
    assert 64 <= len(first.lines) < 80  # cursors after chunks of a megabyte


def test_readers_of_other_selections_share_no_answers(orders):
    """What is kept for one is not served to another."""
    for kinds in (["paid"], ["open"], ["paid", "open"], ["paid"]):
        only = json.dumps({"type": kinds})
        assert wanted(*kinds) == numbers(orders.get(f"{ALL}&pagesizehint=1000&only={only}").lines)
    assert 1_000 == numbers(orders.get(f"{ALL}&pagesizehint=1000").lines).total()


@each_case(
    ("only", "said"),
    [
        ("paid", "must be JSON with one header and a list of its values"),
        ("{}", "must be JSON with one header"),
        ('{"a":["1"],"b":["2"]}', "must be JSON with one header"),
        ('{"type":["paid"],"type":["open"]}', "must be JSON with one header"),
        ('{"type":"paid"}', "must be JSON with one header"),
        ('{"type":[1]}', "must be JSON with one header"),
        ("[" * 100_000, "must be JSON with one header"),
        ('{"type":[]}', "must have 1 to 16 different values, and has 0"),
        ('{"type":["a","a"]}', "must have 1 to 16 different values, and has 2"),
        (json.dumps({"t": [f"{i}" for i in range(17)]}), "different values, and has 17"),
        (json.dumps({"t": ["x" * 1_000]}), "has 1,010 characters in ASCII; at most 1,000"),
        ('{"zeh-sequence":["1"]}', "zeh-sequence is added by the publisher; of its headers only"),
    ],
)
def test_what_selects_nothing_certain_is_refused_on_both_sides(orders, only, said):
    """By the option before anything is asked, and by the publisher, with what is allowed."""
    with pytest.raises(OptionError, match="option 'only'") as refused:
        reader(orders.url, only=only)
    assert said in str(refused.value)
    if len(only) < 2_000:
        answer = orders.get(f"{ALL}&only={only}")
        assert (400, True) == (answer.status, said in answer.lines[0]["detail"])


class Numbers(Feed):
    """A feed of a service's own."""

    partitions = 1

    def page(self, asked, n, hint, headers):
        yield Block(0, b'{"partition":0,"headers":{"type":"open"},"data":1}\n', "1")

    def version(self):
        return 1


def test_a_feed_that_is_not_a_stores_says_that_it_gives_all_events():
    """I hear that the option is for stored feeds, instead of getting other events."""
    with running_publisher({"numbers": Numbers()}) as base:
        with pytest.raises(PublisherError, match="not a store's gives all events"):
            list(reader(f"{base}/numbers", only=PAID))


def test_a_publisher_that_ignores_the_parameter_is_refused(raw_server):
    """All of its events would come, and a row too many is as bad as one too few."""
    raw_server.discovery = NO_IDENTITY
    raw_server.respond = lambda _: ok(b'{"partition":0,"headers":{"type":"open"},"data":1}\n')

    with pytest.raises(OptionError, match="gives all events: its answer lacks the header ZEH-Only"):
        list(reader(raw_server.url, only=PAID, partition_count=1))


def test_a_reader_without_spark_reads_and_follows_them(orders):
    """Page by page, with cursors to go on from."""
    found, cursors = Counter(), None
    for page, after in reader(orders.url, only=PAID, page_size_hint=20):
        cursors = after
        found.update(int(each) for each in page.column("data").to_pylist())
    assert wanted("paid") == found

    orders.publish(1_000)
    assert [] == [page for page, _ in reader(orders.url, cursors, only=PAID) if page.num_rows]


def test_who_follows_them_is_not_told_that_all_was_read_before_it_was(orders, monkeypatch):
    """Each answer moves the cursors by a chunk, and more than a hundred have no selected event."""
    monkeypatch.setattr(pages, "SCAN_BYTES", 1)
    for number in range(1_000, 1_250):
        orders.publish(number)
    with Producer(orders.url, "shop") as producer, producer.batch() as batch:
        batch.add(-1, headers={"type": "rare"})

    with closing(reader(orders.url, only='{"type":["rare"]}', follow=True, wait="0")) as pages_read:
        page, _ = next(pages_read)

    assert ["-1"] == page.column("data").to_pylist()


@each_case(("finite",), [(True,), (False,)])
def test_a_run_reads_them_although_a_hundred_answers_have_none(orders, start, monkeypatch, finite):
    """The end is not where many answers in a row only move the cursor."""
    monkeypatch.setattr(pages, "SCAN_BYTES", 1)  # a chunk for each answer
    only = '{"i":["990","991","992","993","994","995","996","997","998","999"]}'

    run = start(url=orders.url, only=only, finite=finite)
    rows = run.to_the_end() if finite else run.until(10)

    assert [*range(990, 1_000)] == sorted(rows)


@each_case(("fetch",), [("driver",), ("executors",)])
def test_another_selection_waits_until_the_pending_batch_is_done(orders, start, fetch):
    """Else the batch that Spark repeats would have other rows than it had."""
    chosen = {"only": PAID} if fetch == "driver" else {"fetch": fetch}
    first = start(url=orders.url, finite=True, maxEventsPerTrigger="100", **chosen)
    rows = first.next()
    begun, end = first.start, first.offset
    other = '{"type":["open"]}'

    again = start(url=orders.url, finite=True, **chosen)
    assert rows == again.rows(begun, end)
    was = re.escape(chosen.get("only", "not set"))
    said = rf"planned with another option 'only' \(it was {was}, and is {re.escape(other)}\)"
    with pytest.raises(ReplayError, match=said):
        start(url=orders.url, finite=True, only=other).rows(begun, end)
    start(url=orders.url, finite=True, only=other, replay="accept").rows(begun, end)

    rest = start(url=orders.url, offset=end, finite=True, only=other).to_the_end()
    assert {"open"} == {KINDS[each % 4] for each in rest}
    assert len({*rest}) == len(rest)


def test_the_same_values_in_another_order_are_the_same_selection(orders, start):
    """A pending batch is repeated, because its rows are the same."""
    first = start(
        url=orders.url, finite=True, maxEventsPerTrigger="99", only='{"type":["paid","open"]}'
    )
    rows = first.next()

    again = start(url=orders.url, finite=True, only='{ "type": ["open", "paid"] }')

    assert rows == again.rows(first.start, first.offset)


def test_a_stream_moves_its_cursors_past_events_that_are_not_selected(orders, start, monkeypatch):
    """So that retention may remove those, although nothing that I read came for long."""
    monkeypatch.setattr(prefetch, "_ADVANCE_SECONDS", 0.5)
    run = start(url=orders.url, only='{"type":["nobody"]}')
    head = {
        str(each): at for each, at in orders.get("n=2&cursor0=_last&cursor1=_last").cursors.items()
    }

    def moved():
        assert not run.next()
        return {each: at["cursor"] for each, at in run.offset["partitions"].items()} == head

    eventually(moved)


def test_a_stream_does_not_tell_a_lag_that_it_cannot_know(orders, start):
    """How many of the unread events are selected is known once they were read."""
    run = start(url=orders.url, only=PAID, finite=True, maxEventsPerTrigger="10")
    assert run.next()
    told = run.reader.reportLatestOffset()
    assert told is None or told["eventsBehind"] is None
