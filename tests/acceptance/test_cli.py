"""The command as users run it: real processes, real files, real signals."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import requests

from zeh_spark.publisher import open_store

Run = Callable[..., "subprocess.CompletedProcess[str]"]
COMMAND = [sys.executable, "-m", "zeh_spark.cli"]


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """The store of the test is where every command looks."""
    here = str(Path(__file__).parents[2])
    return {**os.environ, "ZEH_STORE": f"sqlite:///{tmp_path / 'feeds.db'}", "PYTHONPATH": here}


@pytest.fixture
def run(env: dict[str, str], tmp_path: Path) -> Run:
    def run(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMMAND, *words],
            env=env, cwd=tmp_path, input=stdin, capture_output=True, text=True, check=False
        )  # fmt: skip

    return run


@contextmanager
def serving(env: dict[str, str], *words: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A running `serve`, and its base URL."""
    command = [*COMMAND, "serve", "--port", "0", *words]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        try:
            yield server.stdout.readline().split(" at ")[1].split(";")[0], server
        finally:
            server.kill()


def test_a_feed_is_created_loaded_served_and_read(
    run: Run, env: dict[str, str], tmp_path: Path
) -> None:
    """Four commands take me from a file to a feed that others read."""
    (tmp_path / "a.csv").write_text("id,name\n1,x\n2,y\n")
    run("create", "orders", "--partitions", "1")
    with serving(env) as (base, _):
        said = run("load", "orders", "a.csv")
        found = run("tail", f"{base}/orders", "--from", "first", "--no-follow")
    assert re.fullmatch(r"Loaded 2 events, \d+ B, into 'orders' in .* s\.\n", said.stdout)
    assert ['{"id":1,"name":"x"}', '{"id":2,"name":"y"}'] == found.stdout.splitlines()


def test_serve_prints_the_address_of_each_feed(run: Run, env: dict[str, str]) -> None:
    """I see what to give to consumers."""
    run("create", "orders", "--partitions", "1")
    run("create", "flights", "--partitions", "8")
    with serving(env) as (base, server):
        assert server.stdout
        lines = [server.stdout.readline() for _ in range(2)]
    assert [f"  {base}/flights  8 partitions\n", f"  {base}/orders  1 partition\n"] == lines


@pytest.mark.slow
def test_tail_follows_and_its_events_can_be_loaded_again(run: Run, env: dict[str, str]) -> None:
    """What tail prints with --headers, load --envelope takes."""
    run("create", "orders", "--partitions", "2")
    run("create", "copy", "--partitions", "2")
    event = {"partition": 1, "headers": {"h": "1"}, "data": {"id": 7}}
    with serving(env) as (base, _):
        command = [*COMMAND, "tail", f"{base}/orders", "--from", "first", "--headers"]
        with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as tail:
            assert tail.stdout
            run("load", "orders", "-", "--envelope", stdin=json.dumps(event))
            line = tail.stdout.readline()
            tail.send_signal(signal.SIGINT)
            assert 0 == tail.wait(30)
        run("load", "copy", "-", "--envelope", stdin=line)
        copied = run("tail", f"{base}/copy", "--from", "first", "--headers", "--no-follow")
    found = json.loads(copied.stdout)
    found["headers"] = {k: v for k, v in found["headers"].items() if not k.startswith("zeh-")}
    assert event == found


@pytest.mark.slow
def test_standard_input_is_published_whole_and_by_name(run: Run, env: dict[str, str]) -> None:
    """A script's events reach a running publisher: all or nothing, and under a name once."""
    run("create", "orders", "--partitions", "1")
    with serving(env) as (base, _):
        publish = ["publish", f"{base}/orders", "--producer", "till-7"]
        words = [
            run(*publish, stdin="1\n2\n").stdout,
            run(*publish, stdin="3\n").stdout,
            run(*publish, "--batch", "day", stdin="4\n").stdout,
            run(*publish, "--batch", "day", stdin="4\n").stdout,
        ]
        bad = run(*publish, "--envelope", stdin='{"data":5}\n{"data":6,"key":"a","partition":0}\n')
        other = run(*publish, "--batch", "day", stdin="5\n")
        empty = run(*publish, "--batch", "next-day", stdin="\n")
        found = run("tail", f"{base}/orders", "--from", "first", "--no-follow")
    assert [
        "Published 2 events as batch 0 of producer 'till-7'.\n",
        "Published 1 event as batch 1 of producer 'till-7'.\n",
        "Published 1 event as batch 0 of producer 'till-7#day'.\n",
    ] == words[:3]
    assert re.fullmatch(r"Published before, at .*, with the same 1 event: no change\.\n", words[3])
    line = "standard input, line 2: 'partition' and 'key' exclude each other; nothing was published"
    assert (1, True) == (bad.returncode, line in bad.stderr)
    assert (1, True) == (other.returncode, "batch-conflict" in other.stderr)
    assert (1, True) == (empty.returncode, "no events: nothing was published" in empty.stderr)
    assert ["1", "2", "3", "4"] == found.stdout.splitlines()


@pytest.mark.slow
def test_events_that_keep_first_drops_are_told(run: Run, env: dict[str, str]) -> None:
    """The command says that what was given now is not published, and how much of it there is."""
    run("create", "orders", "--partitions", "1")
    load = ["load", "orders", "-", "--producer", "till-7", "--batch", "night"]
    run(*load, stdin="1\n")
    with serving(env) as (base, _):
        publish = ["publish", f"{base}/orders", "--producer", "till-7", "--batch", "day"]
        run(*publish, stdin="4\n")
        for command in (publish, load):
            refused = run(*command, stdin="5\n6\n").stderr
            allowed = re.search(r"keepFirst=[^\s'\"]+", refused)
            assert allowed, refused
            kept = run(*command, "--allow", allowed[0].rstrip(".,;"), stdin="5\n6\n").stdout
            assert "keepFirst kept 1 event of then; the 2 events given now were dropped" in kept
            same = run(*command, stdin="4\n" if command is publish else "1\n").stdout
            assert "with the same 1 event: no change" in same
        found = run("tail", f"{base}/orders", "--from", "first", "--no-follow")
    assert ["1", "4"] == found.stdout.splitlines()


@pytest.mark.slow
def test_old_events_go_as_they_were_told_to(run: Run, env: dict[str, str]) -> None:
    """I see what would go before it goes."""
    run("create", "orders", "--partitions", "1")
    for each in ("1", "2"):
        run("load", "orders", "-", stdin=each)
    size = 2 * len('{"partition":0,"headers":{},"data":1}\n')
    assert "Feed 'orders' keeps all events.\n" == run("retention", "orders").stdout
    said = run("retention", "orders", "--size", str(size - 1), "--age", "30d")
    assert "keeps what is younger than 30 days, of that the newest 75 B.\n" in said.stdout
    would = run("prune", "orders").stdout
    assert re.search(r"Would go: 1 event, 38 B, up to position 1, of \d{4}-.* UTC\.\n", would)
    assert "Nothing would go.\n" in run("prune", "orders", "--age", "1h").stdout
    more = run("retention", "orders", "--age", "60d", "--keep-for", "mailer").stdout
    assert "60 days, of that the newest 75 B, and what 'mailer' did not pass.\n" in more
    held = run("prune", "orders", "--size", "1", "--now").stdout
    said = "The rest waits for reader 'mailer', which has kept no position here yet.\n"
    assert f"Nothing was removed.\n{said}" in held
    assert "keeps all events" in run("retention", "orders", "--off").stdout
    for words in (["--age", "30"], ["--age", "0s"], ["--size", "0"]):
        assert 2 == run("retention", "orders", *words).returncode
    run("retention", "orders", "--size", str(size - 1))
    assert "Removed: 1 event" in run("prune", "orders", "--now").stdout
    with serving(env) as (base, _):
        left = run("tail", f"{base}/orders", "--from", "first", "--no-follow").stdout
    assert "2\n" == left
    assert "keeps all events" in run("retention", "orders", "--off").stdout


def test_served_feed_forgets_by_itself(run: Run, env: dict[str, str]) -> None:
    """Nobody has to call prune."""
    run("create", "orders", "--partitions", "1")
    run("load", "orders", "-", stdin="1")
    run("retention", "orders", "--size", "1")
    with serving(env) as (base, _):
        end = time.monotonic() + 30
        while run("tail", f"{base}/orders", "--from", "first", "--no-follow").stdout:
            assert time.monotonic() < end


def test_backup_is_a_store_as_of_then(run: Run, env: dict[str, str], tmp_path: Path) -> None:
    """Made while it is served; it overwrites nothing."""
    run("create", "orders", "--partitions", "1")
    copy = tmp_path / "copy.db"
    with serving(env):
        run("load", "orders", "-", stdin="1")
        said = run("backup", str(copy)).stdout
        run("load", "orders", "-", stdin="2")
    again = run("backup", str(copy))
    with closing(open_store(f"sqlite:///{copy}")) as store:
        assert 1 == store.feed("orders").head
    assert re.search(r"copy\.db is a copy of sqlite:///.*, .* KiB\.\n", said)
    assert (1, True) == (again.returncode, "exists already" in again.stderr)
    assert [] == [*tmp_path.glob("*.part")]


def test_feeds_are_shown_as_a_table(run: Run) -> None:
    """I see what is in a store."""
    run("create", "orders", "--partitions", "2")
    run("create", "new", "--partitions", "1")
    run("load", "orders", "-", stdin="1\n2\n3\n")
    head, new, orders = run("feeds").stdout.splitlines()
    assert ["FEED", "PARTITIONS", "EVENTS", "SIZE", "LAST", "COMMIT"] == head.split()
    assert ["new", "1", "0", "0", "B", "never"] == new.split()
    assert ["orders", "2", "3"] == orders.split()[:3]


@pytest.mark.slow
def test_audit_says_how_much_it_compared_or_what_differs(
    run: Run, env: dict[str, str], tmp_path: Path
) -> None:
    """Two sentences and two exit codes, for people and for scripts."""
    run("create", "orders", "--partitions", "1")
    run("load", "orders", "-", stdin="1\n2\n3\n")
    with serving(env) as (base, _):
        good = run("audit", f"{base}/orders")
        database = sqlite3.connect(tmp_path / "feeds.db", isolation_level=None)
        database.execute("UPDATE chunks SET sequence = 5")
        database.close()
        bad = run("audit", f"{base}/orders", "--producer", "load")
        unknown = run("audit", f"{base}/orders", "--producer", "lo")
    expected = "1 batch of 1 producer, 3 events, positions 1 to 1.\n"
    assert (0, f"Every batch once, unaltered: {expected}", "") == (
        good.returncode, good.stdout, good.stderr,
    )  # fmt: skip
    expected = "position 1, batch 0 of producer 'load': sequence number in partition 0: expected 0"
    assert (1, "", f"Error: {base}/orders is not as published:\n{expected}, found 5\n") == (
        bad.returncode, bad.stdout, bad.stderr,
    )  # fmt: skip
    assert (1, True) == (unknown.returncode, "'lo' has never published" in unknown.stderr)


def test_audit_shows_a_bar_on_a_terminal(env: dict[str, str], run: Run, tmp_path: Path) -> None:
    """I see how far it is."""
    run("create", "orders", "--partitions", "2")
    run("load", "orders", "-", stdin="1\n" * 20_000)
    ours, theirs = pty.openpty()
    with serving(env) as (base, _):
        subprocess.run(
            [*COMMAND, "audit", f"{base}/orders"], env=env, cwd=tmp_path, stderr=theirs,
            stdout=subprocess.DEVNULL, check=True, timeout=60,
        )  # fmt: skip
    os.close(theirs)
    shown = os.read(ours, 65_536)
    os.close(ours)
    assert b"Auditing" in shown and b"100%" in shown


@pytest.mark.kill
def test_killed_load_leaves_nothing_visible(run: Run, env: dict[str, str], tmp_path: Path) -> None:
    """After kill -9 the feed is as before, and I load again."""
    run("create", "orders", "--partitions", "1")
    with subprocess.Popen(
        [*COMMAND, "load", "orders", "-"], env=env, stdin=subprocess.PIPE
    ) as load:
        assert load.stdin
        line = b'"%s"\n' % os.urandom(20_000).hex().encode()
        while not _staged(tmp_path / "feeds.db"):
            load.stdin.write(line * 50)
        load.kill()
    before = open_store(env["ZEH_STORE"]).feed("orders").head
    run("load", "orders", "-", stdin="1\n")
    with serving(env) as (base, _):
        found = run("tail", f"{base}/orders", "--from", "first", "--no-follow").stdout
    assert (0, "1\n") == (before, found)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_stops_within_seconds_despite_long_polls(
    run: Run, env: dict[str, str], number: signal.Signals
) -> None:
    """Ctrl-C, or the service manager, ends it in order."""
    run("create", "orders", "--partitions", "1")
    answers: list[int] = []
    with serving(env) as (base, server):
        url = f"{base}/orders?n=1&cursor0=_first"
        assert 200 == requests.get(url, timeout=9).status_code
        poll = threading.Thread(
            target=lambda: answers.append(requests.get(f"{url}&wait=60", timeout=70).status_code)
        )
        poll.start()
        while not _established(base):
            pass
        server.send_signal(number)
        code = server.wait(30)
        poll.join()
    assert (0, [200]) == (code, answers)


def test_second_server_on_one_file_is_refused(run: Run, env: dict[str, str]) -> None:
    """Two servers would not know of each other's limits."""
    run("create", "orders")
    with serving(env):
        said = run("serve", "--port", "0")
    assert 1 == said.returncode
    assert "is served by another process already" in said.stderr


def test_port_that_is_taken_is_named(run: Run) -> None:
    """I see that something else listens there."""
    run("create", "orders")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        said = run("serve", "--port", str(port))
    assert (1, True) == (
        said.returncode,
        f"cannot listen on 127.0.0.1:{port}: Address already in use" in said.stderr,
    )


MISTAKES = [
    (
        ["serve", "--store", "sqlite:///nowhere.db"],
        1,
        "there is no store nowhere.db; zeh-spark create",
    ),
    (["serve", "--store", "postgresql://x:y@127.0.0.1:1/z"], 1, "x:***@127.0.0.1:1/z cannot"),
    (["serve", "--store", "memory:"], 2, "ends with the command"),
    (["serve", "--store", "sqlite:///text.csv"], 1, "not a database"),
    (["serve", "--port", "http"], 2, "'http' is not a valid integer"),
    (["create", "a/b"], 1, "a feed cannot be called 'a/b'"),
    (["create", "orders"], 1, "feed 'orders' exists already"),
    (["create", "x", "--partitions", "0"], 1, "allowed are 1 to 1024"),
    (
        ["load", "order", "text.csv"],
        1,
        "there is no feed 'order' in this store; zeh-spark create order",
    ),
    (["load", "orders"], 2, "Missing argument 'FILE...'"),
    (
        ["load", "orders", "none.csv"],
        1,
        "none.csv: No such file or directory; nothing was published",
    ),
    (
        ["load", "orders", "text.csv", "--key", "x"],
        1,
        "there is no column 'x' for the key; there are a, b",
    ),
    (["load", "orders", "-", "--key", "x", "--envelope"], 2, "exclude each other"),
    (["load", "orders", "-", "-"], 2, "Standard input can be loaded once"),
    (["tail", "flights"], 2, "must be the feed's whole address"),
    (["tail", "http://127.0.0.1:1/x", "--form", "last"], 2, "No such option"),
    (["audit", "orders"], 2, "must be the feed's whole address"),
    (["audit"], 2, "Missing argument 'URL'"),
    (["audit", "http://127.0.0.1:1/x", "--producer", ""], 2, "NAME is empty"),
    (["unknown"], 2, "No such command 'unknown'"),
]


@pytest.mark.parametrize(("words", "code", "reason"), MISTAKES, ids=lambda each: str(each)[:60])
def test_mistake_gets_a_sentence_and_an_exit_code(
    run: Run, tmp_path: Path, words: list[str], code: int, reason: str
) -> None:
    """I am told what to change, and never see a traceback."""
    run("create", "orders")
    (tmp_path / "text.csv").write_text("a,b\n" + "some,text\n" * 500)
    said = run(*words)
    assert (code, True, "") == (said.returncode, reason in said.stderr, said.stdout)
    assert "Traceback" not in said.stderr


def test_without_the_extra_the_command_says_what_to_install(env: dict[str, str]) -> None:
    """`pip install zeh-spark` alone has no server framework."""
    program = (
        "import sys; sys.modules['sqlalchemy'] = None\nfrom zeh_spark.cli.main import main\nmain()"
    )
    said = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False
    )
    assert (1, True) == (said.returncode, 'pip install "zeh-spark[publisher]"' in said.stderr)
    assert "Traceback" not in said.stderr


@pytest.mark.parametrize("command", ["serve", "create", "load", "tail", "audit"])
def test_help_has_examples(run: Run, command: str) -> None:
    """I learn a command from its help."""
    assert f"zeh-spark {command} " in run(command, "--help").stdout.partition("Example")[2]


def test_load_shows_a_bar_on_a_terminal(env: dict[str, str], run: Run, tmp_path: Path) -> None:
    """I see how far a long load is."""
    run("create", "orders")
    (tmp_path / "a.ndjson").write_text("1\n" * 20_000)
    ours, theirs = pty.openpty()
    subprocess.run(
        [*COMMAND, "load", "orders", "a.ndjson"], env=env, cwd=tmp_path, stderr=theirs,
        stdout=subprocess.DEVNULL, check=True, timeout=60,
    )  # fmt: skip
    os.close(theirs)
    shown = os.read(ours, 65_536)
    os.close(ours)
    assert b"Loading" in shown and b"100%" in shown


def _staged(file: Path) -> bool:
    """Whether the load has written something by now."""
    wal = file.with_name(file.name + "-wal")
    return wal.exists() and wal.stat().st_size > 1 << 20


def _established(base: str) -> bool:
    """Whether the server has more than one connection: the one that waits."""
    port = f":{int(base.rpartition(':')[2]):04X}"
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(row[1].endswith(port) and row[3] == "01" for row in rows)
