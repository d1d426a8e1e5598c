"""What is refused before there is a request shows in the metrics and in the access log."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cases import each_case
from tests.fix_log_texts import check_documented
from tests.fix_metrics import Scrape
from tests.fix_publisher import connected, new_feed, served
from tests.patience import eventually
from zeh_spark.service.network.http_protocol import HEADER_BYTES, PIPELINED, URL_BYTES

# The serve command itself, with a time that a test can wait for.
PROGRAM = (
    "from zeh_spark.service.network import http_protocol\n"
    "from zeh_spark.tools.cli.main import main\n"
    "http_protocol.HEAD_SECONDS = 0.5\n"
    "main()\n"
)
GET = b"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n"


@dataclass
class Serving:
    """A `zeh-spark serve`."""

    base: str
    log: Path

    def refused(self, problem: str) -> float:
        return Scrape(self.base)("zeh_refusals_total", feed="(none)", problem=problem)

    def lines(self, problem: str) -> list[dict[str, object]]:
        lines = map(json.loads, self.log.read_text().splitlines())
        return [
            each
            for each in lines
            if each["message"] == "refused before a request" and each["problem"] == problem
        ]


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    with started(tmp_path) as found:
        yield found


@contextmanager
def started(folder: Path, *words: str) -> Iterator[Serving]:
    url = new_feed(folder / "feeds.db")
    words = "--log-format", "json", *(words or ["--access-log"])
    with served(url, *words, log=folder / "log", program=("-c", PROGRAM)) as (base, _):
        yield Serving(base, folder / "log")


def sent(serving: Serving, head: bytes) -> bytes:
    """All that the publisher says to these bytes, until it closes."""
    said = b""
    with connected(serving.base) as connection:
        connection.sendall(head)
        while some := connection.recv(1 << 16):
            said += some
    return said


@each_case(
    "head, status, problem",
    [
        (b"\x16\x03\x01\x02\x00 a TLS hello, or worse\r\n\r\n", 400, "bad-http"),
        (b"GET /?x=%b HTTP/1.1\r\n\r\n" % (b"a" * URL_BYTES), 414, "url-too-long"),
        (GET + b"X: %b\r\n\r\n" % (b"a" * HEADER_BYTES), 431, "headers-too-large"),
        (GET, 408, "head-too-slow"),
    ],
)
def test_a_refused_head_is_counted_and_logged(serving, head, status, problem):
    """I see that somebody attacks my publisher, or that a client of mine is broken."""
    assert 0 == serving.refused(problem)
    for _ in range(3):
        assert b"HTTP/1.1 %d " % status in sent(serving, head)

    assert 3 == serving.refused(problem)
    (line,) = serving.lines(problem)  # one a minute
    assert (status, problem) == (line["status"], line["problem"])
    assert str(line["peer"]).startswith("127.0.0.1:")
    assert line["detail"]
    record = {"name": line["logger"], "levelname": str(line["level"]).upper()}
    told = logging.makeLogRecord({**record, "msg": line["message"]})
    check_documented([told], "refused before a request")


def test_a_refusal_that_cannot_be_answered_is_counted(serving):
    """The connection is cut, because answers to the client's other requests are on their way."""
    with connected(serving.base) as connection:
        connection.sendall((GET + b"\r\n") * (PIPELINED * 4))
        eventually(lambda: serving.refused("bad-http") == 1)


def test_without_an_access_log_they_are_only_counted(tmp_path):
    with started(tmp_path, "--log-level", "info") as serving:
        sent(serving, b"?\r\n\r\n")

        assert 1 == serving.refused("bad-http")
        assert [] == serving.lines("bad-http")
