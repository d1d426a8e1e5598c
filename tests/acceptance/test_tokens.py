"""Tokens from the command line, and Spark with them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fix_cli import Run
from tests.fix_publisher import served
from tests.patience import eventually
from zeh_spark.publish import Producer


@pytest.fixture
def token(run: Run):
    """`token(NAME, RIGHT, …)`: the text of a new token of the store of `run`."""
    return lambda *words: run("token", "create", *words).stdout.strip()


def test_a_token_is_printed_once_and_kept_as_a_hash(run: Run, token, tmp_path: Path) -> None:
    """Whoever gets the store, or looks at the list, has no token."""
    run("create", "orders")
    text = token("warehouse", "--read", "orders", "--consume", "orders/warehouse")
    listed = run("token", "list").stdout

    secret = text.split("_", 2)[2]  # it may have underscores, too
    assert secret not in listed
    assert all(secret.encode() not in file.read_bytes() for file in tmp_path.glob("feeds.db*"))
    assert "valid" in listed and "read:orders consume:orders/warehouse" in listed


def test_a_token_can_go_into_a_file_of_mine_alone(run: Run, tmp_path: Path) -> None:
    """It is in no terminal and no log; a file that is there stays, and no token is made."""
    run("create", "orders")
    made = run("token", "create", "a", "--read", "orders", "--output", "a.txt")
    file = tmp_path / "a.txt"
    assert 0o600 == file.stat().st_mode & 0o777
    assert file.read_text().strip() not in made.stdout + made.stderr
    before, again = file.read_text(), run("token", "create", "b", "--admin", "--output", "a.txt")
    assert (1, True) == (again.returncode, "a.txt cannot be made: File exists" in again.stderr)
    assert before == file.read_text()
    assert ["a"] == [
        each["name"] for each in json.loads(run("token", "list", "--json").stdout)["tokens"]
    ]


def test_a_token_that_was_not_made_leaves_no_file(run: Run, tmp_path: Path) -> None:
    """I correct the command, and run it again."""
    words = "token", "create", "a", "--admin", "--output", "a.txt"
    failed = run(*words, "--store", f"sqlite:///{tmp_path}/nowhere/feeds.db")
    assert (1, False) == (failed.returncode, (tmp_path / "a.txt").exists())
    assert 0 == run(*words).returncode


def test_a_new_token_names_its_store_and_feeds_that_are_not_there(run: Run) -> None:
    """I see at once that a publisher of another store does not know it, and that I mistyped."""
    run("create", "orders", "--partitions", "1")
    right = run("token", "create", "a", "--read", "orders", "--read", "o*").stderr
    wrong = run("token", "create", "b", "--read", "ordres", "--publish", "orders/till").stderr

    assert ("feeds.db" in right, "has no feed" in right) == (True, False)
    assert "That store has no feed 'ordres'." in wrong


def test_what_cannot_be_granted_is_refused(run: Run) -> None:
    """I see what is wrong, and no token is made: none that outlives everybody, either."""
    run("create", "orders")
    assert "Give --read" in run("token", "create", "nobody").stderr
    said = run("token", "create", "x", "--publish", "o*s/till").stderr
    assert "publish 'o*s/till' cannot be granted: a * can only be at the end" in said
    assert "it names no feed" in run("token", "create", "x", "--read", "").stderr
    ever = run("token", "create", "x", "--read", "orders", "--expires", "99999999d")
    assert (ever.returncode, "longer than 1,000 years" in ever.stderr) == (2, True)
    assert "no valid token" in run("token", "revoke", "x").stderr
    assert "There are no tokens" in run("token", "list").stdout


def test_an_address_that_others_reach_needs_tokens(run: Run, tmp_path: Path) -> None:
    """I do not open my feeds to a network by mistake, but in so many words."""
    run("create", "orders")
    done = run("serve", "--host", "0.0.0.0", "--port", "0")

    assert done.returncode == 1
    assert "anybody could read and publish" in done.stderr
    assert "zeh-spark token create" in done.stderr and "--allow-anyone" in done.stderr
    with served(tmp_path / "feeds.db", "--host", "0.0.0.0", "--allow-anyone") as (base, _):
        url = base.replace("0.0.0.0", "127.0.0.1")
        with Producer(f"{url}/orders", "till-7").batch() as batch:
            batch.add({"order": 1})


def test_commands_send_a_token(run: Run, token, tmp_path: Path, monkeypatch) -> None:
    """I publish, look and audit with a file or a variable, and not without one."""
    run("create", "orders")
    file = tmp_path / "token"
    file.write_text(token("all", "--admin"))
    with served(tmp_path / "feeds.db") as (base, _):
        url = f"{base}/orders"
        published = run("publish", url, "--producer", "p", "--token-file", str(file), stdin="{}\n")
        assert published.returncode == 0, published.stderr
        lag = "lag", url, "--cursorset", "warehouse"
        with_file = run(*lag, "--token-file", str(file)).stderr
        assert "has no lag of the cursor set 'warehouse'" in with_file
        tail = "tail", url, "--from", "first", "--no-follow"
        for words in (tail, lag, ("producers", url), ("audit", url), ("dead-letters", url)):
            monkeypatch.setenv("ZEH_TOKEN", file.read_text().strip())
            assert "unauthorized" not in run(*words).stderr
            monkeypatch.delenv("ZEH_TOKEN")
            refused = run(*words)
            assert (refused.returncode, "unauthorized" in refused.stderr) == (5, True)


def test_spark_reads_and_publishes_what_its_token_allows(
    run: Run, token, tmp_path: Path, spark, collected
) -> None:
    """My stream continues with a renewed token. It stops when the token is revoked."""
    run("create", "orders", "--partitions", "2")
    file = tmp_path / "token"
    file.write_text(token("reader", "--read", "orders", "--consume", "orders/warehouse"))
    writer = token("writer", "--publish", "orders/job")
    with served(tmp_path / "feeds.db") as (base, _):
        url = f"{base}/orders"
        rows = spark.range(10).selectExpr("to_json(struct(id AS i)) AS data")
        sink = rows.write.format("zeroeventhub").mode("append").option("url", url)
        sink.options(producerId="job", batchId="1", token=writer).save()
        with pytest.raises(Exception, match=r"403 forbidden.*publish:orders/other"):
            sink.options(producerId="other", batchId="1", token=writer).save()

        options = {"tokenFile": str(file), "cursorSet": "warehouse"}
        frame = spark.readStream.format("zeroeventhub").options(**options).load(url)
        query = collected(frame)
        query.processAllAvailable()
        assert sorted(collected.numbers()) == list(range(10))

        renewed = token("reader", "--read", "orders", "--consume", "orders/warehouse")
        old, file_before = run("token", "list").stdout, file.read_text()
        file.write_text(renewed)
        assert file_before.split("_")[1] in old
        run("token", "revoke", file_before.split("_")[1])
        sink.options(producerId="job", batchId="2", token=writer).save()
        eventually(lambda: len(collected.rows) == 20 or not query.isActive)
        assert query.isActive, query.exception()

        run("token", "revoke", "reader")
        eventually(lambda: not query.isActive)
        assert "401 unauthorized" in str(query.exception())
    assert set(collected.numbers().values()) == {2}


def test_a_header_that_is_written_wrongly_is_not_shown(run: Run) -> None:
    """It may be a credential."""
    done = run("tail", "http://127.0.0.1:1/x", "--header", "Authorization: Bearer HUSHHUSH")

    assert (done.returncode, "HUSH" in done.stderr) == (2, False)


def test_the_owner_of_a_producer_may_ask_for_it_before_it_published(
    run: Run, token, tmp_path: Path, monkeypatch
) -> None:
    """The answer is that it never published, not that I may not see others."""
    run("create", "orders")
    monkeypatch.setenv("ZEH_TOKEN", token("writer", "--publish", "orders/till-7"))
    with served(tmp_path / "feeds.db") as (base, _):
        done = run("producers", f"{base}/orders", "till-7")

    assert "producer 'till-7' has never published" in done.stderr
