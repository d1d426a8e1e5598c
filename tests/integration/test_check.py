"""`zeh-spark check`: what it says of good publishers, and of each kind of broken one."""

from __future__ import annotations

import json
import threading
import tracemalloc
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.fix_cli import Run, call, published
from tests.fix_publisher import Publisher
from tests.fix_raw_server import (
    Answer,
    RawServer,
    Request,
    chunked_without_end,
    gzipped,
    head,
    ok,
    redirect,
    refused,
    short,
    until_close,
)
from tests.fix_table import SqliteDatabase
from zeh_spark.publisher import create_app, open_store
from zeh_spark.service.access.gate import Gate
from zeh_spark.testing import running_publisher
from zeh_spark.tools.check.connection import exchange
from zeh_spark.tools.check.rules import RULES, Finding, Judgement, Verdict
from zeh_spark.tools.cli.parameters import client_options

EVENTS = 7
Change = Callable[[bytes], bytes]


def lines(begin: int) -> bytes:
    """The feed from an event on: a checkpoint follows each event, and one is there at the end."""
    found = b""
    for i in range(begin, EVENTS):
        found += b'{"partition":0,"data":{"id":%d}}\n{"partition":0,"cursor":"%d"}\n' % (i, i + 1)
    return found or b'{"partition":0,"cursor":"%d"}\n' % EVENTS


def answered(request: Request, change: Change = lambda body: body) -> Answer:
    """What a good publisher of one partition answers, with a change of its pages."""
    query = request.query
    if query.get("n") != "1" or "cursor0" not in query:
        return refused(400, "n or cursor is missing")
    cursor = {"_first": "0", "_last": f"{EVENTS}"}.get(query["cursor0"], query["cursor0"])
    return ok(change(lines(int(cursor)))) if cursor.isdigit() else refused(400, "bad cursor")


def verdicts(url: str, *words: str) -> dict[str, str]:
    """The rules that do not pass, with their verdicts; after the exit code was compared."""
    done = call("check", url, "--json", *words)
    found = json.loads(done.stdout)
    assert done.returncode == (3 if found["verdict"] == "failure" else 0)
    return {
        each["rule"]: each["verdict"]
        for each in found["rules"]
        if each["verdict"] in ("deviation", "failure")
    }


def replacing(old: bytes, new: bytes) -> Change:
    return lambda body: body.replace(old, new)


CHANGES: list[tuple[str, Change, dict[str, str]]] = [
    ("nothing", replacing(b"", b""), {}),
    ("Windows line ends", replacing(b"\n", b"\r\n"), {"line-ends": "deviation"}),
    ("a blank line", lambda body: b" \n" + body, {"line-ends": "deviation"}),
    ("a byte order mark", lambda body: b"\xef\xbb\xbf" + body, {"utf-8": "deviation"}),
    ("Latin-1", lambda body: body.replace(b'{"id":3}', b'"\xe6"'), {"utf-8": "failure"}),
    ("NaN", replacing(b'{"id":3}', b"NaN"), {"json": "failure"}),
    ("an error as text", lambda body: body + b"Internal server error\n", {"json": "failure"}),
    ("an array", lambda body: b"[1]\n" + body, {"json": "failure"}),
    ("nested without end", lambda body: b"[" * 5000 + b"\n" + body, {"json": "failure"}),
    ("an unknown line", lambda body: b'{"x":1}\n' + body, {
        "known-lines": "deviation", "partition": "deviation"}),
    ("a long line", replacing(b'{"id":3}', b'"%b"' % (b"x" * 70_000)), {
        "line-length": "deviation"}),
    ("no partition", replacing(b'"partition":0,"data"', b'"data"'), {"partition": "deviation"}),
    ("partition as text", replacing(b'"partition":0,"data"', b'"partition":"0","data"'), {
        "partition": "failure"}),
    ("another partition", replacing(b'"partition":0,"data"', b'"partition":1,"data"'), {
        "partition": "failure"}),
    ("no data", replacing(b',"data":{"id":3}', b""), {"data": "deviation"}),
    ("data is null", replacing(b'{"id":3}', b"null"), {"data": "deviation"}),
    ("a number as header", replacing(b',"data":{"id":3}', b',"headers":{"a":1},"data":3'), {
        "header-values": "failure", "headers": "deviation"}),
    ("no header object", replacing(b',"data":{"id":3}', b',"headers":[],"data":3'), {
        "header-values": "failure"}),
    ("a number as cursor", replacing(b'"cursor":"3"', b'"cursor":3'), {"cursor": "deviation"}),
    ("an object as cursor", replacing(b'"cursor":"3"', b'"cursor":{}'), {"cursor": "failure"}),
    ("an empty cursor", replacing(b'"cursor":"3"', b'"cursor":""'), {"cursor": "deviation"}),
    ("a special cursor", replacing(b'"cursor":"3"', b'"cursor":"_last"'), {"cursor": "failure"}),
    ("a cursor with data", replacing(b'"cursor":"3"', b'"cursor":"3","data":1'), {
        "cursor-alone": "failure"}),
    ("events after the checkpoint", lambda body: body + b'{"partition":0,"data":9}\n', {
        "checkpoint": "deviation", "progress": "failure"}),
    ("no checkpoint", lambda body: b"".join(x for x in body.splitlines(True) if b"data" in x), {
        "checkpoint": "failure", "last": "deviation", "idle": "deviation"}),
]  # fmt: skip


@pytest.mark.parametrize(("what", "change", "expected"), CHANGES, ids=[each[0] for each in CHANGES])
def test_a_change_of_lines_is_judged(
    raw_server: RawServer, what: str, change: Change, expected: dict[str, str]
) -> None:
    """Each kind of line that some client cannot read has its rule, and no other one speaks."""
    raw_server.respond = lambda request: answered(request, change)

    assert expected == verdicts(raw_server.url, "--partitions", "1")


def test_lost_events_after_a_cursor_are_a_failure(raw_server: RawServer) -> None:
    """A publisher that skips an event when I continue is found out."""

    def skipping(request: Request) -> Answer:
        begins = request.query.get("cursor0", "_first") in ("_first", "_last")
        return answered(request) if begins else answered(request, without_first)

    def without_first(body: bytes) -> bytes:
        return body if body.count(b"\n") < 3 else body.partition(b"\n")[2]

    raw_server.respond = skipping

    assert verdicts(raw_server.url, "--partitions", "1")["resume"] == "failure"


def test_a_feed_that_never_moves_on_is_a_failure(raw_server: RawServer) -> None:
    """Readers would read the same events for ever."""
    page = b'{"partition":0,"data":1}\n{"partition":0,"cursor":"same"}\n'
    raw_server.respond = lambda request: answered(request) if "n" not in request.query else ok(page)

    assert verdicts(raw_server.url, "--partitions", "1")["progress"] == "failure"


ENDS = [
    ("content cut", short(lines(0)), {"framing": "failure"}),
    ("chunks cut", chunked_without_end(lines(0)), {"framing": "failure"}),
    ("until close", until_close(lines(0)), {"framing": "deviation"}),
    ("as text", ok(lines(0), content_type="text/plain"), {"content-type": "deviation"}),
    ("unknown packing", ok(lines(0), content_encoding="br"), {"compression": "failure"}),
]


@pytest.mark.parametrize(("what", "answer", "expected"), ENDS, ids=[each[0] for each in ENDS])
def test_an_answer_that_does_not_prove_its_end_is_judged(
    raw_server: RawServer, what: str, answer: Answer, expected: dict[str, str]
) -> None:
    """A cut answer looks like a short feed to many clients."""

    def respond(request: Request) -> Answer:
        first = request.query.get("cursor0") == "_first" and request.query.get("n") == "1"
        return answer if first else answered(request)

    raw_server.respond = respond

    assert expected.items() <= verdicts(raw_server.url, "--partitions", "1").items()


def test_our_publisher_passes(run: Run, store_url: str) -> None:
    """No deviation, with a few events in two partitions, nor with a new feed."""
    run("create", "empty")
    run("create", "orders", "--partitions", "2")
    run("load", "orders", "-", stdin="".join(f'{{"id":{i}}}\n' for i in range(1500)))
    with published(store_url) as base:
        assert [{}, {}] == [verdicts(f"{base}/{feed}") for feed in ("empty", "orders")]


def test_a_table_feed_passes(sqlite_database: SqliteDatabase) -> None:
    """A service's own table, served from SQLite."""
    feed = sqlite_database.served("data TEXT")
    for i in range(20):
        sqlite_database.execute(f"INSERT INTO outbox (data) VALUES ('{{\"id\":{i}}}')")
    with running_publisher({"orders": feed}) as base:
        assert {} == verdicts(f"{base}/orders")


def test_the_reference_server_has_known_deviations(
    start_reference_server: Callable[..., str],
) -> None:
    """It breaks off for a cursor that it does not know. What is legal about it is no deviation."""
    urls = [
        start_reference_server(events=300, checkpoints=checkpoints)
        for checkpoints in ("event", "page")
    ]

    assert [{"cursor-unknown": "deviation"}] * 2 == [verdicts(url) for url in urls]


def test_events_that_break_the_schema_of_the_feed_are_told(publisher: Publisher) -> None:
    """They were published before it was set. Those that keep it pass."""
    schema = {"type": "object", "properties": {"id": {"type": "integer"}}}
    publisher.publish({"id": 1}, {"id": "two"})
    assert "contract" not in verdicts(publisher.url)  # there is none

    publisher.store.set_schema("orders", json.dumps(schema).encode())
    publisher.publish({"id": 3})
    done = json.loads(call("check", publisher.url, "--json").stdout)

    found = next(each for each in done["rules"] if each["rule"] == "contract")
    assert "note" == found["verdict"]
    assert '{"id":"two"}: /id: "two" is not of type "integer"' in found["found"]


def test_a_number_that_is_no_power_of_two_is_advised_against(run: Run, store_url: str) -> None:
    """I hear it when I create the feed, and when I judge one. Powers of two are not mentioned."""
    advice = "6 is no power of two: readers cannot halve it again and again"
    created = run("create", "orders", "--partitions", "6")
    again = run("create", "orders", "--partitions", "6", "--if-not-exists")
    assert [True, False] == [advice in each.stderr for each in (created, again)]
    assert not any(run("create", f"n{each}", "--partitions", each).stderr for each in ("1", "8"))
    with published(store_url) as base:
        assert advice in " ".join(call("check", f"{base}/orders").stdout.split())
        assert "power of two" not in call("check", f"{base}/n8").stdout


def test_the_given_number_of_partitions_counts(run: Run, store_url: str) -> None:
    """A feed of four partitions is judged as I read it, as two."""
    run("create", "orders", "--partitions", "4")
    run("load", "orders", "-", stdin="".join(f'{{"id":{i}}}\n' for i in range(300)))
    with published(store_url) as base:
        found = json.loads(call("check", f"{base}/orders", "--partitions", "2", "--json").stdout)

    assert ("pass", 2) == (found["verdict"], found["partitions"])


def test_a_report_for_ci_has_each_rule(raw_server: RawServer, tmp_path: Path) -> None:
    """JUnit: rules that fail are failures there, with what to do; deviations are told."""
    raw_server.respond = lambda request: answered(request, replacing(b'{"id":3}', b"NaN"))
    file = tmp_path / "check.xml"

    done = call("check", raw_server.url, "--partitions", "1", "--junit", str(file))

    suite = ElementTree.parse(file).getroot()
    cases = {case.get("name"): case for case in suite}
    assert (3, [rule.id for rule in RULES]) == (done.returncode, list(cases))
    assert ("1", str(len(RULES))) == (suite.get("failures"), suite.get("tests"))
    assert "do: Send valid JSON" in (cases["json"].findtext("failure") or "")
    assert [None, None] == [cases["first"].find(each) for each in ("failure", "skipped")]


def test_dripping_bytes_end_within_the_time(raw_server: RawServer) -> None:
    """A hostile server cannot hold the command for ever."""
    never = threading.Event()
    raw_server.respond = lambda request: Answer((head(content_length=9), b"{", never))

    found = verdicts(raw_server.url, "--partitions", "1", "--timeout", "1s")
    never.set()

    assert "failure" == found["limits"]


def test_an_endless_answer_ends_within_the_bytes(raw_server: RawServer) -> None:
    """Nor can one that sends without end fill the memory."""
    page = lines(0) * 40_000
    raw_server.respond = lambda request: ok(page) if "n" in request.query else answered(request)

    done = call("check", raw_server.url, "--partitions", "1", "--max-bytes", "1m", "--json")

    found = json.loads(done.stdout)
    assert (3, True) == (done.returncode, found["bytes"] < 3 << 20)


def test_a_small_packed_answer_does_not_fill_the_memory(raw_server: RawServer) -> None:
    """Nor does one that came unasked on a connection of three requests."""
    raw_server.script(gzipped(bytes(64 << 20)))
    tracemalloc.start()
    try:
        assert [] == list(exchange(client_options(raw_server.url, {}), None, [("n=1", {})]))
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("words", [(), ("--header", "Authorization=Bearer s3cr3t-token")])
def test_credentials_that_travel_as_text_are_a_deviation(
    raw_server: RawServer, words: tuple[str, ...]
) -> None:
    """However I gave them. The proxy, which sees them, is the publisher here."""
    raw_server.respond = answered
    environment = {"http_proxy": raw_server.address, "ZEH_TOKEN": "" if words else "s3cr3t-token"}
    given = "check", "http://publisher.example/feed/v1", "--partitions", "1", *words
    done = call(*given, **environment)
    assert "DEVIATION  encrypted:" in done.stdout
    assert "s3cr3t" not in done.stdout


def test_a_token_is_sent_and_never_shown(run: Run, store_url: str) -> None:
    """I check a feed that asks for a token."""
    run("create", "orders")
    token = run("token", "create", "me", "--read", "orders").stdout.strip()
    with (
        closing(open_store(store_url)) as store,
        running_publisher(store, create_app(store, gate=Gate(store))) as base,
    ):
        without = call("check", f"{base}/orders")
        done = call("check", f"{base}/orders", "--all", "-vv", ZEH_TOKEN=token)

    assert (5, 0) == (without.returncode, done.returncode)
    assert "ok         encrypted: credentials travel encrypted (http)" in done.stdout
    assert token not in done.stdout + done.stderr


@pytest.mark.parametrize("answer", ["sent %s", '{"detail":"sent %s"}'])
def test_a_publisher_that_repeats_my_token_does_not_put_it_into_the_report(
    answer: str, raw_server: RawServer, tmp_path: Path
) -> None:
    """It is kept in CI, where others read it."""
    token, report = "s3cr3t-token-0123456789", tmp_path / "report.xml"
    raw_server.respond = lambda request: refused(400, answer % request.headers["authorization"])

    given = "check", raw_server.url, "--all", "--partitions", "1", "--junit", str(report)
    done = call(*given, ZEH_TOKEN=token)

    said = done.stdout + done.stderr + report.read_text(encoding="utf-8")
    assert "answered 400 sent Bearer" in said
    assert token not in said and token[:8] not in said


def test_without_a_token_the_error_says_what_to_give(run: Run, store_url: str) -> None:
    """As JSON, too: my script reads what is missing, not a piece of the publisher's document."""
    run("create", "orders")
    run("token", "create", "me", "--read", "orders")
    with (
        closing(open_store(store_url)) as store,
        running_publisher(store, create_app(store, gate=Gate(store))) as base,
    ):
        for url in (base, f"{base}/orders"):
            done = call("check", url, "--json")

            error = json.loads(done.stderr)["error"]
            assert (5, "", "ZEH_UNAUTHORIZED") == (done.returncode, done.stdout, error["code"])
            assert f"{url} answered 401 unauthorized: " in error["message"]
            assert "check ZEH_TOKEN or --token-file" in error["message"]
            assert "{" not in error["message"]


def test_it_only_reads_and_tells_a_redirect(
    raw_server: RawServer, start_raw_server: Callable[..., RawServer]
) -> None:
    """It sends GET requests, and stores no cursors. The Python client follows no redirect."""
    raw_server.respond = answered
    first = start_raw_server()
    first.respond = lambda request: redirect(f"{raw_server.url}?{request.target.partition('?')[2]}")

    assert {"address": "deviation"} == verdicts(first.url, "--partitions", "1")
    sent = [*first.requests, *raw_server.requests]
    assert {"GET"} == {each.method for each in sent}
    assert not [each for each in sent if "cursorset" in each.target]


def test_what_is_printed_says_what_to_do(raw_server: RawServer) -> None:
    """Each rule that does not pass has what was found, its source, and a remedy."""
    raw_server.respond = lambda request: answered(request, replacing(b"\n", b"\r\n"))

    said = call("check", raw_server.url, "--partitions", "1").stdout

    assert "DEVIATION  line-ends: lines end with a newline alone" in said
    assert all(f"{each}:" in said for each in ("found", "source", "do"))
    assert max(map(len, said.splitlines()[:-1])) <= 100


def test_words_of_a_publisher_do_not_act_on_my_terminal(raw_server: RawServer) -> None:
    """Escape sequences in an answer are shown as one sign."""
    raw_server.respond = lambda request: refused(418, "\x1b[2Jgone")

    assert "\x1b[2J" not in call("check", raw_server.url, "--partitions", "1").stdout


def test_the_worst_verdict_of_a_rule_stays() -> None:
    """A later answer that is right does not hide an earlier one that is wrong."""
    found = Judgement()
    found.fails("json", "first")
    found.fails("json", "second")
    found.passes("json", "third")

    assert Finding(found["json"].rule, Verdict.FAILURE, "first", 2) == found["json"]


def test_every_rule_has_a_source_and_a_remedy() -> None:
    """Names are unique, and each rule says where it comes from and what to do."""
    assert len(RULES) == len({each.id for each in RULES})
    assert all(each.source and each.remedy.endswith(".") for each in RULES)
