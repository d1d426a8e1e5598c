"""A query on Spark whose unread events were removed by retention continues, even after a crash."""

from __future__ import annotations

import pytest
from pyspark.errors import StreamingQueryException

from zeh_spark.retention.rules import prune
from zeh_spark.store.interface import Retention

pytestmark = pytest.mark.spark


def test_a_query_that_passes_a_loss_recovers_from_a_crash(stream, publisher, tmp_path):
    """The repeated batch has the same rows, and I need the option for one start only."""
    done: list[list[int]] = []

    def run(*, crash: bool = False, **options: str) -> list[list[int]]:
        def keep(batch, number):
            done.append(sorted(int(row.data) for row in batch.collect()))
            if crash:
                raise RuntimeError("the driver dies here")

        done.clear()
        writer = stream(url=publisher.url, **options).load().writeStream
        writer = writer.foreachBatch(keep).option("checkpointLocation", f"{tmp_path}/checkpoint")
        writer.trigger(availableNow=True).start().awaitTermination()
        return [rows for rows in done if rows]

    def overtake(*left: int) -> None:
        publisher.publish(*range(500), partition=0)
        if left:
            publisher.publish(*left, partition=0)
        prune(publisher.store, "orders", Retention(bytes=50 * len(left)))

    publisher.publish(1, partition=0)
    assert run() == [[1]]
    overtake(7, 8)
    with pytest.raises(StreamingQueryException, match="the driver dies here"):
        run(crash=True, failOnDataLoss="false")
    assert run() == [[7, 8]]
    overtake()
    assert run(failOnDataLoss="false") == []
    assert run() == []
    publisher.publish(9, partition=0)
    assert run() == [[9]]
