"""How far a query is behind: in a command, in the progress, with a token."""

import json

import pytest
import requests

import zeh_spark
from tests.fix_cli import call, published
from tests.fix_raw_server import refused
from tests.patience import PATIENCE, eventually
from zeh_spark.spark.frames.compat import HAS_ADMISSION_CONTROL


@pytest.fixture
def told(run, collected, stream, spark):
    """`told(base, …)`: run a query over feed `orders` once; its progress, and the checkpoint."""

    def once(base, **options):
        seen = []
        listener = zeh_spark.ProgressListener(report=seen.append)
        spark.streams.addListener(listener)
        frame = stream(url=f"{base}/orders", cursorSet="warehouse", **options).load()
        assert collected(frame, availableNow=True).awaitTermination(PATIENCE)
        eventually(lambda: bool(seen), PATIENCE)
        spark.streams.removeListener(listener)
        return seen[-1], str(collected.folder / "checkpoint")

    return once


def test_a_command_tells_what_a_query_has_not_read(run, told, store_url):
    """I see it by the checkpoint and by the cursor set, for people and for programs."""
    run("create", "orders", "--partitions", "2")
    run("load", "orders", "-", stdin="1\n2\n3\n")
    with published(store_url) as base:
        progress, checkpoint = told(base)
        assert (3, 0, 0) == (progress.events, progress.events_behind, progress.seconds_behind)
        by_checkpoint = "lag", f"{base}/orders", "--checkpoint", checkpoint
        assert "Nothing is unread after batch 0." in run(*by_checkpoint).stdout
        run("load", "orders", "-", "--producer", "more", stdin="4\n5\n")

        shown = run(*by_checkpoint).stdout
        assert "2 events unread, the oldest for" in shown and "PARTITION" in shown
        document = json.loads(run(*by_checkpoint, "--json").stdout)
        assert (f"{base}/orders", 0) == (document["feed"], document["batch"])
        assert {"total": 2, "max": 2, "min": 0, "mean": 1.0} == document["eventsBehind"]
        assert 0 < document["secondsBehind"]["max"] < PATIENCE

        if not HAS_ADMISSION_CONTROL:  # the next run of the query reports what this one committed
            told(base)
        by_name = "lag", f"{base}/orders", "--cursorset", "warehouse", "--json"
        eventually(lambda: total(run(*by_name)) == 2, PATIENCE)


def test_partitions_without_a_position_are_told(run, store_url):
    """A cursor set with a position in one of two partitions is not taken for one that read all."""
    run("create", "orders", "--partitions", "2")
    run("load", "orders", "-", "--key", "id", stdin='{"id": 1}\n{"id": 2}\n{"id": 3}\n')
    with published(store_url) as base:
        page = {"n": 2, "cursor0": "_last", "cursorset": "half"}
        assert requests.get(f"{base}/orders", page, timeout=PATIENCE).status_code == 200
        words = "lag", f"{base}/orders", "--cursorset", "half"
        eventually(lambda: run(*words).returncode == 0, PATIENCE)

        told, document = run(*words).stdout, json.loads(run(*words, "--json").stdout)

    assert "It has a position in 1 of 2 partitions; events of the others are not counted." in told
    assert (2, 1) == (document["n"], document["partitionsWithPosition"])


def total(done):
    return json.loads(done.stdout)["eventsBehind"]["total"] if done.returncode == 0 else None


MISTAKES = [
    ("", 2, "Give either --checkpoint or --cursorset."),
    ("--checkpoint a --cursorset b", 2, "Give either --checkpoint or --cursorset."),
    ("--checkpoint nowhere", 1, "nowhere is no checkpoint that can be read here"),
    ("--checkpoint other", 1, "it has 'http://other/feed'. Give the URL as in the query"),
    ("--checkpoint torn", 1, "torn is no checkpoint that can be read here"),
    ("--checkpoint newer", 1, "the checkpoint holds an offset of format 99"),
    ("--checkpoint new", 1, "new has committed no batch yet"),
    ("--checkpoint mine", 1, "no such thing"),
]


def test_mistakes_are_explained(raw_server, tmp_path):
    """I see what to give, scripts see the exit code; what is not told is an error, never 0."""
    raw_server.respond = lambda request: refused(404, "no such thing")
    partitions = {"0": {"cursor": "7", "events": 1, "bytes": 1}}
    urls = {"mine": raw_server.url, "newer": raw_server.url, "other": "http://other/feed"}
    for name, feed in {**urls, "torn": ""}.items():
        version = 99 if name == "newer" else 3
        offset = {"version": version, "feed": feed, "partitionCount": 1, "partitions": partitions}
        text = f"v1\n{{}}\n{json.dumps(offset)}" if feed else "v9\n"
        for log, content in (("commits", ""), ("offsets", text)):
            (tmp_path / name / log).mkdir(parents=True)
            (tmp_path / name / log / "4").write_text(content)
    (tmp_path / "new" / "commits").mkdir(parents=True)

    for words, code, said in MISTAKES:
        done = call("lag", raw_server.url, *words.split(), folder=tmp_path)
        assert (code, True) == (done.returncode, said in done.stderr), words
