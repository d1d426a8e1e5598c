"""What the console's pages show: escaped, cut, in parts, and as of now."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

import pytest
import requests

from tests.cases import each_case
from tests.fix_console import Site, site
from tests.fix_publish import Who, rows
from tests.patience import eventually
from tests.scratch_store import ScratchStore
from zeh_spark.publisher import create_app
from zeh_spark.service.app import telemetry_api
from zeh_spark.service.console import feed_facts
from zeh_spark.service.reads.feed import ChunkFeed
from zeh_spark.service.sql.log import SqlLog
from zeh_spark.service.store.interface import Retention
from zeh_spark.service.store.token_rights import ADMIN, Grant, Right
from zeh_spark.testing import publish, running_publisher
from zeh_spark.wire import dead_letters
from zeh_spark.wire.upload_format import StagedChunk, frame_of


@pytest.fixture
def console() -> Iterator[Site]:
    with site(orders=2) as found:
        yield found


HOSTILE = (
    '<script>alert("x")</script>',
    "</pre><img src=x onerror=alert(1)>",
    "\u202egnp.exe \u2066isolated\u2069 \u200bnothing",
    "{{ 7 * 7 }} {% raw %}",
    "\x00\x1b[31m",
)


def test_a_hostile_event_is_text(console):
    """Nothing in an event is interpreted, hidden, or turned around; a long one is cut off.

    The events of a batch are under one heading.
    """
    publish(console.store, "orders", [*HOSTILE, "A" * 60_000], partition=0)
    chunks = rows(b'"&lt;b&gt;"')
    token = console.token(*ADMIN)
    caller = console.caller("orders", token)
    caller.upload(Who(), chunks)
    assert caller.commit(Who(), chunks).status == 200

    page = console.get("/feeds/orders/partitions/0", token).text

    assert (page.count("<section>"), page.count('<article class="card event">')) == (7, 2)
    assert not re.search(r"<script|<img src=x|onerror=alert\(1\)>", page)
    assert "&lt;script&gt;alert" in page
    assert not re.search("[\u200b-\u200f\u202a-\u202e\u2066-\u2069\x00\x1b]", page)
    assert "\\u202egnp.exe" in page
    assert "{{ 7 * 7 }}" in page
    assert "&amp;lt;b&amp;gt;" in page
    assert len(page) < 40_000


def test_an_event_that_is_not_utf8_is_shown_all_the_same(console):
    """A store that was damaged, or that another program wrote, does not break the page."""
    line = b'{"partition":0,"headers":{"a":"\xff"},"data":"\xff\xfe"}\n'
    console.store.append("orders", [StagedChunk(0, 1, len(line), 0, frame_of(line))])

    page = console.get("/feeds/orders/partitions/0", console.token(*ADMIN))

    assert (page.status_code, "\\xff\\xfe" in page.text) == (200, True)


def test_hostile_names_are_text(console):
    """Consumers choose the names of their cursor sets."""
    name = '"><script>alert(1)</script>\u202e'
    console.store.save_cursors("orders", name, 1, {0: "0.00000000"})

    page = console.get("/feeds/orders", console.token(*ADMIN)).text

    assert "<script>" not in page
    assert "\u202e" not in page


@each_case("path", ["?named=", "/refusals?feed=", "/sign-in?back=/", "?after="])
def test_what_a_link_brings_is_not_echoed_with_hidden_characters(console, path):
    """A link that somebody sends me cannot turn a page around."""
    hidden = "x\u202egnp.exe\u2066\x9b\u200b"

    token = console.token(*ADMIN, name=f"ada{len(console.store.tokens())}")
    page = console.get(f"{path}{hidden}", token).text

    assert not re.search("[\u200b-\u200f\u202a-\u202e\u2066-\u2069\x00\x1b\x80-\x9f]", page)


def test_the_newest_events_come_first_with_their_numbers(console):
    for number in range(40):
        publish(console.store, "orders", [f"event-{number}"], partition=1)

    page = console.get("/feeds/orders/partitions/1", console.token(*ADMIN)).text

    assert re.findall(r"event-(\d+)", page) == [str(each) for each in range(39, 14, -1)]
    assert re.findall(r"Event (\d+),", page)[:2] == ["39", "38"]


def test_dead_letters_say_why_and_whose(console):
    long = dead_letters.letter("too long", "job", 3, {"data": "x" * 100_000})
    short = dead_letters.letter("not <JSON>", "job", 4, {"data": '{"a": NaN}', "key": "c-1"})
    token = console.token(*ADMIN)
    caller = console.caller("orders", token)
    for batch, each in enumerate((*dead_letters.cut(long), short)):
        assert caller.publish(Who(batch, "dead"), each).status == 200

    page = console.get("/feeds/orders/dead-letters", token).text
    feed = console.get("/feeds/orders", token).text

    assert "not &lt;JSON&gt;" in page
    assert "batch 4, key <code>&#34;c-1&#34;</code>" in page
    assert re.findall(r"Part (\d) of (\d)", page)[0] == ("4", "4")
    assert "/console/feeds/orders/dead-letters" in feed


def test_the_version_of_a_schema_is_shown(console):
    token = console.token(*ADMIN)
    assert "Schema of its events" not in console.get("/feeds/orders", token).text
    for document in (b"{}", b'{"type": "object"}'):
        console.store.set_schema("orders", document, compatible=False)

    assert "Schema of its events</dt><dd>version 2</dd>" in console.get("/feeds/orders", token).text


def test_removed_events_are_not_shown(console, monkeypatch):
    """Retention works at any moment, also between two reads of a page."""
    store, token = console.store, console.token(*ADMIN)
    for number in range(3):
        publish(store, "orders", [f"event-{number}"], partition=0)

    def while_pruned(what, _):
        if what == "frames":
            store.remove("orders", 2)

    monkeypatch.setattr(store, "before_read", while_pruned)
    pages = [console.get("/feeds/orders/partitions/0", token) for _ in range(2)]

    assert [200, 200] == [each.status_code for each in pages]
    found = [re.findall(r"event-(\d+)", each.text) for each in pages]
    assert [["2", "1", "0"], ["2"]] == found  # each is of one moment


def test_many_feeds_are_shown_in_pages(console):
    """Many feeds do not make a page of as many rows, and each is found by its name."""
    for number in range(120):
        console.store.create(f"feed-{number:04}", 1)
    token = console.token(*ADMIN)

    first = console.get(token=token).text
    second = console.get("?after=feed-0049", token).text
    one = console.get("?named=0077", token).text

    assert re.findall(r'rel="next"', first) == ['rel="next"']
    assert re.findall(r">(feed-\d+)</a>", first) == [f"feed-{each:04}" for each in range(50)]
    assert re.findall(r">(feed-\d+)</a>", second)[0] == "feed-0050"
    assert re.findall(r">(feed-\d+)</a>", one) == ["feed-0077"]


def test_partitions_producers_and_receipts_are_shown_in_pages(console):
    console.store.create("wide", 100)
    store = console.store
    for number in range(30):
        publish(store, "orders", [number])
    token = console.token(*ADMIN)
    caller = console.caller("wide", token)
    for number in range(25):
        who = Who(0, f"producer-{number:02}", n=100)
        assert caller.publish(who, "event").status == 200

    def numbers(path: str, pattern: str) -> list[int]:
        return [int(each) for each in re.findall(pattern, console.get(path, token).text)]

    partition, producer = r'href="[^"]*/partitions/(\d+)"', r">producer-(\d+)</a>"
    receipt = r'<th scope="row" class="num">(\d+)</th>'
    assert numbers("/feeds/wide", partition) == [*range(16)]
    assert numbers("/feeds/wide?partition=96", partition) == [96, 97, 98, 99]
    assert numbers("/feeds/wide", producer) == [*range(20)]
    assert numbers("/feeds/wide?producer=producer-19", producer) == [*range(20, 25)]
    assert numbers("/feeds/orders/producers/test", receipt) == [*range(29, 9, -1)]
    assert numbers("/feeds/orders/producers/test?below=11", receipt) == [*range(9, -1, -1)]


def test_rates_are_of_the_last_minutes(console):
    token = console.token(*ADMIN)
    caller = console.caller("orders", token)
    console.clock.behind = 120.0
    caller.publish(Who(), *range(7))
    eventually(lambda: "last hour: 7 events" in console.get(token=token).text)  # counted at the end
    console.clock.behind = 60.0

    page = console.get(token=token).text

    assert 'aria-label="Published to orders in the last hour: 7 events' in page
    assert re.findall(r'data-label="Published per minute" class="num">(\d+)<', page)[0] == "7"


def test_consumers_have_their_lag(console):
    publish(console.store, "orders", range(10), partition=0)
    console.store.save_cursors("orders", "warehouse", 2, {0: "0.00000000", 1: "0.00000000"})
    token = console.token(*ADMIN)

    assert re.search(r'data-label="Events behind" class="num">10<', console.get(token=token).text)
    assert re.search(
        r'data-label="Events behind" class="num">10<', console.get("/feeds/orders", token).text
    )


def test_the_lag_of_the_last_hour_is_a_line(console, monkeypatch):
    """Each look at the metrics or a page adds to it, whoever looks."""
    monkeypatch.setattr(telemetry_api, "GAUGE_SECONDS", -1.0)
    console.store.save_cursors("orders", "warehouse", 2, {0: "0.00000000", 1: "0.00000000"})
    token = console.token(*ADMIN)

    def scrape() -> None:
        headers = {"Authorization": f"Bearer {token}"}
        assert requests.get(f"{console.base}/metrics", headers=headers, timeout=30).ok

    for minutes_ago, events in ((20, 10), (10, 20), (0, 5)):
        console.clock.behind = 60.0 * minutes_ago
        publish(console.store, "orders", range(events), partition=0)
        scrape()

    said = "Events behind in the last hour: first 10, now 35, at most 35"
    assert [said in console.get(path, token).text for path in ("", "/feeds/orders")] == [True] * 2
    assert "not known yet" not in console.get("/feeds/orders", token).text


@each_case("path", ["?named=or", "/feeds/orders?partition=1&producer=a%26b", "/refusals"])
def test_a_page_loads_itself_again_only_if_its_visitor_wants_that(console, path):
    """A slow reader keeps the page. Pages with actions never reload."""
    token, again = console.token(*ADMIN, name=path.replace("/", "")), '<meta http-equiv="refresh"'
    before = console.get(path, token).text
    (on,) = re.findall(r'href="(\?[^"]*)">Refresh every 30 s<', before)
    page = path.partition("?")[0]

    refreshed = console.get(page + html.unescape(on), token).text
    (off,) = re.findall(r'href="(\?[^"]*)">Stop refreshing<', refreshed)
    after = console.get(page + html.unescape(off), token).text

    assert [again in each for each in (before, refreshed, after)] == [False, True, False]
    assert page + html.unescape(off) == (path if "?" in path else f"{path}?")
    assert again not in console.get("/feeds/orders/retention?refresh=on", token).text


def test_a_table_has_a_page_that_says_where_its_events_are():
    """The events of such a feed are rows of its service."""
    rows_of_a_service, store = ScratchStore(), ScratchStore()
    rows_of_a_service.create("ledger", 3)
    store.create("orders", 1)
    table = ChunkFeed(rows_of_a_service, "ledger")
    app = create_app(store, {"ledger": table}, console=True)
    with running_publisher(store, app) as base:
        listed = requests.get(f"{base}/console", timeout=30).text
        page = requests.get(f"{base}/console/feeds/ledger", timeout=30)
        events = requests.get(f"{base}/console/feeds/ledger/partitions/0", timeout=30)

    assert "3 partitions, a table" in listed
    assert (page.status_code, "zeh-spark tail URL/ledger" in page.text) == (200, True)
    assert events.status_code == 404


def test_no_page_reads_all_chunks_or_partitions(console, monkeypatch):
    """Pages stay fast with many feeds and partitions."""
    store, token, read = console.store, console.token(*ADMIN), []
    for number in range(60):
        store.create(f"feed-{number:04}", 32)
    store.create("wide", 1024)
    for number in range(100):
        publish(store, "wide", range(20), partition=number)

    def counted(log, statement, given, rows=SqlLog._rows):
        found = rows(log, statement, given)
        read.append(len(found))
        return found

    monkeypatch.setattr(SqlLog, "_rows", counted)
    for path in ("", "/feeds/wide", "/feeds/wide/partitions/7", "/feeds/wide/dead-letters"):
        assert console.get(path, token).status_code == 200

    assert 0 < sum(read) < 100  # there are 100 chunks and 1,024 partitions


def test_a_reader_sees_no_names_of_other_consumers(console):
    """Neither in the list of consumers, nor where the feed's retention is told."""
    console.store.set_retention("orders", Retention(readers=("secret-audit", "warehouse")))
    token = console.token(
        Grant(Right.READ, "orders"), Grant(Right.CONSUME, "orders", "warehouse"), name="reader"
    )

    page = console.get("/feeds/orders", token).text

    assert "what &#39;warehouse&#39; and 1 cursor set have not read yet" in page
    assert "secret-audit" not in page


def test_a_reader_sees_no_names_of_other_producers(console, monkeypatch):
    """Not in the link to the next part of a list of which the reader sees nothing, either."""
    monkeypatch.setattr(feed_facts, "_LOOKS", 2)
    monkeypatch.setattr(feed_facts, "_LOOKED_AT", 2)
    admin = console.caller("orders", console.token(*ADMIN))
    for name in ("acct-1", "acct-2", "acct-3", "acct-4", "acct-5"):
        assert admin.commit(Who(producer=name), []).status == 200
    token = console.token(Grant(Right.READ, "orders"), name="reader")

    pages = [console.get(f"/feeds/orders{query}", token).text for query in ("", "?producer=acct-1")]

    assert not re.search("acct-[2-5]", "".join(pages))
