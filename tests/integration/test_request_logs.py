"""The publisher's log on its standard error, and the ids by which a request is found in it."""

import json
import re
from contextlib import closing, contextmanager

import pytest
import requests

import zeh_spark
from tests.fix_publisher import new_feed, served, token_of
from tests.patience import eventually
from zeh_spark.errors import PublisherError, PublishError
from zeh_spark.publish import Producer
from zeh_spark.publisher import open_store
from zeh_spark.service.store.token_rights import ADMIN

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.fixture
def file(tmp_path):
    new_feed(tmp_path / "feeds.db", *range(3))
    return tmp_path / "feeds.db"


@contextmanager
def logged(file, *words):
    """`zeh-spark serve`: its base URL, and what returns the lines of its log."""
    log = file.with_suffix(".log")
    with served(file, *words, log=log) as (base, _):
        yield base, lambda: log.read_text().splitlines()


def test_a_request_has_one_line_with_what_it_was(file):
    """And with its ids, so that I find it in other logs."""
    with logged(file, "--access-log", "--log-format", "json") as (base, lines):
        page = requests.get(
            f"{base}/orders?n=1&cursor0=_first",
            headers={
                "X-Request-ID": "mine-1",
                "ZEH-Consumer": "warehouse@night",
                "traceparent": f"00-{TRACE}-{SPAN}-01",
                "Accept-Encoding": "identity",
            },
            timeout=30,
        )
        eventually(lambda: len(lines()) == 1)
        (line,) = map(json.loads, lines())

    assert "mine-1" == page.headers["X-Request-ID"]
    assert 0 < line.pop("seconds") < 30
    assert line.pop("peer").startswith("127.0.0.1:")
    assert line.pop("time").endswith("Z")
    assert {
        "level": "info", "logger": "zeh_spark.publisher.access", "message": "request",
        "method": "GET", "path": "/orders?n=1&cursor0=_first", "status": 200, "received": 0,
        "sent": len(page.content), "consumer": "warehouse@night",
        "request_id": "mine-1", "trace_id": TRACE, "span_id": SPAN,
    } == line  # fmt: skip


def test_what_our_client_sends_is_in_the_log(file):
    """Both logs have the same id, and mine the trace that my tracing has."""
    with logged(file, "--access-log", "--log-format", "json") as (base, lines):
        with pytest.raises(PublisherError) as raised:
            zeh_spark.last_cursors(f"{base}/nowhere", traceparent=f"00-{TRACE}-{SPAN}-01")
        eventually(lambda: len(lines()) == 1)
        (line,) = map(json.loads, lines())

    assert raised.value.request_id == line["request_id"]
    assert TRACE == line["trace_id"]
    assert SPAN != line["span_id"]


def test_no_secret_gets_into_the_log(file):
    """Neither a token, nor what somebody puts into an address; the token's name does."""
    with closing(open_store(f"sqlite:///{file}")) as store:
        text = token_of(store, *ADMIN, name="warehouse team")
    for form in ("console", "json"):
        with logged(file, "--access-log", "--log-format", form) as (base, lines):
            for query in ("n=1&cursor0=_first", "n=1&access_token=s3cret", "s3cret"):
                for given in (f"Bearer {text}", "Bearer s3cret", "Basic s3cret"):
                    requests.get(
                        f"{base}/orders?{query}", headers={"Authorization": given}, timeout=30
                    )
            eventually(lambda: len(lines()) == 9)
            said = "\n".join(lines())

        assert "warehouse team" in said
        assert [] == [each for each in ("s3cret", text, text[-20:]) if each in said]


def test_without_the_option_requests_are_not_logged(file):
    with logged(file) as (base, lines):
        requests.get(f"{base}/orders?n=1&cursor0=_first", timeout=30)
        requests.get(f"{base}/nowhere?n=1&cursor0=_first", timeout=30)
        assert [] == lines()


def test_lines_of_a_request_have_its_id(file):
    """An outage is found together with the request that met it."""
    with logged(file, "--log-format", "json") as (base, lines):
        with closing(open_store(f"sqlite:///{file}")) as store, store._reading() as connection:
            connection.exec_driver_sql("ALTER TABLE recent_chunks RENAME TO others")
        answer = requests.get(f"{base}/orders?n=1&cursor0=_first", timeout=30)

        def of_requests() -> list[dict[str, str]]:  # upkeep, which packs chunks, may say it, too
            return [each for each in map(json.loads, lines()) if "request_id" in each]

        eventually(of_requests)
        (line,) = of_requests()

    assert (500, answer.json()["requestId"]) == (answer.status_code, line["request_id"])
    assert answer.headers["X-Request-ID"] == line["request_id"]
    assert line["message"].startswith("reading the store fails: ")


def test_errors_of_clients_name_the_request(publisher):
    """The reader's and the producer's owner can ask the operator for it."""
    with pytest.raises(PublisherError, match="unknown-feed") as read:
        zeh_spark.last_cursors(f"{publisher.base}/nowhere")
    with pytest.raises(PublishError, match="unknown-feed") as published:
        _ = Producer(f"{publisher.base}/nowhere", "till-1").last
    for each in (read.value, published.value):
        assert re.fullmatch("[0-9a-f]{8}-[0-9]+", each.request_id)
        assert each.request_id not in str(each)  # which may end with a value to copy
