"""The listener asks for what a query has published, and never holds the query up."""

import logging
import socket
from datetime import datetime, timezone
from itertools import count

import pytest

from tests.fix_log_texts import check_documented
from zeh_spark.client.http.publish_client import PublishedRange
from zeh_spark.errors import OptionError
from zeh_spark.progress import ProgressListener
from zeh_spark.spark.sink import commits
from zeh_spark.spark.sink.commits import SinkCommit, SinkCommits

PROGRESS = {"id": "query", "runId": "run", "batchId": 3, "durationMs": {"addBatch": 5}}


HOURS = 7200.0
"""A test whose publisher is asked for so long does not end."""


@pytest.fixture
def silent():
    """The address of a publisher that takes requests and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/orders"


def test_a_silent_publisher_is_asked_once_a_minute_and_logged_once(silent, monkeypatch, caplog):
    """My queries do not wait for it, and my log is not full of it."""
    monkeypatch.setattr(commits, "TIMEOUT", 0.2)
    minutes = count()
    asked = SinkCommits(silent, "p", {}, clock=lambda: 61.0 * next(minutes))
    slow = SinkCommits(silent, "p", {}, clock=lambda: 0.0)
    with caplog.at_level(logging.WARNING, "zeh_spark"):
        assert [None] * 3 == [asked.of(PROGRESS) for _ in range(3)]
        assert slow.of(PROGRESS) is None
    monkeypatch.setattr(commits, "TIMEOUT", HOURS)
    assert [None] * 50 == [slow.of(PROGRESS) for _ in range(50)]
    check_documented(caplog.records, "is not shown")
    shown = [each.message for each in caplog.records if "is not shown" in each.message]
    assert 1 == sum("producer 'p'" in each for each in shown[:1])
    assert 2 == len(shown)  # one of each object
    # a progress without a batch costs nothing
    assert SinkCommits(silent, "p", {}).of({**PROGRESS, "durationMs": {}}) is None


def test_a_line_shows_the_first_ranges():
    """It stays short however many partitions the feed has."""
    ranges = tuple(PublishedRange(each, 10, 19, "c") for each in range(6))
    at = datetime(2026, 11, 24, 7, 30, 10, tzinfo=timezone.utc)
    line = "batch 3 to http://f as 'p'  {} events committed at 07:30:10 UTC"
    assert f"{line.format('1,060')}  (0: 10-19, 1: 10-19, 2: 10-19, 3: 10-19, 2 more)" == str(
        SinkCommit("run", None, "http://f", "p", 3, 1060, ranges, at)
    )
    assert line.format("0") == str(SinkCommit("run", None, "http://f", "p", 3, 0, (), at))


def test_a_mistake_in_an_option_of_a_sink_is_told_at_once(silent):
    """Not as a warning in the middle of the night."""
    with pytest.raises(OptionError, match="tokn"):
        ProgressListener(sinks=[(silent, "p", {"tokn": "x"})])
