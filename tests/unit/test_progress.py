"""The line that shows the progress of a query."""

import json
import logging
from types import SimpleNamespace

import pytest

import zeh_spark
import zeh_spark.errors
from tests.cases import each_case
from zeh_spark.progress import feed_progress

_OFFSET = {
    "version": 1,
    "feed": "http://127.0.0.1:8080/flights",
    "partitionCount": 1,
    "partitions": {"0": {"events": 1234, "bytes": 5_000_000}},
}
_PROGRESS = {
    "runId": "a",
    "name": "flights",
    "batchId": 7,
    "numInputRows": 1234,
    "durationMs": {"triggerExecution": 2000},
    "sources": [{"endOffset": _OFFSET}],
}
_LINE = (
    "flights  http://127.0.0.1:8080/flights  batch 7  1,234 events  5.0 MB  617 events/s  "
    "1,234 in all"
)


@pytest.fixture
def shown(capsys, monkeypatch):
    """`shown(terminal=…)`: what two batches print."""

    def run(*, terminal):
        monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
        listener = zeh_spark.ProgressListener(live=True, logger=logging.getLogger("job"))
        for _ in range(2):
            event = SimpleNamespace(progress=SimpleNamespace(json=json.dumps(_PROGRESS)))
            listener.onQueryProgress(event)
        listener.onQueryTerminated(None)
        return capsys.readouterr().err

    return run


def test_a_terminal_shows_one_line_that_is_written_over(shown, monkeypatch):
    """As wide as the terminal at most, because what is wrapped stays."""
    monkeypatch.setenv("COLUMNS", "61")
    start = f"\r\x1b[2K{_LINE[:60]}"

    assert start * 2 + "\n" == shown(terminal=True)


def test_a_log_gets_a_line_for_each_batch(shown, caplog):
    """Of a run that nobody watches."""
    caplog.set_level(logging.INFO, "job")
    shown(terminal=True)
    assert [("job", logging.INFO, _LINE)] == caplog.record_tuples[:1]


def test_a_file_gets_a_line_for_each_batch(shown):
    """A log is not full of control characters."""
    second = _LINE.replace("1,234 in all", "2,468 in all")

    assert f"{_LINE}\n{second}\n" == shown(terminal=False)


_BEHIND = {
    "eventsBehind": {"total": 5200, "min": 0, "mean": 2600, "max": 5200},
    "secondsBehind": {"min": 0, "mean": 6.2, "max": 12.4},
}
_UNKNOWN = {"eventsBehind": None, "secondsBehind": None}


@each_case(
    ("end", "latest", "shown", "told"),
    [
        ({}, {"feed": "f", **_BEHIND}, "5,200 behind (12.4 s)", (5200, 5200, 12.4, None)),
        ({"more": True, **_BEHIND}, None, "5,200 behind (12.4 s)", (5200, 5200, 12.4, True)),
        ({"more": True, **_UNKNOWN}, None, "more events are unread", (None, None, None, True)),
        ({}, {"feed": "f", **_UNKNOWN}, "617 events/s", (None, None, None, None)),
        ({}, {"feed": "f"}, "617 events/s", (None, None, None, None)),
    ],
)
def test_the_lag_is_in_the_progress_of_every_spark(end, latest, shown, told):
    """I see how far a query is behind, and an unknown lag is no number."""
    offset = {**_OFFSET, "behind": end} if end else _OFFSET
    sources = [{"endOffset": offset, "latestOffset": json.dumps(latest or offset)}]
    (found,) = feed_progress({**_PROGRESS, "sources": sources})

    assert str(found).endswith(shown)
    assert told == (
        found.events_behind,
        found.max_events_behind,
        found.seconds_behind,
        found.has_more,
    )


@each_case(
    "sinks", ["http://feeds/orders", [("http://feeds/orders",)], ("http://feeds/orders", "job"), 7]
)
def test_sinks_of_another_form_are_refused_with_the_right_one(sinks):
    """I see what to give when I gave an address alone."""
    with pytest.raises(zeh_spark.errors.OptionError, match=r"a list of \(url, producer\)"):
        zeh_spark.ProgressListener(sinks=sinks)
