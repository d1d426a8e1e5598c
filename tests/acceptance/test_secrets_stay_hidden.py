"""Secrets in options stay out of logs, plans, event logs, checkpoints and staged files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fix_cli import Run
from tests.fix_publisher import served
from tests.fix_spark import run_program

pytestmark = [pytest.mark.slow, pytest.mark.spark]


@pytest.fixture
def token(run: Run) -> str:
    run("create", "orders", "--partitions", "2")
    words = "token", "create", "all", "--read", "*", "--publish", "orders/*"
    return run(*words).stdout.split()[-1]


def test_a_run_with_all_logs_on_shows_no_secret(
    token: str, warm: dict[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """I can send logs, plans and checkpoints to somebody, also after a failure."""
    header, folder = "canary-of-a-header", tmp_path / "run"
    (folder / "events").mkdir(parents=True)
    (tmp_path / "secrets").write_text(f"{token} {header}")
    words = "--access-log", "--log-level", "debug"
    with served(tmp_path / "feeds.db", *words) as (base, process):
        job = {"url": f"{base}/orders", "folder": str(folder), "secrets": str(tmp_path / "secrets")}
        job["clientSecret"] = client = "canary-of-a-client"
        done = run_program("with_secrets.py", job, environment=warm)
        process.terminate()
        process.wait(30)

    shown = {"stdout": done.stdout, "stderr": done.stderr, "publisher": capfd.readouterr().err}
    files = {str(each): each for each in folder.rglob("*") if each.is_file()}
    texts = {**shown, **{name: each.read_text("latin-1") for name, each in files.items()}}
    for secret in (token, token.split("_", 2)[2], header, client):
        assert [] == [name for name, text in texts.items() if secret in text]
    assert shown["publisher"].count("request") > 10
    assert "refused:" in done.stdout
    assert "unknown-feed" in done.stdout
    assert "the token server http://127.0.0.1:9/token does not answer" in done.stdout
    assert any("SparkListenerApplicationEnd" in text for text in texts.values())
    assert {"checkpoint-driver", "checkpoint-executors", "events", "staged"} <= {
        each.relative_to(folder).parts[0] for each in files.values()
    }
