"""Fast and slow ways of serving a block give the same events, in pieces that are one body."""

from __future__ import annotations

import gzip
import json
import zlib
from importlib import import_module
from itertools import chain

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from zeh_spark import _zlib
from zeh_spark.errors import StoreError
from zeh_spark.service.app.rendering import (
    SEND_BYTES,
    body,
    gzip_piece,
    gzip_stream,
    plain_piece,
    plain_stream,
)  # fmt: skip
from zeh_spark.service.telemetry.exchange import Tally
from zeh_spark.wire import served_lines, wire
from zeh_spark.wire.served_lines import Block, renderer

NAMES = ["a", "b", "partition"]
TRAPS = ['{"partition":0,"headers":{', '\n{"partition":0,"headers":{"', '"},"data":', "x"]
events = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from(NAMES), st.sampled_from(TRAPS)),
        st.sampled_from(TRAPS) | st.integers() | st.dictionaries(st.sampled_from(TRAPS), st.none()),
    ),
    min_size=1,
)
stamps = st.sampled_from([{}, {"zeh-partition": "0", "zeh-time": "17"}])


@given(
    events, stamps, st.sampled_from([("_all",), (), ("a",), ("a", "zeh-time", "b")]), st.booleans()
)
def test_any_selection_of_headers_serves_the_same_events(
    given_events: list[tuple[dict[str, str], object]],
    given_stamps: dict[str, str],
    headers: tuple[str, ...],
    merged: bool,
) -> None:
    """What I ask for changes which headers I get, and nothing else."""
    lines = [wire.event_line(3, h, json.dumps(data).encode()) + b"\n" for h, data in given_events]
    block = Block(3, b"".join(lines), "7.abc", given_stamps)
    n = 2 if merged else 8
    served = b"".join(body([block], n, renderer(headers), Tally()))
    *found, checkpoint = map(json.loads, served.splitlines())
    wanted = [
        {k: v for k, v in {**h, **given_stamps}.items() if headers == ("_all",) or k in headers}
        for h, _ in given_events
    ]
    expected = [(3 % n, h, data) for h, (_, data) in zip(wanted, given_events, strict=True)]
    assert expected == [(e["partition"], e.get("headers", {}), e["data"]) for e in found]
    assert {"partition": 3 % n, "cursor": "7.abc"} == checkpoint


@given(events, stamps, st.booleans(), st.sets(st.sampled_from(TRAPS), min_size=1))
def test_selected_events_are_served_as_they_are_among_all(
    given_events: list[tuple[dict[str, str], object]],
    given_stamps: dict[str, str],
    numbered: bool,
    values: set[str],
) -> None:
    """Each has the same line, with its own number, and none is left out that has such a value."""
    lines = [wire.event_line(3, h, json.dumps(data).encode()) + b"\n" for h, data in given_events]
    block = Block(3, b"".join(lines), "7.abc", given_stamps, 40 if numbered else None)
    only = served_lines.parse_selection(json.dumps({"a": sorted(values)}))
    tally, some = Tally(), Tally()
    *every, end = b"".join(body([block], 8, renderer(("_all",)), tally)).splitlines()
    *found, checkpoint = b"".join(body([block], 8, renderer(("_all",), only), some)).splitlines()
    wanted = [
        line for line, (h, _) in zip(every, given_events, strict=True) if h.get("a") in values
    ]
    assert (wanted, end) == (found, checkpoint)
    assert (len(given_events), len(wanted)) == (tally.events, some.events)


def test_a_value_is_known_however_its_json_is_escaped() -> None:
    """Writers of all languages publish the same event, and I get it from each of them."""
    spellings = [
        b'"paid/off"',
        b'"paid\\/off"',
        b'"\\u0070aid/off"',
        b'"PAID/off"',
        b'"p\\\\u0061id/off"',
    ]
    lines = b"".join(
        b'{"partition":0,"headers":{"a":%b},"data":{"a":"paid/off"}}\n' % each for each in spellings
    )
    only = served_lines.parse_selection('{"a":["paid/off"]}')
    *found, _ = b"".join(
        body([Block(0, lines, "7.abc")], 1, renderer(("_all",), only), Tally())
    ).splitlines(keepends=True)
    assert lines.splitlines(keepends=True)[:3] == found


def test_lines_of_another_partition_are_not_served_as_nothing() -> None:
    """A damaged store is an error, not fewer events."""
    lines = wire.event_line(1, {}, b"1") + b"\n"
    block = Block(0, lines, "7.abc", {"zeh-partition": "0"})
    with pytest.raises(StoreError, match=r"ends with cursor 7\.abc has lines of another one"):
        b"".join(body([block], 2, renderer(("_all",)), Tally()))


texts = st.lists(st.binary() | st.builds(bytes.__mul__, st.binary(), st.integers(0, 1000)))


@pytest.fixture(params=["isal.isal_zlib", "zlib"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library that packs in this test."""
    monkeypatch.setattr(_zlib, "library", import_module(request.param))


@pytest.mark.usefixtures("library")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts)
def test_compressed_pieces_are_one_gzip_stream(given_texts: list[bytes]) -> None:
    """Also for clients that know one gzip member only, as httpx; plain ones are what they hold."""
    sent = chain.from_iterable(plain_stream(map(plain_piece, given_texts)))
    assert b"".join(given_texts) == b"".join(sent)
    packed = b"".join(chain.from_iterable(gzip_stream(map(gzip_piece, given_texts))))
    member = zlib.decompressobj(16 + zlib.MAX_WBITS)
    assert b"".join(given_texts) == member.decompress(packed) == gzip.decompress(packed)
    assert (True, b"") == (member.eof, member.unused_data)


@pytest.mark.usefixtures("library")
def test_a_compressed_piece_can_be_read_once_it_has_arrived() -> None:
    """I parse events while the rest is still on its way."""
    first, _ = (gzip_piece(text) for text in (b"first", b"second"))
    for member in (zlib.decompressobj(31), _zlib.library.decompressobj(31)):
        assert b"first" == member.decompress(b"".join(next(gzip_stream([first]))))


def test_a_piece_is_sent_as_it_was_made() -> None:
    """A page is not copied before it is sent."""
    text = b"x" * (2 * SEND_BYTES + 1)
    ((sent,),) = plain_stream([plain_piece(text)])
    assert sent is text
