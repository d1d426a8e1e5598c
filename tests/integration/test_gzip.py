"""Packed answers of both libraries: isal, and Python's zlib where isal is not installed."""

import gzip
import subprocess
import sys
import threading
import zlib
from importlib import import_module
from itertools import product

import pytest
import requests

from tests.fix_client import BODY, ask, checkpoint, client, event, read_whole
from tests.fix_raw_server import chunked, ok
from zeh_spark import _zlib
from zeh_spark.errors import PublisherError

PARTS = [event(1) + checkpoint("c1"), b"", event(2) + checkpoint("c2")]
MEMBERS = [gzip.compress(part) for part in PARTS]
PACKED = b"".join(MEMBERS)
REST = {"c0": BODY, "c1": PARTS[2], "c2": b""}


@pytest.fixture(autouse=True, params=["isal.isal_zlib", "zlib"])
def library(request, monkeypatch):
    """The library that packs in the publisher of this test, and unpacks in its client."""
    monkeypatch.setattr(_zlib, "library", import_module(request.param))


def read_feed(raw_server, body):
    """The numbers of the events up to the last one, and how many answers were needed for them, if
    the first of them has this packed body.
    """
    answers, asked = [ok(body, content_encoding="gzip")], len(raw_server.requests)
    raw_server.respond = lambda request: (
        answers.pop() if answers else ok(REST[request.query["cursor0"]])
    )
    one, numbers, cursor = client(raw_server), [], "c0"
    while cursor != "c2":
        more, end = read_whole(one.page(ask(cursor)))
        numbers += more
        cursor = end.cursor
    return numbers, len(raw_server.requests) - asked


def test_an_answer_of_several_members_may_be_cut_at_any_byte(raw_server):
    """I get each event once. One of the members is empty, as those of some servers are (ZE-01)."""
    found = [read_feed(raw_server, PACKED[:cut]) for cut in range(len(PACKED))]

    assert ([1, 2], 1) == read_feed(raw_server, PACKED)
    assert [([1, 2], 2)] * len(PACKED) == found


def test_a_wrong_checksum_or_length_is_no_end(raw_server):
    """gzip ends with the CRC and the length of its text. With a wrong one, I ask again."""
    for member, place in product(range(3), range(1, 9)):
        wrong = [bytearray(each) for each in MEMBERS]
        wrong[member][-place] ^= 1

        assert ([1, 2], 2) == read_feed(raw_server, b"".join(wrong)), (member, place)


def test_bytes_after_the_last_member_are_no_end(raw_server):
    """Whatever they are, they show that something is wrong with the answer."""
    garbage = b"\x1f\x8b garbage."
    found = [read_feed(raw_server, PACKED + garbage[:size]) for size in range(1, len(garbage))]

    assert [([1, 2], 2)] * len(found) == found


def test_what_has_arrived_is_delivered_before_the_rest(raw_server):
    """Also if it is a byte more than one step unpacks, and no packed byte is left for another."""
    size = (1 << 20) + 1 - len(checkpoint("c1"))
    text = event(1) * (size // len(event(1)) - 1)
    text += event(1).rjust(size - len(text)) + checkpoint("c1")
    packer, go = zlib.compressobj(wbits=31), threading.Event()
    first = packer.compress(text)
    first += packer.flush(zlib.Z_SYNC_FLUSH)
    rest = packer.compress(PARTS[2]) + packer.flush()
    raw_server.script(chunked(first, go, rest, content_encoding="gzip"))
    page = iter(client(raw_server, compression="gzip").page(ask()))

    found = [next(page).cursor]
    go.set()
    found += [each.cursor for each in page]

    assert ["c1", "c2"] == found


def test_a_refusal_that_is_not_what_it_says_is_named(raw_server):
    """A proxy that says gzip and sends text does not hide the refusal."""
    raw_server.script(ok(b"This feed is not for you", 400, content_encoding="gzip"))

    with pytest.raises(PublisherError, match=r"400.*body not readable"):
        read_whole(client(raw_server).page(ask()))


def test_an_answer_is_one_gzip_member_of_the_plain_text(publisher):
    """Clients that read one member only, as httpx does, get all. The second answer was kept."""
    publisher.publish(*({"id": number, "text": "x" * number} for number in range(3000)))
    url = f"{publisher.url}?n=2&cursor0=_first&cursor1=_first"
    plain = requests.get(url, timeout=30, headers={"Accept-Encoding": "identity"}).content

    for _ in range(2):
        headers = {"Accept-Encoding": "gzip"}
        with requests.get(url, timeout=30, stream=True, headers=headers) as answer:
            body = answer.raw.read()
        member = zlib.decompressobj(31)

        assert plain == member.decompress(body)
        assert (True, b"") == (member.eof, member.unused_data)
        assert len(body) < len(plain) / 10


def test_our_reader_gets_from_our_publisher_what_others_get(publisher):
    """Both ends pack and unpack with the same library here; compressed and plain are the same."""
    publisher.publish(*range(3000), partition=0)
    plain, packed = (
        read_whole(client(publisher, compression=each).page(ask("_first", headers=("_all",))))
        for each in ("none", "gzip")
    )

    assert plain == packed
    assert list(range(1000)) == packed[0][:1000]


def test_zlib_does_it_where_isal_is_not_installed():
    """Readers need no library more than before."""
    program = (
        "import sys; sys.modules.update({0}); from zeh_spark import _zlib; print(_zlib.library)"
    )

    found = [
        subprocess.run(
            [sys.executable, "-c", program.format(hidden)],
            capture_output=True, text=True, check=True,
        ).stdout
        for hidden in ({}, {"isal": None})
    ]  # fmt: skip

    assert ["isal.isal_zlib" in found[0], "module 'zlib'" in found[1]] == [True, True]
