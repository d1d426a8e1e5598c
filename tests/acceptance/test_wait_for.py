"""My service answers "your order is in the lake" when it is: with a real query and its sink."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import zeh_spark
from tests.fix_publisher import Publisher
from tests.patience import PATIENCE
from zeh_spark.errors import NotCommittedError, PublishError
from zeh_spark.publish import Producer


@pytest.mark.parametrize("fetch", ["executors", "driver"])
def test_an_order_is_in_the_lake_when_wait_for_returns(
    spark: Any, stream: Callable[..., Any], publisher: Publisher, tmp_path: Path, fetch: str
) -> None:
    """WV-01: while its batch is being written it is not, also if it is planned; then it is."""
    lake, asked, may_write = str(tmp_path / "lake"), threading.Event(), threading.Event()

    def write(frame: Any, _: int) -> None:
        if not frame.isEmpty():
            asked.set()
            assert may_write.wait(PATIENCE)
        frame.select("data").write.mode("append").parquet(lake)

    def rows() -> list[str]:
        return [row.data for row in spark.read.parquet(lake).collect()]

    feed = stream(url=publisher.url, cursorSet="lake", fetch=fetch, wait="1s").load()
    query = (
        feed.writeStream.foreachBatch(write).option("checkpointLocation", f"{tmp_path}/c").start()
    )
    try:
        for number in range(2):
            asked.clear()
            may_write.clear()
            with Producer(publisher.url, "shop").batch() as batch:
                batch.add({"order": number}, partition=number)
            assert asked.wait(PATIENCE)
            with pytest.raises((NotCommittedError, PublishError)):  # before, it is not known
                zeh_spark.wait_for(batch.receipt, publisher.url, cursor_set="lake", timeout=1)
            may_write.set()
            zeh_spark.wait_for(batch.receipt, publisher.url, cursor_set="lake", timeout=PATIENCE)
            assert [f'{{"order":{each}}}' for each in range(number + 1)] == sorted(rows())
    finally:
        may_write.set()
        query.stop()
