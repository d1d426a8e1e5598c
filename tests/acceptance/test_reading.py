"""A service reads a feed without Spark, into its own database."""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.patience import PATIENCE
from zeh_spark.reading import reader

PROGRAM = Path(__file__).parents[1] / "programs" / "read_into_sqlite.py"
EVENTS = 300
KILLS = 12


def run(file: Path, url: str, kill_after: int | None) -> bool:
    """Run the program, and kill it after so many lines; returns whether it came to its end."""
    command = [sys.executable, str(PROGRAM), str(file), url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout
        for number, line in enumerate(program.stdout, 1):
            if line == "end\n":
                return program.wait(PATIENCE) == 0
            if number == kill_after:
                program.kill()
                assert program.wait(PATIENCE) == -signal.SIGKILL
                return False
    raise AssertionError("it ended before its end")


@pytest.mark.kill
@pytest.mark.slow
def test_each_event_is_kept_once_whenever_the_program_is_killed(publisher, tmp_path):
    """Events and cursors are in one transaction of mine, so a crash neither loses nor doubles."""
    places = random.Random(7)
    file = tmp_path / "service.db"
    with closing(sqlite3.connect(file)) as database:
        database.execute("CREATE TABLE events (data TEXT)")
        database.execute("CREATE TABLE feeds (cursors TEXT)")
        for number in range(KILLS):
            begin = number * EVENTS // KILLS
            for event in range(begin, begin + EVENTS // KILLS):
                publisher.publish(event)
            run(file, publisher.url, places.randint(1, 9))
        assert run(file, publisher.url, None)
        kept = [int(data) for (data,) in database.execute("SELECT data FROM events")]

    assert list(range(EVENTS)) == sorted(kept)


def test_a_program_gets_the_rows_of_spark(publisher, spark):
    """I may move from one to the other: the columns and all values are the same."""
    publisher.publish({"order": 17}, "text", 1.5)
    frame = spark.read.format("zeroeventhub").load(publisher.url)
    rows = [event for page, _ in reader(publisher.url) for event in page.to_pylist()]

    assert frame.columns == [*rows[0]]
    expected = [row.asDict() for row in frame.collect()]
    assert expected == [{**row, "headers": dict(row["headers"])} for row in rows]
