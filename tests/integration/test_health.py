"""What a publisher tells whoever watches whether it lives, and whether it can serve."""

import threading
from contextlib import contextmanager

import pytest
import requests

from tests.cases import each_case
from tests.fix_log_texts import check_documented
from tests.fix_metrics import Scrape
from tests.fix_publisher import change_file, served, token_of
from tests.patience import eventually
from tests.scratch_store import ScratchStore
from zeh_spark.errors import StoreError
from zeh_spark.publisher import create_app
from zeh_spark.service.access.gate import Gate
from zeh_spark.service.store.token_rights import ADMIN, Grant, Right
from zeh_spark.service.telemetry.health import Check, Telemetry
from zeh_spark.testing import running_publisher


@contextmanager
def watched(store, telemetry=None, gate=None, tables=None):
    """A publisher, and what asks it: the status and the document of a path."""
    app = create_app(store, telemetry=telemetry, gate=gate, tables=tables)
    with running_publisher(store, app) as base, requests.Session() as session:

        def ask(path, token=None):
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            response = session.get(f"{base}{path}", headers=headers, timeout=30)
            return response.status_code, response.json()

        ask.app, ask.base = app, base
        yield ask


def test_a_publisher_that_can_serve_is_alive_and_ready(store, file):
    with served(file) as (base, _):
        alive, ready = (
            requests.get(f"{base}/{each}", timeout=30) for each in ("healthz", "readyz")
        )
        told = ready.json()

    assert (200, {"status": "ok"}) == (alive.status_code, alive.json())
    assert (200, "ready") == (ready.status_code, told["status"])
    assert dict.fromkeys(["serving", "store", "schema", "disk", "clock"], True) == {
        name: each["ok"] for name, each in told["checks"].items()
    }


@pytest.mark.parametrize(
    "statement, check",
    [
        ("ALTER TABLE feeds RENAME TO others", "store"),
        ("PRAGMA user_version = 99", "schema"),
    ],
)
def test_a_publisher_whose_store_fails_is_alive_and_not_ready(store, file, statement, check):
    """A load balancer sends its requests elsewhere, and nobody restarts the process."""
    with watched(store) as ask:
        change_file(file, statement)
        eventually(lambda: ask("/readyz")[0] == 503)
        status, told = ask("/readyz")
        alive = ask("/healthz")
        eventually(lambda: Scrape(ask.base)("zeh_store_up") == (check != "store"))
        seen = Scrape(ask.base)

    assert (200, {"status": "ok"}) == alive
    assert (503, "not ready") == (status, told["status"])
    assert [check] == [name for name, each in told["checks"].items() if not each["ok"]]
    assert seen("zeh_requests_total", route="/metrics") > 0
    assert (check == "store") is not any("zeh_feed_head" in name for name in seen.names)


def test_a_publisher_without_room_for_its_store_is_not_ready(store, file):
    with watched(store, Telemetry(store_file=file, least_free=1 << 62)) as ask:
        status, told = ask("/readyz")

    assert (503, False) == (status, told["checks"]["disk"]["ok"])
    assert "MiB free; at least" in told["checks"]["disk"]["detail"]


@each_case("found", [Check("clock", False, "3,600 s ahead"), StoreError("no time server answers")])
def test_a_publisher_with_a_wrong_clock_is_not_ready(found):
    """Whatever looks at the clock may say so, or fail."""

    def look():
        if isinstance(found, Exception):
            raise found
        return found

    with watched(ScratchStore(), Telemetry(clock=look)) as ask:
        status, told = ask("/readyz")

    detail = found.detail if isinstance(found, Check) else found.what
    assert (503, {"ok": False, "detail": detail}) == (status, told["checks"]["clock"])


@pytest.mark.parametrize(
    "store, others, status",
    [(dict, [], 503), (dict, ["healthy"], 200), (ScratchStore, [], 200)],
)
def test_a_table_that_cannot_be_read_is_told(database, store, others, status, caplog):
    """My publisher leaves the load balancer only if it has nothing else to serve, and I see why."""
    tables = {name: database.served("data TEXT", table=name) for name in ("orders", *others)}
    with watched(store(), tables=tables) as ask:
        metrics = f"{ask.base}/metrics"
        well = ask("/readyz"), requests.get(metrics, timeout=30).text
        database.execute("DROP TABLE orders")
        requests.get(f"{ask.base}/orders?n=1&cursor0=_first", timeout=30)
        eventually(lambda: "reading feed 'orders'" in caplog.text)
        eventually(lambda: not ask("/readyz")[1]["checks"]["table orders"]["ok"])
        ill = ask("/readyz"), requests.get(metrics, timeout=30).text

    check_documented(caplog.records, "reading feed 'orders'")
    assert (200, True) == (well[0][0], well[0][1]["checks"]["table orders"]["ok"])
    assert 'zeh_table_up{feed="orders"} 1.0' in well[1]
    assert status == ill[0][0]
    assert "orders" in ill[0][1]["checks"]["table orders"]["detail"]
    assert 'zeh_table_up{feed="orders"} 0.0' in ill[1]
    assert [each for each in others if f'zeh_table_up{{feed="{each}"}} 1.0' not in ill[1]] == []


def test_a_publisher_that_drains_is_not_ready_and_still_serves(store):
    """It is taken out of rotation before it stops."""
    with watched(store) as ask:
        ask.app.state.drain()
        status, told = ask("/readyz")
        feed = ask("/orders")

    assert (503, {"ok": False, "detail": "stopping"}) == (status, told["checks"]["serving"])
    assert (400, "partition-count-missing") == (feed[0], feed[1]["type"].rpartition(":")[2])


def test_a_look_that_hangs_does_not_hang_the_probe():
    """A database that does not answer makes a publisher unready within seconds."""
    let_go = threading.Event()

    def look():
        let_go.wait(60)
        return Check("clock", True, "right")

    with watched(ScratchStore(), Telemetry(clock=look)) as ask:
        answers = [ask("/readyz") for _ in range(2)]
        let_go.set()
        eventually(lambda: ask("/readyz")[0] == 200)

    assert [503, 503] == [status for status, _ in answers]
    assert {"ok": False, "detail": "no answer within 2 s"} == answers[0][1]["checks"]["clock"]


def test_a_stranger_learns_no_details():
    """Neither without a token, nor with one that may see a feed alone."""
    store = ScratchStore(orders=1)
    tokens = [
        token_of(store, *grants)
        for grants in ([Grant(Right.AUDIT, "orders")], [Grant(Right.READ, "*")], ADMIN)
    ]
    with watched(store, gate=Gate(store)) as ask:
        answers = [ask("/readyz", token) for token in (None, "zeh_00000000_wrong", *tokens)]
        alive = ask("/healthz")

    assert (200, {"status": "ok"}) == alive
    assert [(200, {"status": "ready"})] * 4 == answers[:-1]
    assert {"serving", "store", "schema"} == answers[-1][1]["checks"].keys()


def test_no_feed_takes_the_place_of_a_probe():
    store = ScratchStore()
    for name in ("healthz", "readyz", "metrics"):
        with pytest.raises(StoreError, match="cannot be called"):
            store.create(name, 1)
        with pytest.raises(ValueError, match="the publisher answers there"):
            create_app({name: object()})
