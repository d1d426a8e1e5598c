"""Sessions of orders that a handler processes into a table, for the tests of `sessions.process`."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.fix_lake import said
from tests.patience import PATIENCE
from zeh_spark import sessions


class Shop:
    """A handler that writes down its calls, and fails as the events say.

    The header `fail` is a number of attempts that fail, or "slow".
    """

    def __init__(self, folder: Path) -> None:
        self.log = folder / "calls.ndjson"

    def __call__(self, event: sessions.Event) -> Any:
        order, step = event.headers["order"], int(event.headers["step"])
        call = {"place": [order, step], "attempt": event.attempt, "key": event.key}
        with self.log.open("a") as file:
            file.write(json.dumps(call) + "\n")
        told = event.headers.get("fail", "0")
        if told == "slow":
            threading.Event().wait()  # it never comes back
        if event.attempt <= int(told):
            raise ValueError(f"no {order}\x00 {event.attempt}")
        return f"{order}{step}: {event.data}"

    def calls(self) -> list[tuple[str, int, int]]:
        return [(*each["place"], each["attempt"]) for each in self._read()]

    def keys(self) -> dict[tuple[str, int], set[str]]:
        found: dict[tuple[str, int], set[str]] = {}
        for each in self._read():
            found.setdefault(tuple(each["place"]), set()).add(each["key"])
        return found

    def _read(self) -> list[dict[str, Any]]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [json.loads(line) for line in lines]


class Processing:
    """Sessions of `orders`, processed into a table."""

    def __init__(self, orders: Any) -> None:
        self.orders = orders
        self.at = str(orders.folder / "processed")
        self.shop = Shop(orders.folder)
        self.options: dict[str, Any] = {"retries": 0}

    def run(self, *, frame: dict[str, Any] | None = None, **options: Any) -> None:
        reader = {"headers": "_all"}
        given = self.orders.frame(processing=True, reader=reader, **(frame or {}))
        self.write(given, **options)

    def write(self, frame: Any, **options: Any) -> None:
        given = {"table": self.at, "name": "orders", "handler": self.shop, **self.options}
        given = {"checkpointLocation": str(self.orders.checkpoint), **given, **options}
        query = (
            frame.writeStream.foreachBatch(sessions.process(**given))
            .option("checkpointLocation", str(self.orders.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(PATIENCE)

    def fail(self, **options: Any) -> str:
        with pytest.raises(Exception) as raised:
            self.run(**options)
        return said(raised.value)

    def table(self) -> Any:
        return self.orders.spark.read.format("delta").load(self.at)

    def verdicts(self, order: str) -> list[tuple[int, str, int | None]]:
        """(step, status, attempt) of all rows of an order, in the order of steps and attempts."""
        mine = self.table().where(f"session = '{order}' AND processor = 'orders'")
        rows = mine.select("number", "status", "attempt")
        found = [tuple(row) for row in rows.collect()]
        return sorted(found, key=lambda row: (row[0], row[2] or 0, row[1]))

    def done(self, order: str) -> list[tuple[int, int | None]]:
        """(step, attempt) of what was processed."""
        return [(step, attempt) for step, told, attempt in self.verdicts(order) if told == "ok"]

    def details(self, status: str, order: str) -> list[str]:
        mine = self.table().where(f"status = '{status}' AND session = '{order}'")
        return [row.detail for row in mine.orderBy("number").collect()]

    def unresolved(self) -> list[tuple[str, int, str]]:
        rows = sessions.unresolved(self.orders.spark, self.at).orderBy("session", "number")
        return [(row.session, row.number, row.status) for row in rows.collect()]

    def decide(self, order: str, word: str, number: int, attempt: object) -> None:
        headers = {"session-control": word, "session-attempt": str(attempt)}
        self.orders.add((order, number), **headers)


@pytest.fixture
def processing(orders):
    return Processing(orders)
