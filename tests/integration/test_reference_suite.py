"""The reference implementation's own test cases, against our publisher and our reader.

The cases are those of `zeroeventhub` 0.2.3 (PyPI), which are not in its sdist: `python/
zeroeventhub/tests` of vippsas/zeroeventhub at 2982794 has 25 tests, which make 34 cases. Each
parameter here is the name of one, rebuilt from what it states. `CASES` has them all, and a test
holds that each is tried here or has its reason.

What is otherwise here, on purpose:

- A cursor or number of partitions that we do not know is answered 400 as there, but with a problem
  document. `n=1` of two partitions merges them, which the specification allows.
- A line without `partition` is of the one partition that was asked for (the draft of version 2
  leaves it out); there it is an error.
- Events come with the checkpoint after them, not one by one: without it they cannot be continued.
- An empty page size, set of cursors or list of headers is refused, and not left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from tests.cases import each_case
from tests.fix_publisher import Answer as Page
from tests.fix_publisher import Publisher
from tests.fix_raw_server import (
    NO_IDENTITY,
    RawServer,
    Request,
    chunked,
    head,
    ok,
    refused,
)
from tests.fix_raw_server import Answer as Raw
from tests.fix_reference import reference_page, reference_server, why_absent
from zeh_spark.errors import OptionError, PublisherError
from zeh_spark.publish import Producer
from zeh_spark.reading import reader

BEFORE, EVENTS = ["e0", "e0"], [["e1", "e2", "e3"], ["e4", "e5", "e6"]]
HEADERS = {name: name for name in ("h1", "h2", "h3")}
PEOPLE = [
    {"id": 1000, "type": "PersonNameChanged", "new_name": {"first_name": "Åse", "surname": "Li"}},
    {"id": 1001, "type": "PersonNameChanged", "new_name": {"first_name": "Jo", "surname": "King"}},
]

ANSWERED = {
    "request_handler_single_cursor": ("n=2&cursor0={0}", [0], {}),
    "request_handler_double_cursors": ("n=2&cursor0={0}&cursor1={1}", [0, 1], {}),
    "request_handler_full_parameter_set": (
        "n=2&cursor0={0}&cursor1={1}&headers=h1,h2,h3&pagesizehint=10", [0, 1], HEADERS,
    ),
    "request_handler_cursor0_skipping": ("n=2&cursor1={1}", [1], {}),
}  # fmt: skip
REFUSED = {
    "no_n_param": ("cursor0={0}&cursor1={1}&headers=h1,h2,h3", "partition-count-missing"),
    "invalid_n_param": ("n=a&cursor0={0}&cursor1={1}&headers=h1,h2,h3", "bad-partition-count"),
    "mismatched_n_param[n=1]": ("n=1&cursor0=0", "malformed-cursor"),
    "mismatched_n_param[n=0]": ("n=0", "bad-partition-count"),
    "invalid_pagesizehint_param": ("n=2&cursor0={0}&pagesizehint=foobar", "bad-page-size-hint"),
    "invalid_cursor_param[cursor2]": ("n=2&cursor2={0}&headers=h1,h2", "partition-out-of-range"),
    "invalid_cursor_param[none]": ("n=2", "cursors-missing"),
}
READ = {
    "request_handler_single_cursor": ([0], {"partitions": "0"}),
    "request_handler_double_cursors": ([0, 1], {}),
    "request_handler_full_parameter_set": (
        [0, 1], {"headers": ("h1", "h2", "h3"), "page_size_hint": 10},
    ),
    "request_handler_cursor0_skipping": ([1], {"partitions": "1"}),
    "work_with_async_endpoint": ([0], {"partitions": "0", "headers": "none"}),
}  # fmt: skip
NOT_READ = {
    "no_n_param": ({"partition_count": None}, "partition_count"),
    "invalid_n_param": ({"partition_count": "a"}, "partition_count"),
    "mismatched_n_param[n=1]": ({"partition_count": 1}, "Partition count doesn't match"),
    "mismatched_n_param[n=0]": ({"partition_count": 0}, "partition_count"),
    "invalid_pagesizehint_param": ({"page_size_hint": "foobar"}, "page_size_hint"),
    "invalid_cursor_param[cursor2]": ({"cursors": {2: "c0"}}, "cursors"),
    "invalid_cursor_param[none]": ({"cursors": {}}, "cursors"),
}
FETCHED = {
    "client_can_successfully_fetch[None-None]": (None, None),
    "client_can_successfully_fetch[None-all]": (None, ["_all"]),
    "client_can_successfully_fetch[1000-all]": (1000, ["_all"]),
    "client_can_successfully_fetch[1000-None]": (1000, None),
    "client_can_successfully_fetch[None-named]": (None, ["header1", "header2"]),
}
LINES = {
    "multiple_lines_in_response[10-two]": (10, ("header1", "header2")),
    "multiple_lines_in_response[0-None]": (None, "none"),
    "multiple_lines_in_response[5-one]": (5, ("header1",)),
    "multiple_lines_in_response[0-one]": (None, ("header1",)),
}
QUIET = {
    "response_is_empty": Raw((head(204),)),
    "response_is_empty_line": Raw((head(204) + b"\n",), "close"),
}
BAD = {
    "unexpected_response": (refused(404), "answered 404"),
    "while_parsing_event": (ok(b'{ "data": "" }'), "sends events but no checkpoint"),
}
ALONE = {
    "multiple_line_separators_in_response",
    "missing_cursors",
    "invalid_json_line",
    "while_parsing_checkpoint",
    "while_receiving_checkpoint",
    "while_receiving_event",
    "page_contains_all_received_events_and_checkpoints",
}
LEFT_OUT = {
    "page_is_empty_after_clearing": "a page is a value, and nothing collects pages",
    "page_contains_all_when_receiving_after_being_cleared": "the same",
}
CASES = 34


def test_each_case_is_tried_or_has_its_reason() -> None:
    tried = {*ANSWERED, *REFUSED, *READ, *NOT_READ, *FETCHED, *LINES, *QUIET, *BAD, *ALONE}
    assert CASES == len(tried | {*LEFT_OUT})


# Our publisher, by its answers


@pytest.fixture
def cursors(publisher: Publisher) -> dict[int, str]:
    """The cursors after an earlier event of each partition, with three events after each."""
    publisher.publish(*BEFORE)
    before = publisher.get("n=2&cursor0=_first&cursor1=_first").cursors
    with closing(Producer(publisher.url, "shop")) as producer, producer.batch() as batch:
        for partition, events in enumerate(EVENTS):
            for event in events:
                batch.add(json.dumps(event), partition=partition, headers={**HEADERS, "h4": "h4"})
    return before


@pytest.mark.parametrize(("query", "partitions", "headers"), ANSWERED.values(), ids=ANSWERED)
def test_publisher_answers(
    publisher: Publisher,
    cursors: dict[int, str],
    query: str,
    partitions: list[int],
    headers: dict[str, str],
) -> None:
    """Each partition that was asked for: its events, the headers that were named, a checkpoint."""
    page = publisher.get(query.format(*cursors.values()))

    shown = {"headers": headers} if headers else {}
    expected: list[dict[str, Any]] = []
    for each in partitions:
        expected += [{"partition": each, **shown, "data": event} for event in EVENTS[each]]
        expected.append({"partition": each, "cursor": page.cursors[each]})
    assert (200, expected) == (page.status, page.lines)
    again = query.format(*[page.cursors.get(each, "_first") for each in (0, 1)])
    assert [] == publisher.get(again).data


def test_publisher_refuses(publisher: Publisher, cursors: dict[int, str]) -> None:
    """400, as there, and what is wrong with the request."""

    @each_case(("name", "query", "problem"), [(name, *each) for name, each in REFUSED.items()])
    def refuses(name: str, query: str, problem: str) -> None:
        page: Page = publisher.get(query.format(*cursors.values()))
        assert (400, f"urn:zeroeventhub:problem:{problem}") == (page.status, page.problem["type"])

    refuses()


# Our publisher, read by the reference client


@pytest.fixture(scope="module")
def _reference() -> None:
    if reason := why_absent():
        pytest.skip(reason)


@pytest.fixture(scope="module")
def people(_reference: None, quiet_publisher: Publisher) -> str:
    """A feed of our publisher with two events, both in partition 0."""
    with closing(Producer(quiet_publisher.url, "people")) as producer, producer.batch() as batch:
        batch.add(PEOPLE[0], partition=0, headers={"header1": "1"})
        batch.add(PEOPLE[1], partition=0)
    return quiet_publisher.url


@pytest.mark.parametrize(("hint", "headers"), FETCHED.values(), ids=FETCHED)
def test_reference_client_fetches(people: str, hint: int | None, headers: list[str] | None) -> None:
    """Their client gets my events, exactly, whatever it asks for."""
    page = reference_page(people, 2, {0: "_first"}, hint, headers)

    own = [
        {name: text for name, text in (found or {}).items() if not name.startswith("zeh-")}
        for _, found, _ in page.events
    ]
    assert (None, PEOPLE) == (page.error, [data for _, _, data in page.events])
    assert [{"header1": "1"} if headers else {}, {}] == own
    assert [0] == [partition for partition, _ in page.checkpoints]


# Our reader, at the reference server


@pytest.fixture(scope="module")
def three_events(_reference: None) -> Iterator[str]:
    with reference_server(events=3) as url:
        yield url


@pytest.fixture(scope="module")
def their_people(_reference: None) -> Iterator[str]:
    with reference_server(
        partitions=1, rows=[({"header1": "1"}, PEOPLE[0]), (None, PEOPLE[1])]
    ) as (url):
        yield url


def read_events(url: str, cursors: Any = None, **options: Any) -> list[dict[str, Any]]:
    """All events of a feed, with their own headers alone, and their data parsed."""
    found = [
        event
        for page, _ in reader(url, cursors, retry_timeout="1s", **options)
        for event in page.to_pylist()
    ]
    for event in found:
        event["data"] = json.loads(event["data"])
        event["headers"] = {k: v for k, v in event["headers"] if not k.startswith("zeh-")}
    return found


@pytest.mark.parametrize(("partitions", "options"), READ.values(), ids=READ)
def test_reader_reads(three_events: str, partitions: list[int], options: dict[str, Any]) -> None:
    """I get the events of my partitions, with the headers that I named."""
    found = read_events(three_events, partition_count=2, **options)

    named = options.get("headers", ["_all"])  # that server knows no `_all`, and answers its name
    expected = [
        {
            "partition": partition,
            "headers": {name: f"value {i}" for name in named if named != "none"},
            "data": {"id": i},
        }
        for partition in partitions
        for i in range(3)
    ]
    assert expected == found


@pytest.mark.parametrize(("options", "said"), NOT_READ.values(), ids=NOT_READ)
def test_reader_says_what_is_wrong(three_events: str, options: dict[str, Any], said: str) -> None:
    """A mistake of mine is named; what the server alone can know, in the server's words."""
    with pytest.raises((OptionError, PublisherError), match=said):
        read_events(three_events, **{"partition_count": 2, **options})


@pytest.mark.parametrize(("hint", "headers"), FETCHED.values(), ids=FETCHED)
def test_reader_fetches(their_people: str, hint: int | None, headers: list[str] | None) -> None:
    """I get their events exactly, also those with `null` for headers."""
    found = read_events(
        their_people, partition_count=1, page_size_hint=hint, headers=headers or "none"
    )

    assert PEOPLE == [event["data"] for event in found]
    assert [{"header1": "1"}, {}] == [event["headers"] for event in found]


# Our reader, at a server that answers what the cases say


BOTH = {0: "cursor0", 1: "cursor1"}


def by_cursor(**answers: Raw) -> Callable[[Request], Raw]:
    """Answer a cursor of partition 1 as given, with a `c` before it, and others with nothing."""
    return lambda request: answers.get(f"c{request.query.get('cursor1')}", ok())


@pytest.mark.parametrize(("hint", "headers"), LINES.values(), ids=LINES)
def test_lines_of_a_response(raw_server: RawServer, hint: int | None, headers: Any) -> None:
    """An event after the last checkpoint comes with the next one, once; I ask for what was said."""
    event = b'{ "partition": 1, "headers": {}, "data": "some data"}\n'
    raw_server.discovery = NO_IDENTITY
    raw_server.respond = by_cursor(
        ccursor1=chunked(b'{ "partition": 1, "cursor": "5" }\n', event),
        c5=ok(event + b'{ "partition": 1, "cursor": "6" }\n'),
    )
    pages = list(
        reader(raw_server.url, BOTH, partition_count=2, page_size_hint=hint, headers=headers)
    )

    assert ["some data"] == [json.loads(e["data"]) for page, _ in pages for e in page.to_pylist()]
    cursors = [json.loads(kept)["1"] for _, kept in pages]
    assert ["5", "6"] == cursors
    asked = raw_server.requests[-1].query
    named = None if headers == "none" else ",".join(headers)
    assert ("2", str(hint or 10_000), named) == (
        asked["n"], asked["pagesizehint"], asked.get("headers")
    )  # fmt: skip


def test_multiple_line_separators_in_response(raw_server: RawServer) -> None:
    """Only a newline ends a line, wherever the bytes are cut; the last may end without one."""
    body = (
        '{ "partition": 0, "data": "some\\n data with \x85 line separators"}\n'
        '{ "partition": 0, "data": { "more": ["\\r\\n"], "foo": "bar\x85baz" } }\n'
        '{ "partition": 0, "cursor": "5" }\r'
    ).encode()
    raw_server.discovery = NO_IDENTITY
    raw_server.respond = lambda request: (
        chunked(body[:50], body[50:]) if request.query["cursor0"] == "cursor0" else ok()
    )

    ((page, kept),) = reader(raw_server.url, {0: "cursor0"}, partition_count=1)

    data = [json.loads(event["data"]) for event in page.to_pylist()]
    second = {"more": ["\r\n"], "foo": "bar\x85baz"}
    assert ["some\n data with \x85 line separators", second] == data
    assert "5" == json.loads(kept)["0"]


@pytest.mark.parametrize("quiet", QUIET.values(), ids=QUIET)
def test_quiet_answers(raw_server: RawServer, quiet: Raw) -> None:
    """No content is no error, and no event."""
    raw_server.discovery, raw_server.respond = NO_IDENTITY, lambda request: quiet

    assert [] == list(reader(raw_server.url, BOTH, partition_count=2))


@pytest.mark.parametrize(("answer", "said"), BAD.values(), ids=BAD)
def test_bad_answers(raw_server: RawServer, answer: Raw, said: str) -> None:
    """What is wrong with the answer is in the error; no event comes before it."""
    raw_server.discovery, raw_server.respond = NO_IDENTITY, by_cursor(ccursor1=answer)

    with pytest.raises(PublisherError, match=said):
        read_events(raw_server.url, BOTH, partition_count=2)


def test_a_checkpoint_before_a_bad_line_is_kept(raw_server: RawServer) -> None:
    """invalid_json_line: I am asked to begin after it, not before."""
    raw_server.discovery = NO_IDENTITY
    good = b'{"partition": 1,"data": 7}\n{"partition": 1,"cursor": "5"}\n'
    raw_server.respond = by_cursor(ccursor1=ok(good + b"invalid json"), c5=ok(b"invalid json"))
    pages = reader(raw_server.url, BOTH, partition_count=2, retry_timeout="1s")

    page, kept = next(pages)

    assert ([7], "5") == ([json.loads(e["data"]) for e in page.to_pylist()], json.loads(kept)["1"])
    with pytest.raises(PublisherError, match="invalid json"):
        next(pages)


def test_lines_that_name_no_partition(raw_server: RawServer) -> None:
    """while_parsing_checkpoint, while_parsing_event: the one that I asked for is meant."""
    raw_server.discovery = NO_IDENTITY
    raw_server.respond = by_cursor(ccursor1=ok(b'{ "data": "" }\n{ "cursor": "0" }'))

    found = read_events(raw_server.url, BOTH, partition_count=2)

    assert [{"partition": 1, "headers": {}, "data": ""}] == found


def test_missing_cursors(raw_server: RawServer) -> None:
    """None begins at the first event; no cursors at all are a mistake."""
    raw_server.discovery, raw_server.respond = NO_IDENTITY, lambda request: ok()
    assert [] == read_events(raw_server.url, partition_count=2)
    assert {"_first", "_last"} == {
        each.query.get("cursor0", "_first") for each in raw_server.requests
    }
    with pytest.raises(OptionError, match="'cursors'"):
        read_events(raw_server.url, {}, partition_count=2)


def test_what_my_program_raises_loses_nothing(publisher: Publisher) -> None:
    """while_receiving_event, while_receiving_checkpoint: the page that I did not keep comes again,
    and so it is with all pages and cursors of page_contains_all_received_events_and_checkpoints.
    """
    publisher.publish(1, 2, partition=0)
    publisher.publish(3, partition=1)
    kept, found = None, []
    for failures in (1, 1, 0):
        with closing(reader(publisher.url, kept, page_size_hint=1)) as pages:
            for number, (page, cursors) in enumerate(pages):
                if number == failures == 1:
                    break  # as if my program had raised an error here, before it kept the page
                found += [(e["partition"], int(e["data"])) for e in page.to_pylist()]
                kept = cursors

    assert [(0, 1), (0, 2), (1, 3)] == found
    latest = publisher.get("n=2&cursor0=_last&cursor1=_last").cursors
    assert {"0": latest[0], "1": latest[1]} == {
        name: cursor for name, cursor in json.loads(kept or "").items() if name in "01"
    }
