"""What a command says to a mistake: a sentence, and an exit code."""

from __future__ import annotations

import shlex
import socket
from pathlib import Path

from tests.cases import each_case
from tests.fix_cli import Run


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
        "serve --store sqlite:///nowhere.db",
        1,
        "there is no store nowhere.db. Make it, with its first feed, with zeh-spark create",
    ),
    ("serve --store postgresql://x:y@127.0.0.1:1/z", 1, "x:***@127.0.0.1:1/z cannot"),
    ("serve --store memory:", 1, "unknown store 'memory': use sqlite:///feeds.db"),
    ("serve --store sqlite:///text.csv", 1, "not a database"),
    ("serve --port http", 2, "'http' is not a valid integer"),
    ("serve --config nowhere.toml", 1, "nowhere.toml cannot be read"),
    ("create a/b", 1, "a feed cannot be called 'a/b'"),
    ("create orders", 1, "feed 'orders' exists already"),
    ("create x --partitions 0", 1, "allowed are 1 to 1024"),
    (
        "load order text.csv",
        1,
        "there is no feed 'order' in this store; create it with zeh-spark create order",
    ),
    ("load orders", 2, "Missing argument 'FILE...'"),
    ("load orders none.csv", 1, "none.csv: No such file or directory; nothing was published"),
    ("load orders text.csv --key x", 1, "there is no column 'x' for the key; there are a, b"),
    ("load orders - --key x --envelope", 2, "exclude each other"),
    ("load orders - -", 2, "Standard input can be loaded once"),
    ("tail flights", 2, "must be the feed's whole address"),
    ("tail http://127.0.0.1:1/x --form last", 2, "No such option"),
    ("audit orders", 2, "must be the feed's whole address"),
    ("audit", 2, "Missing argument 'URL'"),
    ("audit http://127.0.0.1:1/x --producer ''", 2, "NAME is empty"),
    ("unknown", 2, "No such command 'unknown'"),
    ("sessions end http://127.0.0.1:1/x", 2, "Give the session as HEADER=VALUE, or --data"),
    ("sessions end http://127.0.0.1:1/x A", 2, "'A' has no header or no value"),
    ("sessions end http://127.0.0.1:1/x order=", 2, "'order=' has no header or no value"),
    (
        "sessions end http://127.0.0.1:1/x zeh-time=1",
        2,
        "'zeh-time' is not the session's own",
    ),
    ("sessions end http://127.0.0.1:1/x a=1 a=2", 2, "the header 'a' is given twice"),
    ("sessions end http://127.0.0.1:1/x a=1 --number s=1", 2, "No such option"),
    ("sessions skip http://127.0.0.1:1/x a=1 --attempt 1", 2, "Give --number as HEADER=VALUE"),
    ("sessions skip http://127.0.0.1:1/x a=1 --number s=1", 2, "Missing option '--attempt'"),
    ("sessions skip http://127.0.0.1:1/x a=1 --attempt 0 --number s=1", 2, "0 is not in the range"),
]


@each_case("words, code, reason", MISTAKES)
def test_mistake_gets_a_sentence_and_an_exit_code(
    run: Run, tmp_path: Path, words: str, code: int, reason: str
) -> None:
    """I am told what to change, and never see a traceback."""
    run("create", "orders")
    (tmp_path / "text.csv").write_text("a,b\n" + "some,text\n" * 500)
    said = run(*shlex.split(words))
    assert (code, True, "") == (said.returncode, reason in said.stderr, said.stdout)
    assert "Traceback" not in said.stderr
