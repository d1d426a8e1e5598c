"""What keeps a store in order: `retention`, `prune`, `backup`, `audit`."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.fix_cli import Run, published
from tests.fix_upgrades import BEFORE
from tests.store_contract.writers import chunk, data, publish
from zeh_spark.publisher import open_store
from zeh_spark.service.app.server import only_publisher
from zeh_spark.service.reads.feed import ChunkFeed
from zeh_spark.service.sql.schema import VERSION
from zeh_spark.service.store.clock import DAY_MS
from zeh_spark.service.store.interface import now_ms


def test_old_events_go_as_they_were_told_to(run: Run, store_url: str) -> None:
    """I see what would go before it goes."""
    run("create", "orders", "--partitions", "1")
    for each in ("1", "2"):
        run("load", "orders", "-", stdin=each)
    size = 2 * len('{"partition":0,"headers":{},"data":1}\n')
    assert "Feed 'orders' keeps all events.\n" == run("retention", "orders").stdout
    said = run("retention", "orders", "--size", str(size - 1), "--age", "30d")
    assert "keeps what is younger than 30 days, of that the newest 75 B.\n" in said.stdout
    would = run("prune", "orders").stdout
    assert re.search(
        r"Would be removed: 1 event, 38 B, up to position 1, of \d{4}-.* UTC\.\n", would
    )
    assert "Nothing would be removed.\n" in run("prune", "orders", "--age", "1h").stdout
    more = run("retention", "orders", "--age", "60d", "--keep-for", "mailer").stdout
    assert "60 days, of that the newest 75 B, and what 'mailer' has not read yet.\n" in more
    held = run("prune", "orders", "--size", "1", "--now").stdout
    said = "The rest waits for reader 'mailer', which has stored no position here yet.\n"
    assert f"Nothing was removed.\n{said}" in held
    assert "keeps all events" in run("retention", "orders", "--off").stdout
    for words in (["--age", "30"], ["--age", "0s"], ["--size", "0"]):
        assert 2 == run("retention", "orders", *words).returncode
    run("retention", "orders", "--size", str(size - 1))
    assert "Removed: 1 event" in run("prune", "orders", "--now").stdout
    with published(store_url) as base:
        left = run("tail", f"{base}/orders", "--from", "first", "--no-follow").stdout
    assert "2\n" == left
    assert "keeps all events" in run("retention", "orders", "--off").stdout


def test_names_of_batches_are_compared_as_long_as_they_were_told_to(run: Run) -> None:
    """90 days unless I say otherwise; no other setting changes it."""
    run("create", "orders", "--partitions", "1")
    said = run("retention", "orders", "--names", "7d").stdout
    assert "keeps all events, and the receipts of batches with names for 7 days.\n" in said
    assert "for 7 days.\n" in run("retention", "orders", "--age", "30d").stdout
    assert "all events, and the receipts" in run("retention", "orders", "--off").stdout
    assert "for ever.\n" in run("retention", "orders", "--names", "forever").stdout
    assert "keeps all events.\n" in run("retention", "orders", "--names", "90d").stdout
    assert 2 == run("retention", "orders", "--names", "never").returncode
    said = run("retention", "orders", "--producers", "180d").stdout
    assert "keeps all events, and producers that have published within 180 days.\n" in said
    assert said in run("retention", "orders", "--names", "90d").stdout
    assert "keeps all events.\n" in run("retention", "orders", "--producers", "forever").stdout


def test_name_of_a_reader_that_has_ended_is_freed(run: Run, store_url: str) -> None:
    """I see whose the names are, and delete one."""
    run("create", "orders", "--partitions", "2")
    assert "Feed 'orders' keeps no positions of readers.\n" == run("cursor-sets", "orders").stdout
    with closing(open_store(store_url)) as store:
        store.save_cursors("orders", "warehouse", 2, {0: "a"}, "spark:5f0c")
        store.save_cursors("orders", "anyone", 4, {3: "b"})
    assert [
        "NAME       CONSUMER    N  PARTITIONS KEPT",
        "anyone     -           4  1 of 4",
        "warehouse  spark:5f0c  2  1 of 2",
    ] == run("cursor-sets", "orders").stdout.splitlines()
    said = run("cursor-sets", "orders", "--delete", "warehouse").stdout
    assert "Cursor set 'warehouse' of feed 'orders' is deleted.\n" == said
    again = run("cursor-sets", "orders", "--delete", "warehouse")
    assert (1, True) == (again.returncode, "keeps nothing under" in again.stderr)


def test_backup_is_a_store_as_of_then(run: Run, store_url: str, tmp_path: Path) -> None:
    """Made while it is served; it overwrites nothing."""
    run("create", "orders", "--partitions", "1")
    copy = tmp_path / "copy.db"
    with published(store_url):
        run("load", "orders", "-", stdin="1")
        said = run("backup", str(copy)).stdout
        run("load", "orders", "-", stdin="2")
    again = run("backup", str(copy))
    with closing(open_store(f"sqlite:///{copy}")) as store:
        assert 1 == store.feed("orders").head
    assert re.search(r"copy\.db is a copy of sqlite:///.*, .* KiB\.\n", said)
    assert (1, True) == (again.returncode, "exists already" in again.stderr)
    assert [] == [*tmp_path.glob("*.part")]


def test_a_clock_that_is_far_ahead_removes_nothing(
    run: Run, store_url: str, tmp_path: Path
) -> None:
    """I see how far it is, and say that it is right."""
    run("create", "orders", "--partitions", "1")
    run("load", "orders", "-", stdin="1")
    said = run("clock").stdout.splitlines()
    assert 2 == len(said), said  # it is this machine's, and is believed
    month_ago = now_ms() - 31 * DAY_MS
    with closing(sqlite3.connect(tmp_path / "feeds.db")) as database, database:
        database.execute("UPDATE recent_chunks SET time = time - 60000")
    with closing(open_store(store_url)) as store:
        store.see_clock(month_ago)
    assert "The clock is not trusted, so nothing is removed by age." in run("clock").stdout
    refused = run("prune", "orders", "--age", "1s", "--now")
    assert (1, True) == (refused.returncode, "31.0 days after the last time" in refused.stderr)
    assert "Removed: 1 event" in run("prune", "orders", "--age", "1s", "--now", "--yes").stdout
    assert "The clock is not trusted" in run("clock").stdout  # that was for one feed
    assert "The clock is accepted.\n" in run("clock", "--accept").stdout
    assert "not trusted" not in run("clock").stdout


def events(store_url: str) -> list[bytes]:
    """Return all lines of the feed `orders`, in order."""
    with closing(open_store(store_url)) as store:
        blocks = [*ChunkFeed(store, "orders").page({0: "_first"}, 1, 10_000)]
    return [line for block in blocks for line in block.lines.splitlines()]


def old_events(run: Run, folder: Path) -> None:
    """Make a feed of 1,024 partitions, with 2,048 chunks that are old enough to be packed."""
    run("create", "orders", "--partitions", "1024")
    lines = "".join(f'{{"key": "{each}", "data": {each}}}\n' for each in range(3000))
    for producer in ("first", "second"):
        run("load", "orders", "-", "--envelope", "--producer", producer, stdin=lines)
    assert "nothing to pack" in run("seal", "orders").stdout
    with closing(sqlite3.connect(folder / "feeds.db")) as database, database:
        database.execute("UPDATE recent_chunks SET time = time - 700000")


def test_old_chunks_are_packed_and_read_as_before(run: Run, store_url: str, tmp_path: Path) -> None:
    """Small batches take less room after `zeh-spark seal`."""
    old_events(run, tmp_path)
    before = events(store_url)
    assert 6000 == len(before)
    assert "packed 1,024 chunks into 1 pack" in run("seal", "orders").stdout
    assert before == events(store_url)


def test_backups_are_of_what_is_packed_too(run: Run, store_url: str, tmp_path: Path) -> None:
    """Whether a backup was made before `zeh-spark seal` or after it: restored, it has each event,
    the rest can be packed, and a smaller file is what packing brings.
    """
    old_events(run, tmp_path)
    before = events(store_url)
    run("backup", "rows.db")
    run("seal", "orders")
    run("backup", "packed.db")
    run("load", "orders", "-", "--producer", "third", stdin="1\n2\n")
    for copy, more in (
        ("rows.db", "packed 1,024 chunks into 1 pack"),
        ("packed.db", "nothing to pack"),
    ):
        done = run("restore", copy, "--yes")
        assert (0, True) == (done.returncode, "have zeh-feed" in done.stdout), done.stderr
        assert before == events(store_url)
        assert more in run("seal", "orders").stdout
        assert before == events(store_url)
        run("load", "orders", "-", "--producer", "third", stdin="1\n")
        assert 6001 == len(events(store_url))
    rows, packed = ((tmp_path / name).stat().st_size for name in ("rows.db", "packed.db"))
    assert packed < 0.9 * rows


def test_old_events_move_to_a_folder_and_are_read_as_before(
    run: Run, store_url: str, tmp_path: Path
) -> None:
    """I move them, lose an object, put it back, restore a backup, and adopt the folder."""
    run("create", "orders", "--partitions", "1")
    with closing(open_store(store_url)) as store:
        for each in range(1025):
            publish(store, chunk(0, b"%d" % each), feed="orders")
        assert 1024 == store.seal("orders", 1 << 62)
        before = [each.lines for each in ChunkFeed(store, "orders").page({0: "_first"}, 1, 2_000)]
    cold = str(tmp_path / "cold")
    assert "nothing to move" in run("offload", "orders", "--segments", cold).stdout
    with closing(sqlite3.connect(tmp_path / "feeds.db")) as database:
        rows = database.execute("SELECT count(*) FROM blobs").fetchone()
    done = run("offload", "orders", "--older-than", "1ms", "--segments", cold)
    assert "moved, in 1 segment." in done.stdout, done.stderr

    with closing(sqlite3.connect(tmp_path / "feeds.db")) as database:
        assert rows[0] > 1 == database.execute("SELECT count(*) FROM blobs").fetchone()[0]
    with closing(open_store(store_url)) as store:
        read = [each.lines for each in ChunkFeed(store, "orders").page({0: "_first"}, 1, 2_000)]
    assert before == read
    assert run("segments", "check", "--read").stdout.startswith("1 segment, ")

    run("backup", "copy.db")
    (segment,) = Path(cold).glob("*/*.segment")
    segment.rename(tmp_path / "away")
    looked = run("segments", "check")
    assert (3, True) == (looked.returncode, f"no object {segment}" in looked.stdout)
    restored = run("restore", "copy.db", "--yes")
    assert (3, True) == (
        restored.returncode,
        f"Lost: there is no object {segment}" in restored.stderr,
    )
    assert "until zeh-spark segments adopt" in restored.stderr
    (tmp_path / "away").rename(segment)
    Path(cold, "others.segment").write_text("x")
    assert "Not known: " in run("segments", "check", "--segments", cold).stdout
    assert "belongs to" in run("segments", "adopt", "--yes").stdout

    segment.rename(tmp_path / "away")
    empty = run("segments", "adopt", "--yes")
    assert (1, True) == (empty.returncode, "a folder may not be mounted" in empty.stderr)
    marker = Path(cold, "owner.json")
    mine = marker.read_text()
    marker.write_text('{"owner": "another one", "nonce": "1"}')
    refused = run("segments", "check", "--trim")
    assert (1, True) == (refused.returncode, "Nothing was removed" in refused.stderr)
    marker.write_text(mine)

    def mount_another(*_: object, **__: object) -> bool:
        marker.write_text('{"owner": "another one", "nonce": "1"}')
        return True

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("click.confirm", mount_another)
        refused = run("segments", "check", "--trim")
    assert (1, True) == (refused.returncode, "Nothing was removed" in refused.stderr)
    marker.write_text(mine)

    trimmed = run("segments", "check", "--trim", stdin="y\n")
    assert "Removed: all events of feed 'orders' up to position 1024" in trimmed.stdout
    with closing(open_store(store_url)) as store:
        assert [b"1024"] == data(store)


@pytest.mark.usefixtures("invented")
def test_only_migrate_and_restore_upgrade_a_store(run: Run, tmp_path: Path) -> None:
    """A look leaves an older store alone; the upgrade waits until nobody serves it. A backup of an
    older store is upgraded when it is restored; the copy itself stays as it was.
    """
    run("create", "orders", "--partitions", "1")
    run("load", "orders", "-", stdin="1\n2")
    run("backup", "copy.db")
    for name in ("feeds.db", "copy.db"):
        with closing(sqlite3.connect(tmp_path / name)) as database:
            database.execute(f"PRAGMA user_version = {BEFORE}")
    looked = run("feeds")
    assert (1, True) == (looked.returncode, "upgrade it with zeh-spark migrate" in looked.stderr)
    would = run("migrate", "--dry-run").stdout
    assert f"would be upgraded from version {BEFORE} to {VERSION}.\n" in would
    assert "  ALTER TABLE feeds ADD COLUMN colour" in would
    with only_publisher(f"sqlite:///{tmp_path / 'feeds.db'}"):
        served = run("migrate")
    assert (1, True) == (served.returncode, "served by another process" in served.stderr)
    assert f"was upgraded from version {BEFORE} to {VERSION}.\n" in run("migrate").stdout
    assert f"is of version {VERSION} already: nothing to do.\n" in run("migrate").stdout
    assert re.search(r"orders +1 +2 ", run("feeds").stdout)

    run("load", "orders", "-", "--producer", "more", stdin="3")
    assert 0 == run("restore", "copy.db", "--yes").returncode
    assert re.search(r"orders +1 +2 ", run("feeds").stdout)
    with closing(sqlite3.connect(tmp_path / "copy.db")) as database:
        assert (BEFORE,) == database.execute("PRAGMA user_version").fetchone()


def test_audit_says_how_much_it_compared_or_what_differs(
    run: Run, store_url: str, tmp_path: Path
) -> None:
    """Two sentences and two exit codes, for people and for scripts."""
    run("create", "orders", "--partitions", "1")
    run("load", "orders", "-", stdin="1\n2\n3\n")
    with published(store_url) as base:
        good = run("audit", f"{base}/orders")
        database = sqlite3.connect(tmp_path / "feeds.db", isolation_level=None)
        database.execute("UPDATE recent_chunks SET sequence = 5")
        database.close()
        bad = run("audit", f"{base}/orders", "--producer", "load")
        unknown = run("audit", f"{base}/orders", "--producer", "lo")
    expected = "1 batch of 1 producer, 3 events, positions 1 to 1.\n"
    assert (0, f"Every batch once, unaltered: {expected}", "") == (
        good.returncode, good.stdout, good.stderr,
    )  # fmt: skip
    expected = "position 1, batch 0 of producer 'load': sequence number in partition 0: expected 0"
    assert (3, "", f"Error: {base}/orders is not as published:\n{expected}, found 5\n") == (
        bad.returncode, bad.stdout, bad.stderr,
    )  # fmt: skip
    assert (1, True) == (unknown.returncode, "'lo' has never published" in unknown.stderr)
