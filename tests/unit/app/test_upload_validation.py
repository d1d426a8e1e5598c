"""What a publisher looks at before it keeps an upload: a whole chunk at once, and a chunk that
breaks a rule line by line. Both have to be of one opinion.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.cases import each_case
from tests.strategies import events, headers, json_texts
from zeh_spark.service.app.upload_validation import MAX_UNPACKED, _faults, _rests, verified_upload
from zeh_spark.service.store.problems import Problem
from zeh_spark.wire import event_key, wire
from zeh_spark.wire.event_origin import HEADER, is_origin
from zeh_spark.wire.upload_format import (
    LINE_BYTES,
    Chunker,
    StagedChunk,
    content_of,
    frame_of,
    lines_of,
    prefix,
    rest_of,
    upload_body,
)

PARTITION = 3
LONGEST = "ä".encode() * (event_key.MAX_BYTES // 2)
"""The longest key that is kept."""


def line_of(text: bytes, data: bytes) -> bytes:
    return prefix(PARTITION) + b'"headers":%b,"data":%b}' % (text, data)


good_lines = st.builds(
    lambda event: prefix(PARTITION) + rest_of(*event), events.filter(lambda e: e[1] != b"null")
)
pieces = st.sampled_from(
    [
        *(b" ", b"\t", b"\r", b"\n", b"\n\n", b"\0", b"\x1f", b"\x7f", b"\xff", b"\xef\xbb\xbf"),
        *(b'"', b"\\", b"{", b"}", b"[", b"]", b":", b",", b"null", b"NaN", b"-", b"0", b"1e999"),
        *(b'"headers":', b'"data":', b'"partition":', b'{"partition":3,', b'"data":null}', b"{}"),
        *(b'"cursor":"1",', b'"zeh-time":"1"', b'"a":"1",', b"\\u007aeh-", b"\\ud800", b"\\n"),
        *("\u2028".encode(), "ä".encode(), b"\\u0061", b'"\\u0061":"1",', b"\\/", b"\\u0000"),
    ]
)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """The lines of a chunk, right ones or nearly so, each ended by a newline."""
    lines = b"".join(line + b"\n" for line in draw(st.lists(good_lines, min_size=1, max_size=4)))
    for _ in range(draw(st.integers(0, 3))):
        begin = draw(st.integers(0, len(lines)))
        end = min(len(lines), begin + draw(st.integers(0, 4)))
        lines = lines[:begin] + draw(pieces | st.just(b"")) + lines[end:]
    return lines if lines.endswith(b"\n") else lines + b"\n"


@st.composite
def assembled(draw: st.DrawFn) -> bytes:
    """Lines put together of parts that are each right or wrong."""
    blank = st.sampled_from([b"", b"", b"", b" ", b"\r"])
    texts = st.sampled_from(
        [b"{}", b'{"a":"1"}', b'{"a" :"1"}', b'{"a":"\\u0031"}', b'{"a":"1","a":"1"}', b"null",
         b'{"a":"1","\\u0061":"1"}', b'{"zeh-x":"1"}', b'{"a":1}', b"[]", b'{"a":" \\" "}',
         b'{"a":"","b":"\\\\"}', b'{"":""}', b'{"a":"1",}', b'{ }',
         b'{"zeh-origin":"f/p/0/1/2"}', b'{"zeh-origin":"\\u0066/p/0/1/2"}', b'{"zeh-origin":"f"}',
         b'{"zeh-key":""}', b'{"zeh-key":"%b"}' % LONGEST, b'{"zeh-key":"%bx"}' % LONGEST,
         b'{"zeh-key":"\\"","zeh-origin":"f/p/0/1/2"}', b'{"zeh-key":null}'],
    )  # fmt: skip
    data = json_texts() | st.sampled_from([b"null", b"nul", b"", b"1 ", b'"null"', b'{"a":null}'])
    line = st.builds(
        lambda a, text, b, value, c: b'{"partition":3,%b"headers":%b%b,"data":%b}%b'
        % (a, text, b, value, c),
        blank, texts, blank, data, blank,
    )  # fmt: skip
    return b"".join(each + b"\n" for each in draw(st.lists(line, min_size=1, max_size=4)))


@given(mutated() | assembled())
@example(b"\n")
@example(b"\n\n")
@example(line_of(b'{"a":"\x7f"}', b"1") + b"\n")
@example(line_of(b"{}", b'"\\ud83d\\ude00"') + b"\n")
@example(line_of(b"{}", b'"%b"' % (b"x" * LINE_BYTES)) + b"\n")
@example(line_of(b"{}", b"[" * 20_000 + b"]" * 20_000) + b"\n")
@example(b'{"partition":4,"headers":{},"data":1}\n')
@example(b'{"partition":3,"data":1,"headers":{}}\n')
@example(b'{"data":123456,"headers":{},"partition":3}\n')
@example(line_of(b"12", b"1") + b"\n")
@example(line_of(b"{}", b" 1") + b"\n")
@example(line_of(b"{}", b"[1,\n2]") + b"\n")
@example(line_of(b"{}", b"[1,\n2]") + b" " + line_of(b"{}", b"1") + b"\n")
def test_chunk_is_refused_if_and_only_if_a_line_is(lines: bytes) -> None:
    """What is looked at all at once is judged as line by line, and the reason is always found.
    Every line that is stored is an event of the protocol, with its partition and its headers.
    """
    found = _rests(lines, PARTITION)
    assert (found is None) == any(True for _ in _faults(lines, PARTITION))
    if found is None:
        return
    rests, _ = found
    assert lines == b"".join(prefix(PARTITION) + rest + b"\n" for rest in rests)
    for line in lines.split(b"\n")[:-1]:
        event = json.loads(line)
        assert ["partition", "headers", "data"] == list(event)
        assert PARTITION == event["partition"]
        assert event["data"] is not None
        assert is_origin(event["headers"].pop(HEADER, "f/p/0/1/2"))
        assert len(event["headers"].pop(event_key.HEADER, "").encode()) <= 1024
        assert not any(name.startswith(wire.RESERVED_HEADER) for name in event["headers"])
        assert b"\r" not in line


@each_case(
    ("headers", "said"),
    [
        (b'{"zeh-key":""}', None),
        (b'{"zeh-key":"%b"}' % LONGEST, None),
        (b'{"a":"1","zeh-key":"\\"\\n","zeh-origin":"f/p/0/1/2"}', None),
        (b'{"zeh-key":"%bx"}' % LONGEST, "the header 'zeh-key': it takes 1,025 bytes in UTF-8"),
        (b'{"zeh-key":"\\u0061%b"}' % LONGEST, "the header 'zeh-key': it takes 1,025 bytes"),
        (b'{"zeh-keys":"1"}', "the header 'zeh-keys' is reserved for the publisher"),
        (b'{"zeh-key":"1","zeh-time":"1"}', "the header 'zeh-time' is reserved"),
        (b'{"zeh-key":"1","zeh-origin":"f"}', "'zeh-origin': it must be feed/producer"),
    ],
)
def test_reserved_headers_that_writers_may_add(headers: bytes, said: str | None) -> None:
    """A kept key and an origin, and nothing else that begins as stamps do."""
    lines = line_of(b"{}", b"1") + b"\n" + line_of(headers, b"2") + b"\n"
    faults = list(_faults(lines, PARTITION))
    assert (said is None) == (_rests(lines, PARTITION) is not None) == (not faults)
    if said:
        ((number, reason),) = faults
        assert (1, True) == (number, said in reason)


@each_case("depth", [100, 500, 900, 950, 990, 1000, 1100, 5000])
def test_depth_is_judged_alike(depth: int) -> None:
    """Wherever the limit of nesting is, both ways agree."""
    for each in range(-3, 4):
        nested = line_of(b"{}", b"[" * (depth + each) + b"]" * (depth + each)) + b"\n"
        assert (_rests(nested, PARTITION) is None) == any(_faults(nested, PARTITION))


def staged(*data: bytes, partition: int = PARTITION) -> list[StagedChunk]:
    chunker = Chunker()
    return [*(c for d in data for c in chunker.add(partition, {}, d)), *chunker.close()]


@given(st.lists(st.tuples(st.integers(0, 3), headers, json_texts()), max_size=30))
def test_upload_is_read_as_it_was_made(sent: Sequence[tuple[int, dict[str, str], bytes]]) -> None:
    """Chunks, counts and content of both sides are the same."""
    chunker = Chunker()
    chunks = []
    for partition, named, data in sent:
        if data != b"null":
            chunks += chunker.add(partition, named, data)
    chunks += chunker.close()
    upload, *_ = verified_upload(upload_body(chunks), 1, 2, 3, 4)
    assert (tuple(chunks), chunker.content) == (upload.chunks, upload.content)
    assert (1, 2, 3) == (upload.task, upload.attempt, upload.number)


@given(st.lists(st.binary(max_size=30) | st.sampled_from([b"[]\n", b"[{}]\n"]), max_size=4))
def test_any_body_is_read_or_named(parts: list[bytes]) -> None:
    """No bytes make the publisher fail."""
    body = b"".join(parts)
    try:
        assert () == verified_upload(body, 0, 0, 0, 4)[0].chunks
    except Problem as problem:
        assert ("invalid-upload", 422) == (problem.name, problem.status)


@given(st.data())
def test_changed_upload_is_the_same_or_named(data: st.DataObject) -> None:
    """A body that is damaged is refused, or says what it said."""
    chunks = [*staged(*[b"1"] * 20), *staged(b'"x"', partition=1)]
    body = bytearray(upload_body(chunks))
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        upload, *_ = verified_upload(bytes(body), 0, 0, 0, 4)
    except Problem as problem:
        assert "invalid-upload" == problem.name
        return
    for each in upload.chunks:
        lines = lines_of(each.frame)
        assert (each.size, each.events) == (len(lines), lines.count(b"\n"))
        begin = len(prefix(each.partition))
        assert each.content == content_of([line[begin:] for line in lines.split(b"\n")[:-1]])


def test_stored_line_leaves_room_for_its_stamps() -> None:
    """The longest line that is taken can be served with all headers to any client."""
    room = LINE_BYTES - len(line_of(b"{}", b'""'))
    lines = line_of(b"{}", b'"%b"' % (b"x" * room)) + b"\n"
    assert _rests(lines, PARTITION) is not None
    assert _rests(lines[:-3] + b'x"}\n', PARTITION) is None
    assert LINE_BYTES + wire.STAMP_BYTES <= wire.MAX_LINE


def test_sizes_of_an_upload_are_added_up_honestly() -> None:
    """The limit of what is unpacked holds, whatever an index says."""
    lines = (line_of(b"{}", b'"%b"' % (b"x" * 1000)) + b"\n") * 900
    chunk = StagedChunk(PARTITION, 900, len(lines), 0, frame_of(lines))
    chunks = [chunk] * (MAX_UNPACKED // len(lines) + 2)
    index, _, frames = upload_body(chunks).partition(b"\n")
    entries = [
        *msgspec.json.decode(index),
        {**msgspec.json.decode(index)[0], "size": -len(lines) * 9},
    ]
    body = msgspec.json.encode(entries) + b"\n" + frames + chunk.frame
    with pytest.raises(Problem) as refused:
        verified_upload(body, 0, 0, 0, 4)
    assert f"chunk {len(entries) - 1}" not in refused.value.detail  # all the others were unpacked
