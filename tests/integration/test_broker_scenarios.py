"""Kafka's and Pulsar's deduplication scenarios at our publish API, beside what the brokers answer.

`tests/data/broker_answers.json` has the answers of real brokers: what they said to the last call of
a scenario, and how many events it added. `benchmarks/broker_answers.py` recorded them. Here, event
N of a scenario is the batch with the number N, as a program that keeps its progress sends it. Ids
in brackets: see tests/README.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TypeAlias

import pytest
import requests

from tests.fix_publish import Caller, Reply, Who, published
from tests.fix_publisher import Publisher, served
from tests.patience import eventually
from zeh_spark.service.retention.rules import expire_producers
from zeh_spark.service.store.interface import Retention

ROOT = Path(__file__).parents[2]
BROKERS = json.loads((ROOT / "tests/data/broker_answers.json").read_text())
WINDOW = 10
"""Receipts that the publisher of these tests keeps of a producer, and not 1,000."""

Scenario: TypeAlias = Callable[[Caller, Publisher], Reply]


def after(*numbers: int, last: Who, data: tuple[object, ...] | None = None) -> Scenario:
    """Publish the batches with these numbers, and then the last one, whose answer counts."""

    def run(caller: Caller, publisher: Publisher) -> Reply:
        for number in numbers:
            published(caller, number, batch=number)
        return caller.publish(last, *((last.batch,) if data is None else data))

    return run


def after_a_gap(caller: Caller, publisher: Publisher) -> Reply:
    published(caller, 0)
    assert (409, "batch-gap") == caller.publish(Who(2), 2).short
    return caller.publish(Who(1), 1)


def of_the_overtaken(caller: Caller, publisher: Publisher) -> Reply:
    published(caller, 0)
    published(caller, 1, batch=1, run="r2")
    return caller.publish(Who(2), 2)


def without_a_name(caller: Caller, publisher: Publisher) -> Reply:
    """As `zeh-spark publish` without --batch, which asks for the next number."""
    published(caller, 0, incarnation="plain")
    following = caller.call("GET", "/producers/p").document["lastBatch"] + 1
    return caller.publish(Who(following, incarnation="plain", run="r2"), 0)


def of_the_expired(caller: Caller, publisher: Publisher) -> Reply:
    for number in (0, 1):
        published(caller, number, batch=number)
    publisher.store.set_retention("orders", Retention(producers_ms=1))
    eventually(lambda: expire_producers(publisher.store, "orders") == 1)
    return caller.publish(Who(1), 1)


KILLED = "broker killed, the last batch again"
OURS: dict[str, tuple[Scenario, tuple[int, str], list[object]]] = {
    "the last batch again": (after(0, 1, last=Who(1)), (200, "already-committed"), [0, 1]),
    "one of the last five again": (
        after(*range(6), last=Who(1)), (200, "already-committed"), [*range(6)],
    ),
    "one older than the last five again": (
        after(*range(6), last=Who(0)), (200, "already-committed"), [*range(6)],
    ),
    "one older than all that are known again": (
        after(*range(WINDOW + 1), last=Who(0)), (410, "batch-expired"), [*range(WINDOW + 1)],
    ),
    "the same number with other content": (
        after(0, 1, last=Who(1), data=("other",)), (409, "batch-conflict"), [0, 1],
    ),
    "a gap": (after(0, last=Who(2)), (409, "batch-gap"), [0]),
    "what the gap left out, later": (after_a_gap, (200, "committed"), [0, 1]),
    "old and new events in one batch": (
        after(0, 1, last=Who(1), data=(1, 2)), (409, "batch-conflict"), [0, 1],
    ),
    "a first number that is not 0": (after(last=Who(5)), (409, "batch-gap"), []),
    "a second producer takes over": (
        after(0, last=Who(1, run="r2")), (200, "committed"), [0, 1],
    ),
    "the first one after that": (of_the_overtaken, (403, "fenced"), [0, 1]),
    "restart with the name, the last batch again": (
        after(0, 1, last=Who(1, run="r2")), (200, "already-committed"), [0, 1],
    ),
    "restart without a name, the last batch again": (without_a_name, (200, "committed"), [0, 0]),
    "producer forgotten, the last batch again": (
        of_the_expired, (410, "producer-deleted"), [0, 1],
    ),
}  # fmt: skip
"""Our answer to the last call of a scenario, and what is on the feed then."""


@pytest.fixture
def receipts() -> int:
    return WINDOW


@pytest.mark.parametrize(("run", "answer", "feed"), OURS.values(), ids=OURS)
def test_what_we_answer(
    caller: Caller,
    publisher: Publisher,
    run: Scenario,
    answer: tuple[int, str],
    feed: list[object],
) -> None:
    """With a name, no event is doubled, and I am told what is not added (EX-01, EX-03, EX-04,
    KA-01, KA-03, KA-04, PU-05, PU-08, PU-13).
    """
    assert answer == run(caller, publisher).short
    assert feed == publisher.get("n=2&cursor0=_first").data


@pytest.mark.kill
def test_a_publisher_that_was_killed_knows_the_last_batch(store_file: Path) -> None:
    """The state of producers is as durable as the events (PU-01, PU-07)."""
    with served(store_file) as (base, process), closing(Caller(f"{base}/orders")) as caller:
        for number in (0, 1):
            published(caller, number, batch=number)
        process.kill()
    with served(store_file) as (base, _), closing(Caller(f"{base}/orders")) as caller:
        assert (200, "already-committed") == caller.publish(Who(1), 1).short
        lines = requests.get(f"{base}/orders?n=2&cursor0=_first", timeout=30).text.splitlines()
    assert [0, 1] == [json.loads(line)["data"] for line in lines if '"data"' in line]


def in_words(answer: str, added: bool) -> str:
    """Return how the cell of an answer begins in the table for users."""
    if added:
        return "added"
    if answer in {"NONE", "Ok -1:-1", "already-committed"}:
        return "acknowledged, not added"
    return f"refused: `{answer}`"


def test_the_table_for_users_has_these_answers() -> None:
    """What is said of the brokers was recorded from them, and what is said of us is tested here."""
    page = (ROOT / "docs/explanation/compared.md").read_text()
    table = page.split("| scenario | Kafka", 1)[1].split("\n\n")[0].splitlines()[2:]
    rows = {name: cells for name, *cells in (row[2:-2].split(" | ") for row in table)}
    ours = {name: answer for name, (_, (_, answer), _) in OURS.items()} | {
        KILLED: "already-committed"
    }
    expected = {
        name: [
            *(in_words(*each["answers"][name]) for each in BROKERS.values()),
            in_words(answer, answer == "committed"),
        ]
        for name, answer in ours.items()
    }
    assert expected == {
        name: [cell.split(";")[0].split(" (")[0] for cell in cells] for name, cells in rows.items()
    }
