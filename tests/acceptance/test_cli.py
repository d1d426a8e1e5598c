"""What the commands do with feeds and events: `create`, `load`, `publish`, `tail`, `feeds`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.fix_cli import Run, published


def test_a_feed_is_created_loaded_served_and_read(run: Run, store_url: str, tmp_path: Path) -> None:
    """Four commands take me from a file to a feed that others read."""
    (tmp_path / "a.csv").write_text("id,name\n1,x\n2,y\n")
    run("create", "orders", "--partitions", "1")
    with published(store_url) as base:
        said = run("load", "orders", "a.csv")
        found = run("tail", f"{base}/orders", "--from", "first", "--no-follow")
    assert re.fullmatch(r"Loaded 2 events, \d+ B, into 'orders' in .* s\.\n", said.stdout)
    assert ['{"id":1,"name":"x"}', '{"id":2,"name":"y"}'] == found.stdout.splitlines()


def test_standard_input_is_published_whole_and_by_name(run: Run, store_url: str) -> None:
    """A script's events reach a running publisher: all or nothing, and under a name once."""
    run("create", "orders", "--partitions", "1")
    with published(store_url) as base:
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
    said = "there are no events; nothing was published"
    assert (1, True) == (empty.returncode, said in empty.stderr)
    assert ["1", "2", "3", "4"] == found.stdout.splitlines()


def test_events_that_keep_first_drops_are_told(run: Run, store_url: str) -> None:
    """How many were given and not published; the refusal before names the option to paste."""
    run("create", "orders", "--partitions", "1")
    load = ["load", "orders", "-", "--producer", "till-7", "--batch", "night"]
    run(*load, stdin="1\n")
    with published(store_url) as base:
        publish = ["publish", f"{base}/orders", "--producer", "till-7", "--batch", "day"]
        run(*publish, stdin="4\n")
        for command in (publish, load):
            refused = run(*command, stdin="5\n6\n").stderr
            allowed = re.search(r"set once (--allow keepFirst=\S+)$", refused, re.MULTILINE)
            assert allowed, refused
            assert refused.startswith("Error: [ZEH_BATCH_CONFLICT] ")
            assert "explain batch-conflict" in refused
            kept = run(*command, *allowed[1].split(), stdin="5\n6\n")
            name = command[-1]
            assert re.fullmatch(
                rf"Batch 'till-7#{name}': keepFirst keeps the 1 event published under this name at "
                r".* \(content [0-9a-f]{8}\); the 2 events given now \(content [0-9a-f]{8}\) were "
                r"dropped\. Nothing was added\.\n",
                kept.stdout,
            )
            assert "" == kept.stderr  # once, not in a warning, too
            same = run(*command, stdin="4\n" if command is publish else "1\n").stdout
            assert "with the same 1 event: no change" in same
        found = run("tail", f"{base}/orders", "--from", "first", "--no-follow")
    assert ["1", "4"] == found.stdout.splitlines()


@pytest.mark.parametrize("given", ["", "\n \n"], ids=["nothing", "blank lines"])
def test_input_without_events_is_refused_by_all_commands(
    run: Run, store_url: str, tmp_path: Path, given: str
) -> None:
    """The program before the pipe has failed, and the commands agree about it."""
    run("create", "orders")
    (tmp_path / "a.csv").write_text("id,name\n")
    with published(store_url) as base:
        said = [
            run("load", "orders", "-", stdin=given),
            run("load", "orders", "a.csv"),
            run("publish", f"{base}/orders", "--producer", "till-7", stdin=given),
            run("replay-dead", f"{base}/orders", stdin=given),
        ]
        published_by = json.loads(run("producers", f"{base}/orders", "--json").stdout)
    assert {"producers": []} == published_by
    for each in said:
        assert (1, "") == (each.returncode, each.stdout)
        assert "there are no events; nothing was published" in each.stderr
    assert ["standard input", "a.csv", "standard input", "standard input"] == [
        each.stderr.partition("] ")[2].partition(":")[0] for each in said
    ]


def test_dead_letters_of_an_ordinary_feed_are_given_up(run: Run, store_url: str) -> None:
    """A wrong address does not fill my terminal."""
    run("create", "orders", "--partitions", "1")
    run("load", "orders", "-", stdin="".join(f"{i}\n" for i in range(1000)))
    with published(store_url) as base:
        found = run("dead-letters", f"{base}/orders")
    *named, error, help = found.stderr.splitlines()
    assert (1, "") == (found.returncode, found.stdout)
    assert [f"Left out: event {i} of {base}/orders" for i in range(1, 6)] == [
        each.rpartition(": its data")[0] for each in named
    ]
    assert error.startswith(
        f"Error: [ZEH_NO_DEAD_LETTERS] {base}/orders is no dead-letter feed: the first 6"
    )
    assert help.endswith(" the-feed-is-no-dead-letter-feed")


def test_feeds_are_shown_as_a_table(run: Run) -> None:
    """I see what is in a store."""
    run("create", "orders", "--partitions", "2")
    run("create", "new", "--partitions", "1")
    run("load", "orders", "-", stdin="1\n2\n3\n")
    head, new, orders = run("feeds").stdout.splitlines()
    assert ["FEED", "PARTITIONS", "EVENTS", "SIZE", "LAST", "COMMIT"] == head.split()
    assert ["new", "1", "0", "0", "B", "never"] == new.split()
    assert ["orders", "2", "3"] == orders.split()[:3]


@pytest.mark.parametrize("command", ["serve", "create", "load", "tail", "audit"])
def test_help_has_examples(run: Run, command: str) -> None:
    """I learn a command from its help."""
    assert f"zeh-spark {command} " in run(command, "--help").stdout.partition("Example")[2]
