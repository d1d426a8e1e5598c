"""The command as a process of its own: signals, pipes, terminals, exit codes, and a server.

All else about commands is tested in the process of the tests (`tests/fix_cli.py`).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.fix_cli import COMMAND, Run, published
from tests.patience import PATIENCE
from zeh_spark.publisher import open_store


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


def test_serve_prints_the_address_of_each_feed(run: Run, env: dict[str, str]) -> None:
    """For consumers. A second server on the file, which knows none of its limits, is refused."""
    run("create", "orders", "--partitions", "1")
    run("create", "flights", "--partitions", "8")
    with serving(env) as (base, server):
        assert server.stdout
        lines = [server.stdout.readline() for _ in range(2)]
        second = run("serve", "--port", "0")
    assert 1 == second.returncode
    assert "is served by another process already" in second.stderr
    assert [f"  {base}/flights  8 partitions\n", f"  {base}/orders  1 partition\n"] == lines


def test_tail_follows_and_its_events_can_be_loaded_again(
    run: Run, env: dict[str, str], store_url: str
) -> None:
    """What tail prints with --headers, load --envelope takes."""
    run("create", "orders", "--partitions", "2")
    run("create", "copy", "--partitions", "2")
    event = {"partition": 1, "headers": {"h": "1"}, "data": {"id": 7}}
    with published(store_url) as base:
        command = [*COMMAND, "tail", f"{base}/orders", "--from", "first", "--headers"]
        with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as tail:
            assert tail.stdout
            try:
                run("load", "orders", "-", "--envelope", stdin=json.dumps(event))
                line = tail.stdout.readline()
                tail.send_signal(signal.SIGINT)
                assert 0 == tail.wait(PATIENCE)
            finally:
                tail.kill()
        run("load", "copy", "-", "--envelope", stdin=line)
        copied = run("tail", f"{base}/copy", "--from", "first", "--headers", "--no-follow")
    found = json.loads(copied.stdout)
    found["headers"] = {k: v for k, v in found["headers"].items() if not k.startswith("zeh-")}
    assert event == found


@pytest.mark.parametrize(
    ("words", "code"),
    [("feeds", 0), ("load nothing -", 1), ("create orders --partitions", 2)],
)
def test_a_shell_gets_the_exit_code(run: Run, env: dict[str, str], words: str, code: int) -> None:
    """A script goes by it: done, failed, or used wrongly."""
    run("create", "orders")
    shell = f"{sys.executable} -m zeh_spark {words}; echo $?"
    done = subprocess.run(
        ["sh", "-c", shell], env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        check=True, timeout=60,
    )  # fmt: skip
    assert f"{code}" == done.stdout.splitlines()[-1]
    assert (code > 0, False) == (done.stderr != "", "Traceback" in done.stderr)


def test_tail_ends_in_silence_when_the_pipe_is_closed(
    run: Run, env: dict[str, str], store_url: str
) -> None:
    """`tail … | head -1` has enough after a line; it is not an error."""
    run("create", "orders", "--partitions", "1")
    run("load", "orders", "-", stdin='"%s"\n' % ("x" * 200) * 20_000)
    with published(store_url) as base:
        tail = f"{sys.executable} -m zeh_spark tail {base}/orders --from first --no-follow"
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", f"{tail} | head -1"], env=env, capture_output=True,
            text=True, check=False, timeout=60,
        )  # fmt: skip
    assert (0, f'"{"x" * 200}"\n', "") == (done.returncode, done.stdout, done.stderr)


@pytest.mark.kill
def test_killed_load_leaves_nothing_visible(
    run: Run, env: dict[str, str], store_url: str, tmp_path: Path
) -> None:
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
    with closing(open_store(store_url)) as store:
        before = store.feed("orders").head
    run("load", "orders", "-", stdin="1\n")
    with published(store_url) as base:
        found = run("tail", f"{base}/orders", "--from", "first", "--no-follow").stdout
    assert (0, "1\n") == (before, found)


def _staged(file: Path) -> bool:
    """Whether the load has written something by now."""
    wal = file.with_name(file.name + "-wal")
    return wal.exists() and wal.stat().st_size > 1 << 20
