"""Spark starts a query at a time, and a restart continues where it was."""

from __future__ import annotations

import pytest

from tests.patience import eventually

pytestmark = pytest.mark.spark


def test_a_query_starts_at_a_time_once(spark, stream, publisher, tmp_path):
    """I get what was committed since then; the option means nothing to a restart."""
    publisher.publish(1, 2)
    before = publisher.store.feed("orders").time
    eventually(lambda: publisher.store.now() > before)
    publisher.publish(3, 4)
    since = publisher.store.feed("orders").time

    def run(time: object) -> list[str]:
        feed = stream(url=publisher.url, startingTimestamp=time).load()
        writer = feed.select("data").writeStream.format("parquet")
        paths = {"path": f"{tmp_path}/rows", "checkpointLocation": f"{tmp_path}/checkpoint"}
        writer.options(**paths).trigger(availableNow=True).start().awaitTermination()
        return sorted(row.data for row in spark.read.parquet(f"{tmp_path}/rows").collect())

    assert run(since) == ["3", "4"]
    publisher.publish(5)
    assert run(publisher.store.now() + 10**9) == ["3", "4", "5"]
