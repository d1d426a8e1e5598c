"""The control events that `zeh-spark sessions` publishes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cases import each_case
from tests.fix_cli import Run, published, succeed


@pytest.fixture
def url(run: Run, store_url: str):
    run("create", "orders", "--partitions", "8")
    with published(store_url) as base:
        yield f"{base}/orders"


def events(url: str) -> list[dict[str, Any]]:
    read = succeed("tail", url, "--from", "first", "--no-follow", "--headers")
    return [
        {**each, "headers": {k: v for k, v in each["headers"].items() if not k.startswith("zeh-")}}
        for each in map(json.loads, read.splitlines())
    ]


STEP = ("--number", "step=1", "--attempt", "3")


@each_case(
    ("words", "headers", "data"),
    [
        (("end", "order=A"), {"order": "A", "session-control": "close"}, {}),
        (("release", "order=A=b"), {"order": "A=b", "session-control": "release"}, {}),
        (("retry", "order=A", *STEP),
         {"order": "A", "step": "1", "session-control": "retry", "session-attempt": "3"}, {}),
        (("skip", "shop=x", "order=A", *STEP, "--control-header", "do", "--attempt-header", "try"),
         {"shop": "x", "order": "A", "step": "1", "do": "skip", "try": "3"}, {}),
        (("skip", "--attempt", "3", "--data", '{"order": "A", "step": 1}'),
         {"session-control": "skip", "session-attempt": "3"}, {"order": "A", "step": 1}),
    ],
)  # fmt: skip
def test_a_control_event_has_what_the_query_reads(url, words, headers, data):
    """Each command and each option, and once more: nothing is added."""
    before = events(url)
    asked = ("sessions", words[0], url, *words[1:])

    assert "Published " + headers.get("session-control", "skip") in succeed(*asked)
    assert "Published before, at " in succeed(*asked)

    (event,) = [each for each in events(url) if each not in before]
    assert (headers, data) == (event["headers"], event["data"])


def test_a_later_session_of_the_same_name_is_ended_under_another_name(url):
    """I choose it with --again. Other words, numbers and keys are other control events."""
    end = ("sessions", "end", url, "order=A")
    for words in ((), ("--again", "2"), ("--again", "2"), ("--again", "3"), ("--key", "B")):
        succeed(*end, *words)
    for number in ("1", "2"):
        succeed("sessions", "retry", url, "order=A", "--number", f"step={number}", "--attempt", "1")

    assert 4 + 2 == len(events(url))


def test_a_control_event_goes_where_the_events_of_its_session_are(url):
    """So the query reads it after them: by the session, if it has one part, or by --key."""
    placed = [json.dumps({"key": key, "data": key}) for key in "ABCDEFGH"]
    succeed("publish", url, "--producer", "shop", "--envelope", stdin="\n".join(placed))
    partitions = {each["data"]: each["partition"] for each in events(url)}
    assert len({*partitions.values()}) > 3

    for order in "ABCD":
        succeed("sessions", "end", url, f"order={order}")
    for order in "EFGH":
        succeed("sessions", "end", url, "shop=x", f"order={order}", "--key", order)

    controls = {e["headers"]["order"]: e["partition"] for e in events(url) if e["data"] == {}}
    assert partitions == controls
