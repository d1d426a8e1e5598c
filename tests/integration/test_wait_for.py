"""`wait_for` and `zeh-spark await`: from Python and in a shell, across restarts, and refused."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import zeh_spark
from tests.cases import each_case
from tests.fix_cli import call
from tests.fix_metrics import Scrape
from tests.fix_publisher import new_feed, served
from tests.fix_raw_server import RawServer, ok, refused
from tests.integration.test_awaited_batches import ends, keep, published
from tests.patience import PATIENCE, eventually
from tests.ports import free_port
from tests.scratch_store import ScratchStore
from zeh_spark.client import visibility
from zeh_spark.client.http.publish_client import Receipt
from zeh_spark.client.producer import Producer
from zeh_spark.errors import (
    NotCommittedError,
    OptionError,
    PublisherError,
    PublishError,
    UnavailableError,
)
from zeh_spark.testing import running_publisher

CURSOR = "17.0a1b2c3d"


def receipt_of(base: str) -> Receipt:
    with Producer(f"{base}/orders", "shop").batch() as batch:
        batch.add(1, partition=0)
    return batch.receipt


def test_it_returns_when_the_reader_has_committed_and_says_how_far_it_is_before() -> None:
    """My customer learns that the order is there, or I learn why not yet."""
    with running_publisher(ScratchStore(orders=3)) as base:
        keep(base, ends(base))
        receipt = receipt_of(base)
        published(base, 1)
        with pytest.raises(NotCommittedError, match=r"'lake'.* 2 events .*not committed") as raised:
            zeh_spark.wait_for(receipt, f"{base}/orders", cursor_set="lake", timeout=0)
        assert receipt.cursor == raised.value.cursor
        keep(base, ends(base))
        zeh_spark.wait_for(receipt, f"{base}/orders", cursor_set="lake", timeout=0)
        zeh_spark.wait_for(str(receipt.cursor), f"{base}/orders", cursor_set="lake", timeout=0)


def answered(base: str) -> float:
    """How many requests for cursors the publisher has answered."""
    return Scrape(base)("zeh_requests_total", route="/{feed}/cursors")


def test_it_asks_again_until_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """The publisher holds a request for a while only; I wait for as long as I said."""
    monkeypatch.setattr(visibility, "_POLL_SECONDS", 0.2)
    with running_publisher(ScratchStore(orders=3)) as base, ThreadPoolExecutor() as pool:
        receipt = receipt_of(base)
        known = {"cursor_set": "lake", "timeout": PATIENCE}
        waits = pool.submit(zeh_spark.wait_for, receipt, f"{base}/orders", **known)  # type: ignore[arg-type]
        eventually(lambda: answered(base) >= 2)
        assert not waits.done()
        keep(base, ends(base))
        waits.result(PATIENCE)


def test_a_batch_without_events_is_not_waited_for() -> None:
    """There is nothing of it that could be anywhere."""
    with running_publisher(ScratchStore(orders=3)) as base:
        with Producer(f"{base}/orders", "shop").batch() as batch:
            pass
        assert batch.receipt.cursor is None
        zeh_spark.wait_for(batch.receipt, f"{base}/orders", cursor_set="nobody", timeout=0)


def test_the_publisher_may_be_restarted_while_i_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An upgrade of the publisher does not end the wait."""
    monkeypatch.setattr(visibility, "_POLL_SECONDS", 0.2)
    url, port = new_feed(tmp_path / "feeds.db", partitions=3), free_port()
    with ThreadPoolExecutor() as pool:
        with served(url, port=port) as (base, _):
            keep(base, ends(base))
            receipt = receipt_of(base)
            known = {"cursor_set": "lake", "timeout": PATIENCE}
            waits = pool.submit(zeh_spark.wait_for, receipt, f"{base}/orders", **known)  # type: ignore[arg-type]
            eventually(lambda: answered(base) >= 1)
            assert not waits.done()
        with served(url, port=port) as (base, _):
            keep(base, ends(base))
            waits.result(PATIENCE)


def test_what_the_publisher_refuses_is_refused_at_once() -> None:
    """I do not wait for a batch that a restore has undone."""
    with running_publisher(ScratchStore(orders=3)) as base:
        for name, problem in (("lake", "receipt-of-another-history"), ("", "bad-cursorset")):
            with pytest.raises(PublishError) as raised:
                zeh_spark.wait_for(CURSOR, f"{base}/orders", cursor_set=name, timeout=PATIENCE)
            assert problem == raised.value.problem
        known = str(receipt_of(base).cursor)
        with pytest.raises(PublishError, match="has another name") as raised:
            zeh_spark.wait_for(known, f"{base}/orders", cursor_set="lkae", timeout=0.5)
        assert "unknown-cursorset" == raised.value.problem


@each_case("timeout", [-1, float("nan"), float("inf"), "60", None])
def test_a_timeout_that_is_no_number_of_seconds_is_refused(timeout: Any) -> None:
    with pytest.raises(OptionError, match="timeout"):
        zeh_spark.wait_for(CURSOR, "http://127.0.0.1:1/orders", cursor_set="lake", timeout=timeout)


@each_case(
    ("receipt", "cursor_set"), [(None, "lake"), (Producer, "lake"), (17, "lake"), (CURSOR, None)]
)
def test_what_is_no_receipt_is_not_taken_for_one_without_events(
    receipt: Any, cursor_set: Any
) -> None:
    """`settle()` returns None for a batch that never will be published."""
    with pytest.raises(OptionError, match="Give the receipt of a batch that was published"):
        zeh_spark.wait_for(receipt, "http://127.0.0.1:1/orders", cursor_set=cursor_set)


@pytest.mark.parametrize(
    "answer",
    [
        lambda: refused(404, "<html>not here</html>"),
        lambda: ok(b'{"partition":0,"cursor":"17"}\n{"partition":1,"cursor":"3"}\n'),
        lambda: ok(b'{"committed":true}'),
        lambda: ok(b"[]"),
    ],
)
def test_feeds_of_other_publishers_are_refused(
    raw_server: RawServer, answer: Callable[[], Any]
) -> None:
    """Only a publisher of zeh_spark knows what its readers have committed: nothing is guessed."""
    raw_server.respond = lambda request: answer()
    with pytest.raises(PublisherError, match="publisher of zeh_spark"):
        zeh_spark.wait_for(CURSOR, raw_server.url, cursor_set="lake", timeout=PATIENCE)


def test_a_publisher_that_is_away_is_no_answer() -> None:
    """It may be committed: I get another error than for a reader that is late."""
    begin = time.monotonic()
    with pytest.raises(UnavailableError):
        zeh_spark.wait_for(
            CURSOR, f"http://127.0.0.1:{free_port()}/orders", cursor_set="lake", timeout=0.5
        )
    assert time.monotonic() - begin < PATIENCE / 10


def test_a_script_waits_with_the_command() -> None:
    """It gets the receipt from `publish`, and tells by the exit code what happened."""
    with running_publisher(ScratchStore(orders=3)) as base:
        keep(base, ends(base))
        url = f"{base}/orders"
        sent = call("publish", url, "--producer", "shop", "--json", stdin='{"order": 1}\n')
        receipt = json.loads(sent.stdout)["cursor"]
        words = ("await", url, receipt, "--cursorset", "lake", "--timeout")
        late = call(*words, "0")
        assert (3, "") == (late.returncode, late.stdout)
        assert "1 event up to the feed's end are not committed" in late.stderr
        keep(base, ends(base))
        done = call(*words, "60")
        assert (0, f"The reader 'lake' has committed the batch that ends at {receipt}.\n") == (
            done.returncode, done.stdout,
        )  # fmt: skip
        undone = call("await", url, CURSOR, "--cursorset", "lake")
        assert (1, True) == (undone.returncode, "ZEH_RECEIPT_OF_ANOTHER_HISTORY" in undone.stderr)
