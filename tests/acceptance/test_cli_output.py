"""What commands print and with which code they end: for people, and for scripts."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.fix_cli import COMMAND, Run, call, checkpoint, published
from tests.fix_raw_server import RawServer, ok, refused
from tests.store_contract.writers import everything
from zeh_spark.publisher import create_app, open_store
from zeh_spark.service.access.gate import Gate
from zeh_spark.testing import running_publisher
from zeh_spark.tools.cli import output
from zeh_spark.tools.cli.main import COMMANDS
from zeh_spark.wire import dead_letters

PAGE = (Path(__file__).parents[2] / "docs/reference/command-line.md").read_text(encoding="utf-8")
PLAIN = {"admin-log", "dead-letters", "ddl", "lag", "quickstart", "serve", "tail"}
"""Commands whose output is described elsewhere, or compared in tests of their own."""
EXTRAS = ("anyio", "httptools", "jinja2", "jwt", "prometheus_client", "psycopg", "pyspark",
          "sqlalchemy", "starlette", "uvicorn", "yaml")  # fmt: skip


def members(command: str) -> set[str]:
    """The members that the reference names for a command."""
    (row,) = re.findall(rf"^\| `{command}` \| (.*) \|$", PAGE, re.MULTILINE)
    return set(re.findall(r"`(\w+)`", row))


def test_each_command_prints_the_members_that_the_reference_names(
    run: Run, store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script that I wrote with the reference works."""
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)  # for doctor
    seen: dict[str, set[str]] = {}

    def ask(command: str, *words: str, stdin: str = "") -> dict[str, Any]:
        done = run(*command.split(), *words, "--json", stdin=stdin)
        assert done.returncode == 0, done.stderr
        (line,) = done.stdout.splitlines()
        found: dict[str, Any] = json.loads(line)
        seen.setdefault(command, set()).update(found)
        return found

    ask("create", "orders")
    ask("create", "dead")
    (tmp_path / "any.json").write_text("{}")
    ask("schema", "dead", "any.json")
    ask("explain", "ZEH_OPTION")
    loaded = ask("load", "orders", "-", stdin="1\n2\n")
    assert ("published", 2) == (loaded["outcome"], loaded["events"])
    with published(store_url) as base:
        url = f"{base}/orders"
        sent = ask("publish", url, "--producer", "p", stdin="1\n")
        assert "repeated" not in sent.values()
        read = "n=1&cursor0={cursor}&pagesizehint=0&cursorset=reader".format(**sent)
        requests.get(f"{url}?{read}", timeout=30)
        ask("await", url, sent["cursor"], "--cursorset", "reader")
        checkpoint(tmp_path / "checkpoint", range(4))
        ask("cursors", "checkpoint")
        assert 2 == len(ask("feeds", base)["feeds"])
        ask("producers", url)
        ask("producers", url, "p")
        ask("audit", url)
        ask("check", url)
        letter = dead_letters.letter("data: not JSON", "p", 7, {"data": "{}"})
        ask("publish", f"{base}/dead", "--producer", "p", stdin=f"{letter.decode()}\n")
        ask("replay-dead", url, stdin=run("dead-letters", f"{base}/dead").stdout)
        ask("sessions end", url, "order=A")
        ask("doctor", url)
    ask("feeds")
    ask("retention", "orders", "--age", "3650d")
    ask("prune", "orders", "--now")
    ask("seal", "orders")
    ask("offload", "orders", "--segments", str(tmp_path / "cold"))
    ask("segments check")
    ask("segments adopt", "--yes")
    ask("cursor-sets", "orders")
    with closing(open_store(store_url)) as store:
        store.save_cursors("orders", "mailer", 4, {0: "_first"})
    ask("cursor-sets", "orders", "--delete", "mailer")
    ask("clock")
    ask("migrate", "--dry-run")
    ask("delete-producer", "orders", "p", "--yes")
    ask("new-history", "orders", "--yes")
    ask("backup", "copy.db")
    ask("restore", "copy.db", "--yes")
    ask("token create", "they", "--read", "orders", "--output", "token.txt")
    made = ask("token create", "me", "--read", "orders")
    ask("token list")
    assert [made["id"]] == ask("token revoke", "me")["revoked"]

    documented = {command: members(command) for command in seen}
    documented["audit"] -= {"difference"}
    documented["new-history"] -= {"history"}
    assert seen == documented
    assert COMMANDS.keys() - {"token", "segments", "sessions"} - PLAIN == {
        each for each in seen if " " not in each
    }


def test_quiet_prints_what_was_asked_for_alone(run: Run) -> None:
    """Confirmations are for people who look."""
    assert "" == run("create", "orders", "-q").stdout
    assert "" == run("load", "orders", "-", "-q", stdin="1\n").stdout
    assert "orders" in run("feeds", "-q").stdout


def test_exit_codes_are_those_of_the_reference(raw_server: RawServer) -> None:
    """Each is described: my script knows whether to wait, get a token, or call somebody."""
    table = re.findall(r"^\| ([0-9]) \|", PAGE, re.MULTILINE)
    codes = [output.FAILED, output.USAGE, output.DIFFERENT, output.DOWN, output.REFUSED]

    assert [str(each) for each in (0, *codes, output.UNKNOWN)] == table
    for status, code in ((503, 4), (401, 5), (403, 5), (404, 1)):
        raw_server.respond = lambda request, status=status: refused(status, "no")
        done = call("tail", raw_server.url, "--no-follow", "-q")
        assert (code, "", True) == (done.returncode, done.stdout, "Error: " in done.stderr), status


@pytest.mark.parametrize(
    ("words", "said", "code"),
    [
        (("prune", "orders", "--jsom", "--json"), "No such option", None),
        (("prune", "--json"), "Missing argument 'FEED'", None),
        (("feeds", "http://[", "--json"), "[ZEH_OPTION] URL must be", "ZEH_OPTION"),
        (("lag", "http://a/f", "--json"), "Give either --checkpoint or --cursorset", None),
        (("prune", "orders", "--json"), "there is no store", "ZEH_NO_STORE_OR_FEED"),
    ],
)
def test_an_error_is_json_if_that_was_asked_for(run: Run, words, said, code) -> None:
    """My script finds the message, the code and the place in the docs, also of a wrong usage."""
    done = run(*words)

    error = json.loads(done.stderr)["error"]
    exit_code = 1 if code == "ZEH_NO_STORE_OR_FEED" else 2
    assert (exit_code, exit_code, code, "") == (
        done.returncode, error["exitCode"], error.get("code"), done.stdout,
    )  # fmt: skip
    assert said in error["message"]
    if exit_code == 1:
        assert {"message", "exitCode", "type", "code", "help"} == error.keys()
        assert "StoreError" == error["type"]


def test_verbose_logs_requests_without_secrets(raw_server: RawServer, env: dict[str, str]) -> None:
    """I see what is asked for, and no token."""
    raw_server.respond = lambda request: ok(b'{"server":"zeh-spark","feeds":[]}')

    done = subprocess.run(
        [*COMMAND, "feeds", raw_server.url, "-vv"],
        env={**env, "ZEH_TOKEN": "secret-of-mine"}, capture_output=True, text=True, check=True,
    )  # fmt: skip

    assert "GET answered 200" in done.stderr
    assert "secret-of-mine" not in done.stdout + done.stderr
    assert "has no feeds that may be read" in done.stdout


def test_feeds_of_a_publisher_are_those_that_the_token_may_read(run: Run, store_url: str) -> None:
    """I see what I may read; a stranger sees nothing."""
    run("create", "orders", "--partitions", "2")
    run("create", "secrets")
    token = run("token", "create", "me", "--read", "orders", "-q").stdout.strip()
    with (
        closing(open_store(store_url)) as store,
        running_publisher(store, create_app(store, gate=Gate(store))) as base,
    ):
        stranger = call("feeds", base)
        mine = call("feeds", base, ZEH_TOKEN=token)

    assert (5, "", False) == (stranger.returncode, stranger.stdout, "secrets" in stranger.stderr)
    assert "FEED    PARTITIONS  TAKES BATCHES\norders           2  yes\n" == mine.stdout


def tail_of(url: str, *words: str) -> list[str]:
    done = call("tail", url, "--no-follow", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_tail_reads_one_partition_from_a_cursor_up_to_a_limit(run: Run, store_url: str) -> None:
    """I look at the place of the feed that I need."""
    run("create", "orders", "--partitions", "2")
    for number in range(4):
        line = f'{{"partition": {number % 2}, "data": {number}}}\n'
        run("load", "orders", "-", "--envelope", stdin=line)
    with published(store_url) as base:
        url = f"{base}/orders"
        first = tail_of(url, "--from", "first", "--partition", "1")
        limited = tail_of(url, "--from", "first", "--limit", "3")
        with closing(open_store(store_url)) as store:
            cursor = next(each.cursor for each in everything(store) if each.partition == 1)
        later = tail_of(url, "--from", cursor, "--partition", "1")
        wrong = call("tail", url, "--from", cursor)
        beyond = call("tail", url, "--partition", "2")

    assert (["1", "3"], 3, ["3"]) == (first, len(limited), later)
    assert (2, True) == (wrong.returncode, "Give --partition" in wrong.stderr)
    assert (2, True) == (beyond.returncode, "the feed has 2, from 0" in beyond.stderr)


def test_tail_reads_a_publisher_that_does_not_tell_its_partitions(raw_server: RawServer) -> None:
    """I give the documented number. It does not list its feeds: I am told which ones do."""
    page = b'{"partition":0,"data":7}\n{"partition":0,"cursor":"1"}\n'
    end = b'{"partition":0,"cursor":"1"}\n'
    raw_server.respond = lambda request: (
        refused(400, "n is missing") if "n" not in request.query
        else ok(page if request.query["cursor0"] == "_first" else end)
    )  # fmt: skip

    assert ["7"] == tail_of(raw_server.url, "--from", "first", "--partitions", "1")
    assert 2 == call("tail", raw_server.url).returncode
    done = call("feeds", raw_server.url)
    assert (1, True) == (done.returncode, "Only publishers of zeh-spark list them" in done.stderr)


def test_long_work_shows_a_bar_on_a_terminal(
    env: dict[str, str], run: Run, store_url: str, tmp_path: Path
) -> None:
    """I see how far it is; without a terminal, or with --quiet, nothing is in the way."""
    run("create", "orders")
    (tmp_path / "a.ndjson").write_text("1\n" * 20_000)
    with published(store_url) as base, (tmp_path / "a.ndjson").open("rb") as stdin:
        calls = {
            "Loading": ["load", "orders", "a.ndjson"],
            "Publishing": ["publish", f"{base}/orders", "--producer", "p"],
            "Auditing": ["audit", f"{base}/orders"],
            "Copying": ["backup", "copy.db"],
            "Removing": ["prune", "orders", "--size", "1", "--now"],
        }
        shown = on_terminal(each_of([*calls.values()]), env=env, cwd=tmp_path, stdin=stdin)

    for label, words in calls.items():
        part = shown.partition(f"<{words[0]}>")[2].partition("<0>")[0]
        assert label in part and "100%" in part, shown


def each_of(calls: list[list[str]]) -> str:
    """A program that runs commands, each between its name and its exit code."""
    return (
        "import sys\nfrom zeh_spark.tools.cli.main import zeh_spark\n"
        f"for words in {calls}:\n"
        "    print(f'<{words[0]}>', file=sys.stderr)\n"
        "    try: zeh_spark(words)\n"
        "    except SystemExit as exc: print(f'<{exc.code}>', file=sys.stderr)\n"
    )


def on_terminal(program: str, **given: Any) -> str:
    """What a program shows on a terminal, on standard error."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", program], stderr=theirs, stdout=subprocess.DEVNULL, **given
    ) as process:
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # all who could write to it have ended
            while more := os.read(ours, 65_536):
                shown += more
        os.close(ours)
    assert 0 == process.returncode
    return shown.decode()


OBEYED = "\x07\x1b]0;taken\x07\x1b[2J\x7f\x9b31m\u202e\u2066\r"
"""What a terminal obeys, or shows in another order."""


def assert_printable(text: str) -> None:
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\u2066]", text), ascii(text)


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ("tail {url}", 400),
        ("feeds {url}", 200),
        ("feeds {url} --json", 200),
        ("lag {url} --cursorset c", 400),
        ("check {url}", 200),
        ("check {url} --json", 400),
        ("doctor {url}", 403),
        ("audit {url} -v", 400),
        ("producers {url}", 200),
        ("producers {url} --json", 200),
        ("publish {url} --producer p --json", 400),
        ("dead-letters {url}", 400),
        ("replay-dead {url}", 400),
    ],
)
def test_no_command_lets_a_publisher_write_to_the_terminal(
    raw_server: RawServer, words: str, status: int
) -> None:
    """A publisher that is not mine can neither clear my screen nor hide what it says."""
    producer = {"producer": OBEYED, "lastBatch": 1, "receipts": 1, "deleted": False, "level": 1}
    document = {
        "detail": OBEYED,
        "title": OBEYED,
        "requestId": OBEYED,
        "server": "zeh-spark",
        "partitionCount": 1,
        "feeds": [{"name": OBEYED, "partitions": 1, "takesBatches": True}],
        "producers": [{**producer, "incarnation": OBEYED, "time": None}],
    }
    text = json.dumps(document, ensure_ascii=False)
    raw_server.respond = lambda request: (
        refused(status, text)
        if status > 200
        else ok(b'{"producers":[]}' if "after=" in request.target else text.encode())
    )

    done = call(*words.format(url=raw_server.url).split(), stdin='{"a": 1}\n')

    assert_printable(done.stdout + done.stderr)
    assert "taken" in done.stdout + done.stderr or "dead-letters" in words


def test_a_header_may_come_from_a_file(raw_server: RawServer, tmp_path: Path) -> None:
    """No list of processes shows my key."""
    (tmp_path / "key").write_text("Key hush hush\n")
    raw_server.respond = lambda request: refused(404)
    url, header = raw_server.url, f"X-Key=@{tmp_path / 'key'}"

    call("feeds", url, "--header", header, "--header", "X-Other=@", "--header", "X=a@b")
    assert [] == raw_server.requests  # "@" names no file
    call("feeds", url, "--header", header, "--header", "X=a@b")

    (request,) = raw_server.requests
    assert ("Key hush hush", "a@b") == (request.headers["x-key"], request.headers["x"])
    done = call("feeds", url, "--header", "X-Key=@/nowhere")
    assert 2 == done.returncode
    assert "--header cannot read a value from '/nowhere'" in " ".join(done.stderr.split())


def test_a_terminal_gets_escapes_and_a_pipe_the_bytes(
    run: Run, env: dict[str, str], store_url: str
) -> None:
    """tail prints an event exactly into a file, and so that it does no harm on a terminal."""
    event = json.dumps(OBEYED, ensure_ascii=False)
    run("create", "orders")
    run("load", "orders", "-", stdin=event + "\n")
    with published(store_url) as base:
        words = [*COMMAND, "tail", f"{base}/orders", "--from", "first", "--no-follow"]
        exact = subprocess.run(words, env=env, capture_output=True, check=True).stdout
        terminal, ours = pty.openpty()
        with os.fdopen(terminal, "rb", 0) as shown:
            subprocess.run(words, env=env, stdin=ours, stdout=ours, check=True)
            os.close(ours)
            seen = shown.read(1 << 16).decode()

    assert exact == event.encode() + b"\n"
    assert_printable(seen.replace("\r\n", "\n"))
    assert OBEYED == json.loads(seen)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_commands(env: dict[str, str], shell: str) -> None:
    """Tab knows the commands; the reference says how to set it up."""
    assert f"_ZEH_SPARK_COMPLETE={shell}_source" in PAGE
    program = "from zeh_spark.tools.cli.main import zeh_spark; zeh_spark(prog_name='zeh-spark')"
    more = {"COMP_WORDS": "zeh-spark ch", "COMP_CWORD": "1" if shell != "fish" else "ch"}
    more["_ZEH_SPARK_COMPLETE"] = f"{shell}_complete"

    done = subprocess.run(
        [sys.executable, "-c", program], env={**env, **more}, capture_output=True, text=True
    )

    assert "check" in done.stdout and "load" not in done.stdout


def without_extras(calls: list[list[str]], **given: Any) -> str:
    """What commands print on standard error where no extra is installed."""
    program = f"import sys\nfor each in {EXTRAS}: sys.modules[each] = None\n{each_of(calls)}"
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, **given
    ).stderr


def test_client_commands_work_without_the_extra(run: Run, store_url: str) -> None:
    """`pip install zeh-spark` is enough to read, to publish and to check."""
    run("create", "orders", "--partitions", "1")
    with published(store_url) as base:
        url = f"{base}/orders"
        calls = [
            ["publish", url, "--producer", "p"],
            ["tail", url, "--from", "first", "--no-follow"],
            ["producers", url],
            ["audit", url],
            ["check", url],
            ["feeds", base],
            ["dead-letters", url],
            ["replay-dead", url],
            ["--help"],
        ]
        said = without_extras(calls, input="1\n")

    ends = [(words[0], "1" if "dead" in words[0] else "0") for words in calls]  # no dead letters
    assert ends == re.findall("^<(.*)>$(?s:.*?)^<(.*)>$", said, re.MULTILINE), said


def test_store_commands_name_the_extra(env: dict[str, str]) -> None:
    """One line says what to install, whatever the command was given."""
    calls = [["serve", "--port", "1"], ["create", "x"], ["retention", "x"], ["feeds"]]

    lines = without_extras(calls, env=env).splitlines()

    assert ["<1>"] * 4 == lines[2::3]
    assert 12 == len(lines)
    for each in lines[1::3]:
        assert each.startswith("Error: this command needs "), each
        assert each.endswith('Install it: pip install "zeh-spark[publisher]"'), each
