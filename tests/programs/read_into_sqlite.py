"""A program that reads a feed into a database of its own, without Spark. Not a test.

Usage: read_into_sqlite.py FILE URL. Events and cursors are in one transaction. It prints a line
whenever it is at another place, to be killed there.
"""

import sqlite3
import sys

from zeh_spark.reading import reader


def main(file: str, url: str) -> None:
    database = sqlite3.connect(file)
    kept = database.execute("SELECT cursors FROM feeds").fetchone()
    for page, cursors in reader(url, kept and kept[0], page_size_hint=7):
        with database:
            for event in page.to_pylist():
                database.execute("INSERT INTO events VALUES (?)", [event["data"]])
            told("events")
            database.execute("DELETE FROM feeds")
            database.execute("INSERT INTO feeds VALUES (?)", [cursors])
            told("cursors")
        told("committed")
    told("end")


def told(place: str) -> None:
    sys.stdout.write(f"{place}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
