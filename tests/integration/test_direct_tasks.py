"""How a batch is divided among tasks, and how a task talks to the publisher."""

import pytest

from tests.fix_direct import (
    BEGIN,
    END,
    TYPE,
    DirectFeed,
    Sent,
    begun,
    chunks_of,
    end_of,
    group,
    next_batch,
    plan_of,
    planned,
    rows,
)
from tests.fix_raw_server import chunked, refused
from zeh_spark.errors import AccessError
from zeh_spark.wire import direct_reads as wire
from zeh_spark.wire.direct_reads import PlannedRange

MIB = 1 << 20


@pytest.mark.parametrize(
    ("sizes", "wanted", "expected"),
    [
        # a thousand quiet partitions are not a thousand tasks
        ([40] * 50, "8", [[*range(50)]]),
        # `minPartitions` uses my cluster, and each task gets equally much
        ([MIB] * 8, "4", [[0, 1], [2, 3], [4, 5], [6, 7]]),
        # at least a mebibyte: more tasks than that cost more than they save
        ([MIB // 2] * 4, "8", [[0, 1], [2, 3]]),
        # about 128 MiB at most: a task that fails is not an hour of work, however few I asked for
        ([16 * MIB] * 32, "1", [[*range(first, first + 8)] for first in (0, 8, 16, 24)]),
    ],
    ids=["small", "large", "least", "most"],
)
def test_a_batch_is_divided_by_its_size(raw_server, start, sizes, wanted, expected):
    """Ranges of one partition each become tasks of about the same size."""
    feed = DirectFeed(raw_server, partitions=len(sizes))
    ranges = [
        PlannedRange(each, BEGIN, END, 1, 1, size, "0" * 32) for each, size in enumerate(sizes)
    ]
    feed.plan = lambda asked: plan_of(*ranges, ends=[END] * len(sizes))

    tasks = next_batch(begun(start, feed, minPartitions=wanted))

    assert expected == [[each.partition for each in task.ranges] for task in tasks]


# Connections


@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_tasks_of_a_process_share_connections(direct_feed, start, framing):
    """A worker process that runs one small task after the other connects once."""
    whole = wire.BEGINNING + group(Sent(5)) + end_of(Sent(5))
    direct_feed.plan = lambda asked: plan_of(planned(Sent(5)))
    direct_feed.chunks = lambda asked: (
        chunks_of(Sent(5)) if framing == "length" else chunked(whole, **TYPE)
    )
    run = begun(start, direct_feed)
    (task,) = next_batch(run)
    for _ in range(3):
        assert [1] == rows(run, task)
    requests = [each for each in direct_feed.server.requests if each.path.endswith("/chunks")]
    assert 1 == len({each.connection for each in requests})


# Credentials

OLD, NEW = "token-before-4711", "token-after-0815"


@pytest.fixture
def guarded(direct_feed, tmp_path):
    """A feed that lets in who has the token `direct_feed.token`; and the file with the old one."""
    file = tmp_path / "token"
    file.write_text(OLD)
    direct_feed.token = OLD
    direct_feed.allowed = lambda authorization: authorization == f"Bearer {direct_feed.token}"
    direct_feed.plan = lambda asked: plan_of(planned(Sent(5)))
    direct_feed.chunks = lambda asked: chunks_of(Sent(5))
    return direct_feed, file


def rotate(feed, file):
    feed.token = NEW
    file.write_text(NEW)


def test_a_token_that_was_rotated_reaches_tasks(guarded, start):
    """Executors need no file: they get the token that the driver uses now."""
    feed, file = guarded
    run = begun(start, feed, tokenFile=str(file))
    rotate(feed, file)
    (task,) = next_batch(run)
    file.unlink()
    assert [1] == rows(run, task)
    sent = {each.headers.get("authorization") for each in feed.server.requests[-1:]}
    assert {f"Bearer {NEW}"} == sent


def test_a_token_that_is_rotated_before_a_task_runs_is_read_from_the_file(guarded, start):
    """A long queue of tasks outlives a token."""
    feed, file = guarded
    run = begun(start, feed, tokenFile=str(file))
    (task,) = next_batch(run)
    rotate(feed, file)
    assert [1] == rows(run, task)


def test_a_task_without_the_file_fails_by_name(guarded, start):
    """I learn that it is the token, and which option to look at."""
    feed, file = guarded
    run = begun(start, feed, tokenFile=str(file))
    (task,) = next_batch(run)
    rotate(feed, file)
    file.unlink()
    with pytest.raises(AccessError, match="tokenFile") as caught:
        rows(run, task)
    assert 401 == caught.value.status
    assert OLD not in str(caught.value)


def test_no_text_of_a_task_shows_a_secret(guarded, start, caplog):
    """Spark may log its partitions, and the driver logs refusals."""
    feed, _ = guarded
    secrets = {"token": OLD, "http.secret.header.X-Key": "hush-hush-1"}
    url = feed.server.url
    run = start(url=f"{url}?key=hush-hush-2", **secrets)
    (task,) = next_batch(run)
    feed.chunks = lambda asked: refused(403, f"not {OLD}, hush-hush-1 and hush-hush-2")
    with pytest.raises(AccessError) as caught:
        rows(run, task)
    for text in (repr(task), str(task), f"{[task]}", str(caught.value), caplog.text):
        assert not [each for each in (OLD, "hush-hush") if each in text]
