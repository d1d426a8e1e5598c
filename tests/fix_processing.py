"""Sessions of orders that a handler processes into a table, for the tests of `sessions.process`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fix_lake import said
from tests.patience import PATIENCE
from zeh_spark import sessions


class Shop:
    """A handler that writes down its calls, and fails as often as the header `fail` says."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "calls.ndjson"

    def __call__(self, event: sessions.Event) -> Any:
        order, step = event.headers["order"], int(event.headers["step"])
        call = {"place": [order, step], "attempt": event.attempt, "key": event.key}
        with self.log.open("a") as file:
            file.write(json.dumps(call) + "\n")
        if event.attempt <= int(event.headers.get("fail", "0")):
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
        self._rows: list[Any] | None = None

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
        self._rows = None
        assert query.awaitTermination(PATIENCE)

    def fail(self, **options: Any) -> str:
        with pytest.raises(Exception) as raised:
            self.run(**options)
        return said(raised.value)

    def table(self) -> Any:
        return self.orders.spark.read.format("delta").load(self.at)

    def rows(self, order: str | None, *statuses: str) -> list[Any]:
        """Those of the query `orders` on an order, in the order of steps and attempts."""
        if self._rows is None:  # since the last run
            self._rows = self.table().where("processor = 'orders'").collect()
        mine = [each for each in self._rows if each.session == order]
        mine = [each for each in mine if each.status in (statuses or (each.status,))]
        return sorted(mine, key=lambda row: (row.number, row.attempt or 0, row.status))

    def verdicts(self, order: str, *statuses: str) -> list[tuple[int, str, int | None]]:
        """(step, status, attempt) of all rows of an order."""
        return [(row.number, row.status, row.attempt) for row in self.rows(order, *statuses)]

    def done(self, order: str) -> list[tuple[int, int | None]]:
        """(step, attempt) of what was processed."""
        return [(row.number, row.attempt) for row in self.rows(order, "ok")]

    def details(self, status: str, order: str) -> list[str]:
        return [row.detail for row in self.rows(order, status)]

    def unresolved(self) -> list[tuple[str, int, str]]:
        rows = sessions.unresolved(self.orders.spark, self.at).orderBy("session", "number")
        return [(row.session, row.number, row.status) for row in rows.collect()]

    def decide(self, order: str, word: str, number: int, attempt: object) -> None:
        headers = {"session-control": word, "session-attempt": str(attempt)}
        self.orders.add((order, number), **headers)


@pytest.fixture
def processing(orders):
    return Processing(orders)
