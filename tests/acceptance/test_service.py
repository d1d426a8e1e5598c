"""The example service, in notebooks/service: a real process on a real database, read by Spark."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests
from chispa import assert_df_equality
from pyspark.sql import functions as F

import zeh_spark
from tests import postgresql
from tests.fix_cli import call
from tests.patience import eventually

ROOT = Path(__file__).parents[2]
CLIENTS, CALLS, SHARED = 32, 25, 12
ORDER = "id BIGINT, customer STRING, status STRING, amount BIGINT, version INT"
EVENT = "partition INT, headers MAP<STRING, STRING>, data STRING"
FROM_FIRST = "n=4&headers=_all&" + "&".join(f"cursor{each}=_first" for each in range(4))
FROM_LAST = FROM_FIRST.replace("_first", "_last")


@dataclass(frozen=True)
class Service:
    url: str
    database: str
    process: subprocess.Popen[str]

    def sql(self, statement: str) -> list[Any]:
        return postgresql.shared().execute(statement, self.database)

    def post(self, path: str, **body: object) -> requests.Response:
        return requests.post(f"{self.url}{path}", json=body, timeout=30)

    def patch(self, path: str, **body: object) -> requests.Response:
        return requests.patch(f"{self.url}{path}", json=body, timeout=30)

    def feed(self, query: str) -> requests.Response:
        return requests.get(f"{self.url}/feeds/orders?{query}", timeout=60)


@pytest.fixture
def service(postgresql_server: postgresql.Server) -> Iterator[Service]:
    """Running, with no orders."""
    server = postgresql_server
    database = server.create_database()
    environment = {**os.environ, "ORDERS_DATABASE": server.url(database), "PORT": "0"}
    with subprocess.Popen(
        [sys.executable, ROOT / "notebooks/service/orders.py"],
        env={**environment, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        url = listens_at(process)
        log = threading.Thread(target=shutil.copyfileobj, args=(process.stderr, sys.stderr))
        log.start()
        yield Service(url, database, process)
        process.kill()
        log.join()
    server.drop_database(database)


def listens_at(process: subprocess.Popen[str]) -> str:
    assert process.stderr
    said = []
    for line in process.stderr:
        if found := re.search(r"running on (http://\S+)", line):
            return found[1]
        said.append(line)
    raise AssertionError(f"the service did not start: {''.join(said)}")


@pytest.mark.slow
def test_the_table_in_spark_equals_the_services_own(service, spark, stream, collected):
    """However many change orders: each change once and in order, and in the end one table."""
    shared = [service.post("/orders", customer="all", amount=500).json() for _ in range(SHARED)]
    query = collected(stream(url=f"{service.url}/feeds/orders").load())
    query.processAllAvailable()

    with ThreadPoolExecutor(CLIENTS) as clients:
        ids = [order["id"] for order in shared]
        answers = clients.map(lambda seed: calls(service.url, seed, ids), range(CLIENTS))
        statuses = sum(answers, Counter())
    read_meanwhile = len(collected.rows)
    outbox = service.sql("SELECT type, body::text FROM outbox")
    query.processAllAvailable()
    eventually(lambda: len(collected.rows) >= len(outbox))

    assert {200, 201, 409} == {*statuses}
    assert read_meanwhile > SHARED
    assert Counter(outbox) == Counter(
        (row["headers"]["type"], row["data"]) for row in collected.rows
    )
    orders = service.sql("SELECT id, customer, status, amount, version FROM orders")
    assert {id: [*range(1, version + 1)] for id, *_, version in orders} == versions(collected.rows)
    expected = spark.createDataFrame(orders, ORDER)
    assert_df_equality(expected, by_version(spark, collected.rows), ignore_row_order=True)


def calls(url: str, seed: int, ids: list[int]) -> Counter[int]:
    """What one client does, by chance, but the same in each run: how often each status came."""
    chance, ids, statuses = random.Random(seed), [*ids], Counter()
    with requests.Session() as session:
        for _ in range(CALLS):
            some = chance.sample(ids, 4)
            method, path, body = chance.choice(
                [
                    ("POST", "/orders", {"customer": f"Ænne {seed}", "amount": 500}),
                    ("PATCH", f"/orders/{some[0]}", {"status": chance.choice(["paid", "shipped"])}),
                    (
                        "POST",
                        "/transfer",
                        {"giver": some[0], "takers": some[1:], "amount": chance.randint(1, 300)},
                    ),
                ]
            )
            answer = session.request(method, f"{url}{path}", json=body, timeout=60)
            statuses[answer.status_code] += 1
            if answer.status_code == 201:
                ids.append(answer.json()["id"])
    return statuses


def versions(rows: list[dict[str, Any]]) -> dict[int, list[int]]:
    """Of each order, in the feed's order."""
    found = defaultdict(list)
    for row in rows:
        order = json.loads(row["data"])
        found[order["id"]].append(order["version"])
    return dict(found)


def by_version(spark, rows):
    """The orders as the events with their highest versions tell them."""
    orders = orders_of(spark.createDataFrame(rows, EVENT))
    newest = F.max_by(F.struct("*"), "version").alias("newest")
    return orders.groupBy("id").agg(newest).select("newest.*")


def orders_of(events):
    return zeh_spark.parsed(events, ORDER).drop("partition", "headers")


def test_the_feed_is_beside_the_services_own_calls(service):
    """One FastAPI app answers its API and, under /feeds, the protocol. A change that was rolled
    back, as a transfer that fails half way, has no event, because the event was rolled back with
    it. The example's schema is what `zeh-spark ddl` asks for.
    """
    order = service.post("/orders", customer="Ada", amount=500).json()
    paid = service.patch(f"/orders/{order['id']}", status="paid").json()
    other = service.post("/orders", customer="Bob", amount=500).json()
    transfer = {"giver": order["id"], "takers": [other["id"]], "amount": 501}
    refused = service.post("/transfer", **transfer)

    answer = service.feed(f"{FROM_FIRST}&wait=30")
    table = ["outbox", "--data", "body", "--partition-by", "order_id", "--partitions", "4"]
    done = call("ddl", *table, "--url", postgresql.shared().url(service.database))

    events = [json.loads(line) for line in answer.text.splitlines() if '"data"' in line]
    told = [(event["headers"]["type"], event["data"]) for event in events]
    assert 409 == refused.status_code
    assert 3 == len(service.sql("SELECT * FROM outbox"))
    by_order = sorted(told, key=lambda each: each[1]["id"])
    assert [("created", order), ("updated", paid), ("created", other)] == by_order
    assert ("-- outbox has all that it needs\n", "") == (done.stdout, done.stderr)


def test_the_service_stops_though_readers_wait(service):
    """A deployment does not wait for long polls: they are answered, and the service ends."""
    connections = f"SELECT pid FROM pg_stat_activity WHERE datname = '{service.database}'"
    idle = len(service.sql(connections))

    with ThreadPoolExecutor(1) as reader:
        poll = reader.submit(service.feed, f"{FROM_LAST}&wait=55")
        eventually(lambda: len(service.sql(connections)) > idle)
        service.process.send_signal(signal.SIGTERM)
        ended = service.process.wait(timeout=20)

    assert (-signal.SIGTERM, 200) == (ended, poll.result().status_code)
