"""`zeh-spark quickstart`: a feed with sample data, and a script that is whole."""

from __future__ import annotations

import ast
import os
import signal
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.fix_cli import COMMAND, call
from tests.patience import PATIENCE
from zeh_spark.publisher import open_store
from zeh_spark.tools.cli import quickstart


def test_it_makes_the_feeds_once(tmp_path: Path) -> None:
    """I start it again, and have the same feeds."""
    quickstart.make(tmp_path)
    url = quickstart.make(tmp_path)

    with closing(open_store(url)) as store:
        found = {each.name: each.events for each in store.feeds()}
    assert {"flights": quickstart.FLIGHTS, "delays": 0} == found


def test_the_script_is_whole(tmp_path: Path) -> None:
    """It has a session, and waits for its stream; it needs nothing that is not in it."""
    text = quickstart.write_script(tmp_path, "http://127.0.0.1:1").read_text(encoding="utf-8")

    ast.parse(text)
    assert {True} == {
        each in text for each in ("getOrCreate()", "awaitTermination()", "127.0.0.1:1", "save()")
    }


def test_only_the_default_port_is_replaced_if_it_is_taken(capsys) -> None:
    """I need not look for a free one, and am told; one that I gave is the one, or an error."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        found = quickstart.free_port(taken, or_other=True)
        said = f"Port {taken} is taken: the publisher listens on {found}."
        assert (True, said) == (taken != found, capsys.readouterr().err.strip())
        given = call("quickstart", "--port", str(taken))
    assert (1, "") == (given.returncode, given.stdout)
    assert f"[ZEH_CANNOT_LISTEN] 127.0.0.1:{taken} cannot be used" in given.stderr


def test_it_serves_and_says_what_to_run(env: dict[str, str], tmp_path: Path) -> None:
    """The command that I am told to copy names this Python, and the address is right."""
    with subprocess.Popen(
        [*COMMAND, "quickstart", "--port", "0"],
        env={**env, "PYTHONUNBUFFERED": "1"}, cwd=tmp_path, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout
        lines = []
        for line in process.stdout:
            lines.append(line)
            if "/flights  4 partitions" in line:
                break
        base = line.split("/flights")[0].strip()
        tail = call("tail", f"{base}/flights", "--from", "first", "--no-follow")
        again = call("quickstart", "--port", "0", folder=tmp_path)
        process.send_signal(signal.SIGINT)
        process.stdout.read()

    script = (tmp_path / "zeh-quickstart" / "quickstart.py").read_text(encoding="utf-8")
    assert (1, True) == (again.returncode, "served by another process already" in again.stderr)
    assert f"PUBLISHER = {base!r}\n" in script  # a second quickstart has left it as it was
    assert 0 == process.returncode
    assert f"  {sys.executable} zeh-quickstart/quickstart.py\n" in lines
    assert f"PUBLISHER = {base!r}\n" in lines
    assert quickstart.FLIGHTS == len(tail.stdout.splitlines())
    assert ["zeh-quickstart"] == os.listdir(tmp_path)


@pytest.mark.campaign
def test_a_plain_install_has_all_client_commands(tmp_path: Path) -> None:
    """`pip install zeh-spark` in an empty environment: to read and to check needs nothing else."""
    root = Path(__file__).parents[2]
    python = tmp_path / "venv" / "bin" / "python"

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return subprocess.run(
            words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=2 * PATIENCE
        )

    run(sys.executable, "-m", "venv", str(tmp_path / "venv"))
    built = run(sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", str(tmp_path), str(root))
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("zeh_spark-*.whl")
    installed = run(str(python), "-m", "pip", "install", "--quiet", str(wheel))
    assert installed.returncode == 0, installed.stderr
    command = str(python.with_name("zeh-spark"))

    url = "http://127.0.0.1:1/orders"
    for words in (
        ["tail", url], ["audit", url], ["check", url], ["producers", url], ["feeds", url],
        ["dead-letters", url], ["replay-dead", url],
        ["sessions", "end", url, "order=a"],
    ):  # fmt: skip
        done = run(command, *words)
        assert (4, False) == (done.returncode, "Traceback" in done.stderr), done.stderr
    needs = run(command, "serve")
    assert (1, True) == (needs.returncode, "zeh-spark[publisher]" in needs.stderr)
    assert 1 == len(needs.stderr.splitlines())
