"""A job that stages its batches in S3, killed and started again."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fix_object_stores import ObjectStore
from tests.fix_spark import Job
from tests.fix_stream import Log

pytestmark = [pytest.mark.slow, pytest.mark.kill]


def test_a_killed_job_takes_its_batch_from_s3(
    object_store: ObjectStore, feed: Any, job: Callable[..., Job], tmp_path: Path
) -> None:
    """After the publisher removed its events: each event arrives once, the bucket is cleaned up,
    and neither the checkpoint nor what the job prints shows a credential.
    """
    scripted = feed(Log(80, each=10))
    streaming = job(
        url=scripted.server.url,
        partitionCount="1",
        maxEventsPerTrigger="40",
        stagingLocation=object_store.location(),
    )

    killed = streaming.run(crash=(0, "tasks"))
    planned = (streaming.checkpoint / "offsets" / "0").read_text().splitlines()[-1]
    scripted.logs[0].gone_below = int(json.loads(planned)["partitions"]["0"]["cursor"][1:])
    scripted.logs[0].count = 120
    done = streaming.run()

    data = [int(data) for _, data in streaming.table.rows()]
    assert Counter(data) == Counter(range(120))
    assert len({each.split("/")[1] for each in object_store.names()}) <= 1
    files = [each.read_text("latin-1") for each in tmp_path.rglob("*") if each.is_file()]
    shown = "".join([killed.stdout, killed.stderr, done.stdout, done.stderr, *files])
    assert [] == [secret for secret in object_store.secrets if secret in shown]
