"""A service's own table as a feed: how fast it is read, how far in, and how soon; on PostgreSQL
with `fsync`. The table is the one that `zeh-spark ddl` proposes.
"""

from __future__ import annotations

import http.client
import json
import random
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import msgspec
import psycopg

from benchmarks import stores
from benchmarks.feeds import PARTITIONS, served
from benchmarks.rows import Row, ratio
from tests import postgresql
from zeh_spark.publisher import SqlTableFeed
from zeh_spark.service.app.config import FeedConfig, engine_of, table_feed
from zeh_spark.service.app.rendering import body
from zeh_spark.service.outbox.postgresql_ddl import INSERTS
from zeh_spark.service.telemetry.exchange import Tally
from zeh_spark.wire import wire
from zeh_spark.wire.served_lines import renderer

PAGE = 10_000
COPY = "COPY (SELECT tx, id, order_id, type, body FROM outbox ORDER BY tx, id) TO STDOUT"

ORDER = """jsonb_build_object(
    'order', g % 100000, 'customer', 'c-' || g % 5003, 'amount', g % 9973 / 100.0,
    'placed', timestamptz '2026-11-01' + g * interval '1 s', 'lines', jsonb_build_array(
        jsonb_build_object('article', 'a-' || g % 811, 'pieces', g % 7),
        jsonb_build_object('article', 'a-' || g % 613, 'pieces', g % 5)))"""
"""About 200 bytes, as row g has it."""
SMALL = "jsonb_build_object('g', g)"

Fetch = Callable[[int, int, str], bytes]
"""A page: of a reader's n and partition, behind a cursor."""


@dataclass(frozen=True)
class Outbox:
    """A table in a database of its own."""

    config: FeedConfig
    address: str

    def execute(self, statement: str) -> None:
        with psycopg.connect(self.address, autocommit=True) as connection:
            connection.execute(statement)  # type: ignore[call-overload]

    @contextmanager
    def feed(self) -> Iterator[SqlTableFeed]:
        engine = engine_of(self.config)
        try:
            with closing(table_feed(self.config, engine, "orders")) as feed:
                yield feed
        finally:
            engine.dispose()

    def mend(self) -> None:
        """Give the table what it lacks; where there is none, itself first."""
        with self.feed() as feed:
            for statement in feed.ddl(notify=True):
                self.execute(statement)

    def fill(self, first: int, last: int, value: str, each: int) -> None:
        """Rows first to last, as transactions of so many rows would have left them."""
        self.execute(
            f"INSERT INTO outbox (tx, order_id, type, body)"
            f" SELECT g / {each}, 'order-' || g % 100000,"
            f" (ARRAY['placed', 'paid', 'sent'])[1 + g % 3], {value}"
            f" FROM generate_series({first}, {last}) AS g"
        )

    @contextmanager
    def serving(self, folder: Path) -> Iterator[str]:
        """`zeh-spark serve`; gives the feed's URL."""
        file = folder / "publisher.toml"
        given = msgspec.structs.asdict(self.config).items()
        settings = [f"{name} = {json.dumps(value)}" for name, value in given if value is not None]
        file.write_text("\n".join(["[feeds.orders]", *settings]))
        with served(["--config", str(file)], "orders") as (url, _):
            yield url


def outbox(server: postgresql.Server, transactions: int) -> Outbox:
    """An empty one, on a server that has already had so many transactions."""
    url = server.url(server.create_database())
    config = FeedConfig(
        url, "outbox", "body", headers=["type"], partition_by="order_id", partitions=PARTITIONS
    )
    table = Outbox(config, url.replace("+psycopg", ""))
    table.mend()
    table.execute(
        f"DO $$ BEGIN FOR each IN 1..{transactions} LOOP"
        f" PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$"
    )
    return table


def filled(server: postgresql.Server, rows: int) -> Outbox:
    table = outbox(server, rows // 10)
    table.fill(1, rows, ORDER, 10)
    table.mend()
    table.execute("VACUUM ANALYZE outbox")
    return table


def copied(table: Outbox, rows: int) -> float:
    """Rows per second of a bare COPY of the table, in order."""
    with psycopg.connect(table.address) as connection, connection.cursor() as cursor:
        began = time.perf_counter()
        with cursor.copy(COPY) as copy:
            found = sum(1 for _ in copy)
        return rate(found, rows, began)


def in_process(table: Outbox, rows: int, n: int) -> float:
    """Rows per second of pages as they are served, without a publisher; partition by partition."""
    with table.feed() as feed:
        feed.check()
        began = time.perf_counter()
        found = sum(drained(pages_of(feed), n, each) for each in range(n))
        return rate(found, rows, began)


def over_http(url: str, rows: int, at_once: int) -> float:
    """The same from a publisher, to clients that only receive."""

    def read(partition: int) -> int:
        with closing(connection(url)) as open_connection:
            return drained(pages_at(open_connection, url), PARTITIONS, partition)

    with ThreadPoolExecutor(at_once) as pool:
        began = time.perf_counter()
        return rate(sum(pool.map(read, range(PARTITIONS))), rows, began)


def rate(found: int, rows: int, began: float) -> float:
    assert found == rows, f"{found} rows, of {rows}"
    return rows / (time.perf_counter() - began)


def drained(fetch: Fetch, n: int, partition: int) -> int:
    """How many rows there are."""
    rows, found, cursor = 0, PAGE, wire.FIRST
    while found == PAGE:
        page = fetch(n, partition, cursor)
        found, cursor = page.count(b'"headers":{'), last_cursor(page)
        rows += found
    return rows


def last_cursor(page: bytes) -> str:
    return page[page.rindex(b'"cursor":"') + 10 : page.rindex(b'"}')].decode()


def pages_of(feed: SqlTableFeed, hint: int = PAGE) -> Fetch:
    render = renderer((wire.ALL_HEADERS,))

    def fetch(n: int, partition: int, cursor: str) -> bytes:
        return b"".join(body(feed.page({partition: cursor}, n, hint), n, render, Tally()))

    return fetch


def connection(url: str) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(urlsplit(url).netloc, timeout=120)


def pages_at(open_connection: http.client.HTTPConnection, url: str, **more: object) -> Fetch:
    path = urlsplit(url).path

    def fetch(n: int, partition: int, cursor: str) -> bytes:
        asked = {"n": n, f"cursor{partition}": cursor, "headers": wire.ALL_HEADERS, **more}
        open_connection.request("GET", f"{path}?{urlencode({'pagesizehint': PAGE, **asked})}")
        response = open_connection.getresponse()
        page = response.read()
        assert response.status == 200, page
        return page

    return fetch


def far_in(server: postgresql.Server, rows: int, times: int = 200) -> list[float]:
    """Seconds of pages of 1,000 rows: at the beginning, behind 1,000 rows, and behind `rows`; in
    turn, medians.
    """
    table = outbox(server, rows // 100)
    table.fill(1, rows, SMALL, 100)
    table.mend()
    with table.feed() as feed:
        fetch = pages_of(feed, 1000)
        second, last = last_cursor(fetch(1, 0, wire.FIRST)), last_cursor(fetch(1, 0, wire.LAST))
        table.fill(rows + 1, rows + 1000, SMALL, 100)
        table.execute("VACUUM ANALYZE outbox")
        cursors = (wire.FIRST, second, last)
        seconds: tuple[list[float], ...] = ([], [], [])
        for _ in range(times):
            for cursor, found in zip(cursors, seconds, strict=True):
                began = time.perf_counter()
                page = fetch(1, 0, cursor)
                found.append(time.perf_counter() - began)
                assert page.count(b'"headers":{') == 1000, cursor
    return [statistics.median(found) for found in seconds]


def delays(table: Outbox, folder: Path, *, notify: bool, times: int = 50) -> tuple[float, float]:
    """Seconds from the commit of a row to the answer of a reader that waits for it: median, and
    95th percentile.
    """
    if not notify:
        table.execute(f"DROP TRIGGER {INSERTS} ON outbox")
    found = []
    with table.serving(folder) as url, closing(connection(url)) as reader:
        fetch = pages_at(reader, url, wait=10)
        cursor = last_cursor(pages_at(reader, url)(1, 0, wire.LAST))
        with (
            psycopg.connect(table.address, autocommit=True) as service,
            ThreadPoolExecutor(1) as pool,
        ):
            for number in range(times + 1):
                answer = pool.submit(answered, fetch, cursor)
                time.sleep(0.2 + random.random() / 5)  # it waits, whatever the phase of who looks
                service.execute(
                    "INSERT INTO outbox (order_id, type, body) VALUES (%s, 'placed', '{}')",
                    [f"order-{number}"],
                )
                committed = time.perf_counter()
                arrived, cursor = answer.result()
                if number:  # the first warms up
                    found.append(arrived - committed)
    return statistics.median(found), sorted(found)[times * 95 // 100]


def answered(fetch: Fetch, cursor: str) -> tuple[float, str]:
    """When there was an answer with a row, and the cursor behind it."""
    page = fetch(1, 0, cursor)
    arrived = time.perf_counter()
    assert page.count(b'"headers":{') == 1, page
    return arrived, last_cursor(page)


def own_tables(work: Path, events: int) -> Iterator[Row]:
    """A service's own table as a feed, of half as many rows as `events`; and one of five times as
    many, read far in.
    """
    with stores.durable_server() as server:
        orders = filled(server, events // 2)
        yield from table_rates(work, orders, events // 2)
        for name, notify, aim in (("", True, "< 50 ms"), (" without the trigger", False, "")):
            median, slow = delays(orders, work, notify=notify)
            times = f"{median * 1000:.0f}, {slow * 1000:.0f} ms"
            yield f"commit of a row to answer{name}, median and p95", times, aim
        begin, second, far = far_in(server, 5 * events)
        yield "page of 1,000 rows at row 0", f"{begin * 1000:.1f} ms", ""
        yield ratio(f"page behind row {5 * events:,} / at row 0", far / begin, "<= 1.2")
        yield ratio("the same / behind row 1,000", far / second, "")


def table_rates(work: Path, orders: Outbox, rows: int) -> Iterator[Row]:
    """Pages, in process and over HTTP, against a bare COPY."""
    with orders.serving(work) as url:
        measures: dict[str, Callable[[], float]] = {
            "COPY": lambda: copied(orders, rows),
            "one reader of pages, n = 1": lambda: in_process(orders, rows, 1),
            "one reader of pages, n = 4": lambda: in_process(orders, rows, PARTITIONS),
            "over HTTP, one reader": lambda: over_http(url, rows, 1),
            "over HTTP, two readers": lambda: over_http(url, rows, 2),
        }
        runs = [{name: run() for name, run in measures.items()} for _ in range(3)]
    rates = {name: max(run[name] for run in runs) for name in measures}
    for name, measured in rates.items():
        yield f"table: {name}", f"{measured / 1000:,.0f}k rows/s", ""
    for name in list(rates)[1:]:
        yield ratio(f"{name} / COPY", rates[name] / rates["COPY"], ">= 0.3")
