"""How far the readers of a table are behind: in pages, a stream, metrics, the console, commands."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import requests

from tests.fix_cli import call
from tests.fix_metrics import Scrape
from tests.fix_stream import Run
from tests.fix_table import Database, insert, prepared, read
from tests.integration.test_stream_identity import first_batch
from tests.patience import PATIENCE
from zeh_spark.errors import StoreError
from zeh_spark.publisher import create_app
from zeh_spark.service.outbox import lag, postgresql, sqlite
from zeh_spark.service.telemetry.lag import TableLook
from zeh_spark.service.telemetry.store_gauges import StoreGauges
from zeh_spark.testing import running_publisher
from zeh_spark.wire.direct_reads import PartitionLag
from zeh_spark.wire.page_headers import LAG, TELL, Standing, parse_fields
from zeh_spark.wire.partitioning import partition_of

HOUR = 3600
NAMED = [("p", None), (None, "p")]
"""A column with the partition; and a column with a key, of which SQLite has no index."""


@dataclass
class Outbox:
    """A table with two partitions, which is served; `url` is that of its feed."""

    database: Database
    url: str = ""

    def write(self, *partitions: int, ago: float = 0) -> None:
        """Rows of these partitions, or keys."""
        now = "now()" if self.database.kind == "postgresql" else "'now'"
        since = f"{now} - interval '{ago} s'" if now == "now()" else f"{now}, '-{ago} seconds'"
        written = since if now == "now()" else f"strftime('%Y-%m-%dT%H:%M:%fZ', {since})"
        for each in partitions:
            self.database.execute(
                f"INSERT INTO outbox (p, written, data) VALUES ({each}, {written}, '{each}')"
            )

    def standing(self, query: str) -> Standing:
        answer = requests.get(f"{self.url}?{query}", headers={TELL: "1"}, timeout=PATIENCE)
        assert 200 == answer.status_code, answer.text
        return parse_fields(answer.headers)

    def cursors(self, query: str) -> dict[int, str]:
        """The last cursor of each partition of an answer."""
        lines = map(json.loads, requests.get(f"{self.url}?{query}", timeout=PATIENCE).text.split())
        return {each["partition"]: each["cursor"] for each in lines if "cursor" in each}


def columns(database: Database) -> str:
    kind = "timestamptz" if database.kind == "postgresql" else "TEXT"
    return f"p integer NOT NULL, written {kind}, data json"


Serve = Callable[..., Outbox]


@pytest.fixture
def serve(database: Database) -> Iterator[Serve]:
    """Serves a new table, by default by its column with partitions, and with times."""
    opened = []

    def served(*, ddl: dict[str, object] | None = None, **table: object) -> Outbox:
        given = {"partition": "p", "partitions": 2, "time": "written", **table}
        feed = database.served(columns(database), **given)
        database.apply(feed.ddl(**(ddl or {})))
        server = running_publisher({}, create_app({"orders": feed}, console=True))
        opened.append(server)
        return Outbox(database, f"{server.__enter__()}/orders")

    yield served
    for each in opened:
        each.__exit__(None, None, None)


@pytest.mark.parametrize(("partition", "partition_by"), NAMED)
def test_a_page_tells_how_far_its_reader_is_behind(
    serve: Serve, partition: str | None, partition_by: str | None
) -> None:
    """Rows and their age after my cursors, those of the page included; and the newest row."""
    outbox = serve(partition=partition, partition_by=partition_by)
    outbox.write(0, 1, 0, ago=HOUR)
    outbox.write(0)

    both = outbox.standing("n=1&cursor0=_first&pagesizehint=1")
    ends = outbox.cursors("n=2&cursor0=_first&cursor1=_first")
    at_end = outbox.standing("n=2&" + "&".join(f"cursor{p}={at}" for p, at in ends.items()))
    last = outbox.standing(f"n=2&cursor0={both.head}&cursor1=_last")

    assert both.lags and 4 == both.lags["0"].events
    assert both.lags["0"].ms and 0 <= both.lags["0"].ms - 1000 * HOUR < 1000 * PATIENCE
    nothing = dict.fromkeys("01", PartitionLag(0, 0))
    assert (nothing, nothing) == (at_end.lags, last.lags)
    assert both.head in ends.values()


@pytest.mark.parametrize(("partition", "partition_by"), NAMED)
def test_the_end_of_a_partition_is_its_own_last_row(
    serve: Serve, partition: str | None, partition_by: str | None
) -> None:
    """And not the newest row of all, which its readers never come to."""
    outbox = serve(partition=partition, partition_by=partition_by)
    outbox.write(0, 0, 1, 0, 1, 0)
    query = "n=2&cursor0={0}&cursor1={0}"
    assert outbox.cursors(query.format("_first")) == outbox.cursors(query.format("_last"))


def test_each_partition_counts_its_own_rows(serve: Serve) -> None:
    """Also a partition that has none, and one that only a larger n has."""
    outbox = serve()
    outbox.write(0, 0, 0)
    found = outbox.standing("n=4&cursor0=_first&cursor1=_first&cursor3=_first").lags or {}
    assert {"0": 3, "1": 0, "3": 0} == {each: lag.events for each, lag in found.items()}


@pytest.mark.parametrize(("partition", "partition_by"), NAMED)
def test_rows_are_counted_up_to_a_limit(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, partition: str | None, partition_by: str | None
) -> None:
    """Far behind, a page costs no more; that there may be more rows is told."""
    for module in (postgresql, sqlite):
        monkeypatch.setattr(module, "COUNTED", 3)
    outbox = serve(partition=partition, partition_by=partition_by, partitions=1)
    outbox.write(0, 0, 0, 0, 0)
    lag = (outbox.standing("n=1&cursor0=_first").lags or {})["0"]
    assert (3, True) == (lag.events, lag.more)


def unknown_behind(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> tuple[Outbox, int]:
    """A table in which rows of another key stand before an old one; and its partition."""
    monkeypatch.setattr(sqlite, "COUNTED", 3)
    outbox = serve(partition=None, partition_by="p", ddl={"cursorsets": True})
    mine, *_ = [each for each in range(9) if partition_of(str(each), 2) != partition_of("0", 2)]
    outbox.write(0, 0, 0, mine, ago=HOUR)
    return outbox, partition_of(str(mine), 2)


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_what_stands_behind_the_counted_rows_is_unknown(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages, metrics, the console and commands do not show an age of 0 s for it."""
    outbox, mine = unknown_behind(serve, monkeypatch)
    query = f"n=2&cursor{mine}=_first"
    requests.get(f"{outbox.url}?{query}&pagesizehint=1&cursorset=w", timeout=PATIENCE)
    found = outbox.standing(query).lags
    base = outbox.url.rpartition("/")[0]
    console = requests.get(
        f"{base}/console/feeds/orders", headers={"Accept": "text/html"}, timeout=PATIENCE
    )
    begin = outbox.cursors("n=2&cursor0=_first&cursor1=_first&pagesizehint=0")
    checkpoint(tmp_path, outbox.url, {mine: begin[mine], 1 - mine: begin[1 - mine]})

    assert {str(mine): PartitionLag(0, None, more=True)} == found
    assert "zeh_consumer_lag_events" in Scrape(base).names
    assert "zeh_consumer_lag_seconds" not in Scrape(base).names
    assert "time not known" in console.text
    said = call("lag", outbox.url, "--cursorset", "w").stdout
    assert "At least 0 events unread after the positions of 'w'." in said
    document = json.loads(call("lag", outbox.url, "--checkpoint", str(tmp_path), "--json").stdout)
    assert (3, None) == (document["eventsBehind"]["total"], document["secondsBehind"])


def test_without_a_column_with_times_the_age_is_not_known(serve: Serve) -> None:
    """It is never 0 while rows are unread."""
    outbox = serve(time=None)
    outbox.write(0)
    lags = outbox.standing("n=2&cursor0=_first&cursor1=_first").lags
    assert {"0": PartitionLag(1, None), "1": PartitionLag(0, 0)} == lags


def test_only_who_asks_is_told(serve: Serve) -> None:
    """Other readers cost nothing more than their page."""
    answer = requests.get(f"{serve().url}?n=1&cursor0=_first", timeout=PATIENCE)
    assert LAG not in answer.headers


def test_a_count_reads_no_more_of_the_table_than_it_counts(
    postgresql_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the size of the table, and however many partitions it has: PostgreSQL reads along
    the index, and stops.
    """
    monkeypatch.setattr(postgresql, "COUNTED", 10)
    feed = postgresql_database.served(
        columns(postgresql_database), partition_by="p", partitions=2, time="written"
    )
    postgresql_database.execute(
        "INSERT INTO outbox (p, data) SELECT i, '1' FROM generate_series(1, 20000) i"
    )
    postgresql_database.execute("ANALYZE outbox")
    seen = {}

    def plan(connection: object) -> None:
        class Explaining:
            def exec_driver_sql(self, statement: str) -> list[tuple[int, int, None]]:
                found = connection.exec_driver_sql(  # type: ignore[attr-defined]
                    f"EXPLAIN (ANALYZE, FORMAT JSON, TIMING OFF) {statement}"
                )
                seen["plan"] = found.scalar()
                return []

        both = {0: {0: None, 1: None}}
        feed._connection.statements().unread(Explaining(), both)  # type: ignore[arg-type]

    feed._connection.run(plan)
    scans = [each for each in nodes(seen["plan"][0]["Plan"]) if "Scan" in each["Node Type"]]
    assert ["Index"] * 2 == [each["Node Type"][:5] for each in scans]
    assert 10 == sum(each["Actual Rows"] for each in scans)


def nodes(plan: dict) -> Iterator[dict]:
    yield plan
    for each in plan.get("Plans", ()):
        yield from nodes(each)


def test_a_streams_progress_tells_the_lag(serve: Serve, start: Callable[..., Run]) -> None:
    """As it does for a feed of a store: rows and seconds for each partition."""
    outbox = serve()
    outbox.write(0, 0, 1, ago=HOUR)
    reader = start(url=outbox.url, maxEventsPerTrigger="2").reader
    _, end = first_batch(reader)
    read = sum(each.get("events", 0) for each in end["partitions"].values())
    told = reader.reportLatestOffset()
    assert 0 < read < 3
    assert 3 - read == told["eventsBehind"]["total"]
    assert HOUR <= told["secondsBehind"]["max"] < HOUR + PATIENCE
    assert {"0", "1"} == told["partitions"].keys()


def test_the_lag_of_consumers_is_exported(serve: Serve) -> None:
    """For the alerts: of readers that keep their positions here, with the newest row."""
    outbox = serve(ddl={"cursorsets": True})
    outbox.write(0, 1, ago=HOUR)
    requests.get(f"{outbox.url}?n=2&cursor0=_first&cursor1=_first&cursorset=w", timeout=PATIENCE)
    found = Scrape(outbox.url.rpartition("/")[0])
    mine = {"cursorset": "w", "n": "2"}
    assert 2 == found("zeh_consumer_lag_events", **mine)
    assert HOUR <= found("zeh_consumer_lag_seconds", **mine) < HOUR + PATIENCE
    assert 0 == found("zeh_consumer_lag_at_least", **mine)
    assert 2 == found("zeh_consumer_partitions", **mine) == found("zeh_feed_head")
    assert 0 == found("zeh_table_held_seconds")


def test_a_count_that_ended_early_is_told_everywhere(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number alone can stay below any threshold while the reader falls behind."""
    monkeypatch.setattr(postgresql, "COUNTED", 8)  # 2 of each partition
    monkeypatch.setattr(sqlite, "COUNTED", 2)
    outbox = serve(partitions=4, ddl={"cursorsets": True})
    outbox.write(0, 0, 0, 0, 0)
    base, query = outbox.url.rpartition("/")[0], "&".join(f"cursor{p}=_first" for p in range(4))
    requests.get(f"{outbox.url}?n=4&{query}&pagesizehint=1&cursorset=w", timeout=PATIENCE)

    found = Scrape(base)
    text = call("lag", outbox.url, "--cursorset", "w").stdout
    document = json.loads(call("lag", outbox.url, "--cursorset", "w", "--json").stdout)
    console = requests.get(f"{base}/console", headers={"Accept": "text/html"}, timeout=PATIENCE)

    assert 2 == found("zeh_consumer_lag_events", cursorset="w", n="4")
    assert 1 == found("zeh_consumer_lag_at_least", cursorset="w", n="4")
    assert "At least 2 events unread" in text
    assert {"total": 2, "atLeast": True} == document["eventsBehind"]
    assert 'data-label="Most events behind" class="num">≥ 2<' in console.text


def test_the_console_shows_the_table_and_its_consumers(serve: Serve) -> None:
    """What I look for first: the newest row, and who is behind."""
    outbox = serve(ddl={"cursorsets": True})
    outbox.write(0, 1, 1, ago=HOUR)
    requests.get(f"{outbox.url}?n=2&cursor0=_first&cursorset=warehouse", timeout=PATIENCE)
    base = outbox.url.rpartition("/")[0]
    pages = [
        requests.get(f"{base}/console{path}", headers={"Accept": "text/html"}, timeout=PATIENCE)
        for path in ("/feeds/orders", "")
    ]
    table, overview = [each.text for each in pages]
    assert "warehouse" in table and "1 of 2" in table and "<dd>3</dd>" in table
    assert "1 h ago" in table and "warehouse" in overview
    for page in pages:
        assert "Events behind, last hour" in page.text and "Refresh every 30 s" in page.text


def test_a_look_takes_no_metrics_away_before_it_fails(database: Database) -> None:
    """A scrape that does not wait for a slow look has what the last one found."""
    feed, seen = prepared(database), []

    def look() -> TableLook:
        seen.append(gauges.table("orders"))
        return feed.look()

    gauges = StoreGauges(None, dict, None, tables={"orders": look})
    found = []
    for _ in range(2):
        gauges.looks["orders"]()
        found.append(gauges.table("orders"))
    assert found[0] and [None, found[0]] == seen

    database.execute("DROP TABLE outbox")
    with pytest.raises(StoreError):
        gauges.looks["orders"]()
    assert gauges.table("orders") is None


def test_consumers_take_turns_if_counting_takes_long(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last one by name has its lag, too; between its turns it keeps the one of the last."""
    monkeypatch.setattr(lag, "SECONDS", 0.0)
    prepared(database, cursorsets=True)
    feed = database.feed(writes=True)
    at = read(feed, hint=1).cursors
    for name in "abc":
        feed.save_cursors(name, 1, at)

    looks = [feed.look().lags for _ in range(3)]
    insert(database, 4)
    later = [feed.look().lags for _ in range(3)]
    database.execute("DELETE FROM zeroeventhub_cursors WHERE cursorset = 'b'")

    assert ["a", "ab", "abc"] == ["".join(each.name for each in lags) for lags in looks]
    told = [[each.events for each in lags] for lags in later]
    assert [[3, 2, 2], [3, 3, 2], [3, 3, 3]] == told
    assert ["a", "c"] == [each.name for each in feed.look().lags]


def test_who_may_not_see_the_kept_cursors_still_sees_the_table(
    postgresql_database: Database, clerk: str
) -> None:
    """Its newest row, and what holds rows back."""
    prepared(postgresql_database, cursorsets=True, grant_to=clerk)
    postgresql_database.execute(f"REVOKE ALL ON zeroeventhub_cursors FROM {clerk}")
    found = postgresql_database.feed(role=clerk).look()
    assert (3, []) == (found.last and found.last.id, found.lags)


def checkpoint(folder: Path, url: str, cursors: dict[int, str]) -> None:
    """As a query of Spark leaves it behind after its first batch."""
    partitions = {
        str(each): {"cursor": at, "events": 1, "bytes": 1} for each, at in cursors.items()
    }
    offset = {
        "version": 3, "feed": url, "partitionCount": len(cursors), "partitions": partitions,
    }  # fmt: skip
    for log, text in (("commits", ""), ("offsets", f"v1\n{{}}\n{json.dumps(offset)}")):
        (folder / log).mkdir()
        (folder / log / "0").write_text(text)


def test_a_command_tells_the_lag_of_a_query(serve: Serve, tmp_path: Path) -> None:
    """By its checkpoint, without Spark, for people and for programs."""
    outbox = serve()
    outbox.write(0, 1)
    ends = outbox.cursors("n=2&cursor0=_first&cursor1=_first")
    checkpoint(tmp_path, outbox.url, ends)
    words = "lag", outbox.url, "--checkpoint", str(tmp_path)
    assert "Nothing is unread after batch 0." in call(*words).stdout
    outbox.write(0, 0, ago=HOUR)

    shown, document = call(*words).stdout, json.loads(call(*words, "--json").stdout)

    assert "2 events unread, the oldest for 3,6" in shown
    assert {"total": 2, "max": 2, "min": 0, "mean": 1.0} == document["eventsBehind"]
    assert HOUR <= document["secondsBehind"]["max"] < HOUR + PATIENCE


def test_a_command_says_if_there_may_be_more(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And leaves the age out if the table has no times."""
    for module in (postgresql, sqlite):
        monkeypatch.setattr(module, "COUNTED", 6)
    outbox = serve(time=None)
    ends = outbox.cursors("n=2&cursor0=_first&cursor1=_first")
    checkpoint(tmp_path, outbox.url, ends)
    outbox.write(0, 1, 0, 1, 0, 1, 0, 1)
    words = "lag", outbox.url, "--checkpoint", str(tmp_path)
    document = json.loads(call(*words, "--json").stdout)
    assert "At least 6 events unread after batch 0." in call(*words).stdout
    assert (True, None) == (document["eventsBehind"]["atLeast"], document["secondsBehind"])


def test_a_command_tells_the_lag_of_a_cursor_set(serve: Serve) -> None:
    """As for a feed of a store."""
    outbox = serve(ddl={"cursorsets": True}, time=None)
    outbox.write(0, 1)
    requests.get(f"{outbox.url}?n=2&cursor0=_first&cursor1=_last&cursorset=w", timeout=PATIENCE)
    done = call("lag", outbox.url, "--cursorset", "w")
    assert "1 event unread after the positions of 'w'." in done.stdout, done.stderr
    document = json.loads(call("lag", outbox.url, "--cursorset", "w", "--json").stdout)
    assert document["secondsBehind"] is None
