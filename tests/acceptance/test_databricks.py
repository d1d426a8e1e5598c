"""The notebooks as they run on Databricks, in an emulation of what they use of it, and the bundle.

The emulation has Databricks' environment variables, its `dbutils`, and a session that is there
before the notebook. `docs/operate/databricks.md` says what this proves and what it does not.
"""

from __future__ import annotations

import json
import re
import time

import pytest

from notebooks import run as notebooks
from tests.fix_databricks import ROOT
from tests.fix_lake import why_absent
from tests.patience import eventually
from tests.unit.test_notebooks import code, kept, texts

LAPTOP_ONLY = "laptop_because="
"""The argument by which a notebook says why it does not run there. It fails in its first cell: see
`tests/integration/test_notebook_publisher.py`.
"""
NAMES = [
    path.stem for path in notebooks.NOTEBOOKS if LAPTOP_ONLY not in code(kept(path.stem))[0].source
]
WITH_EVERYTHING = "03_feed_to_lakehouse"
"""It reads, publishes and uses Delta. `test_notebooks` runs the others as they are, on a laptop."""

LEFT_OUT = {"05_when_things_go_wrong": ("22,000", "12,000")}
"""What a notebook leaves out there: accidents of the publisher, which belongs to somebody else."""

pytestmark = [pytest.mark.slow, pytest.mark.spark]


@pytest.mark.parametrize(
    "name",
    [
        name if name == WITH_EVERYTHING else pytest.param(name, marks=pytest.mark.campaign)
        for name in NAMES
    ],
)
def test_a_notebook_runs_as_on_databricks_and_shows_no_secret(name, databricks):
    """I fill in the widgets, and it runs to its end: the feed's address, a schema with its catalog,
    a volume and a secret scope are all that it needs. It says at its end what it says on a laptop,
    less what it leaves out. The token is nowhere to be seen.
    """
    if absent := why_absent():
        pytest.skip(absent)

    done = databricks.notebook(name)

    on_a_laptop = texts(code(kept(name))[-1])
    assert texts(code(done)[-1]) == on_a_laptop.replace(*LEFT_OUT.get(name, ("", "")))
    assert [cell.id for cell in code(done) if databricks.token in texts(cell)] == []
    assert databricks.files_with_the_token() == []
    assert list(databricks.volume.iterdir())


@pytest.mark.campaign
def test_the_bundles_job_is_watched(databricks_job, run, spark, tmp_path):
    """As `docs/operate/databricks.md` tells it. With nothing on the feed all is well. Events that
    do not fit are in the table, rows that cannot be published are dead letters, and the run fails
    with the number of both. Both are repaired; then a run fails only if events waited for too long.
    """
    if absent := why_absent():
        pytest.skip(absent)
    base, operator = databricks_job.publisher, databricks_job.operator
    table = "spark_catalog.default.flights"
    rows = f"delta.`{databricks_job.folder}/work/spark-warehouse/flights`"

    def load(**delays: object) -> None:
        file = tmp_path / "flights.ndjson"
        flights = [{"carrier": each, "dep_delay": delay} for each, delay in delays.items()]
        file.write_text("".join(f"{json.dumps(each)}\n" for each in flights))
        assert run("load", "flights", str(file), "--key", "carrier").returncode == 0

    def job(seconds: float = 7200) -> tuple[int, str]:
        done = databricks_job.job(table=table, max_seconds_behind=seconds)
        assert databricks_job.token not in done.stdout
        return done.returncode, done.stdout.strip().rpartition("\n")[2]

    def published() -> list[str]:
        done = run("tail", f"{base}/delays", "--from", "first", "--no-follow", ZEH_TOKEN=operator)
        return sorted(json.loads(line)["carrier"] for line in done.stdout.splitlines())

    assert (said := job())[0] == 0, said
    load(UA=5, DL=-1, AA="NaN", B6="late")
    code, said = job()
    assert code == 1
    assert f"events in {table} that do not fit its columns (`bad`): 1" in said
    assert f"rows that became dead letters in {base}/delays-dead: 1" in said
    assert "had waited" not in said
    assert published() == ["UA"]

    letter = json.loads(run("dead-letters", f"{base}/delays-dead", ZEH_TOKEN=operator).stdout)
    row = letter["data"]["row"]
    row["data"] = json.loads(row.pop("unfit").replace("NaN", "null"))
    repaired = json.dumps(letter)
    done = run("replay-dead", f"{base}/delays", stdin=repaired, ZEH_TOKEN=operator)
    assert done.returncode == 0, done.stderr
    repair = "SET carrier = get_json_object(bad, '$.carrier'), bad = NULL WHERE bad IS NOT NULL"
    spark.sql(f"UPDATE {rows} {repair}")
    load(WN=7)
    loaded = time.monotonic()
    eventually(lambda: time.monotonic() > loaded + 1)
    code, said = job(seconds=1)
    assert (code, "look at this: an event had waited for " in said) == (1, True), said
    assert (said := job())[0] == 0, said

    assert published() == ["AA", "UA", "WN"]
    kept = spark.sql(f"SELECT carrier FROM {rows}").collect()
    assert sorted(str(row.carrier) for row in kept) == ["AA", "B6", "DL", "UA", "WN"]
    assert databricks_job.files_with_the_token() == []


@pytest.mark.campaign
def test_dead_letters_of_a_run_that_failed_are_told_by_the_next(databricks_job, run, tmp_path):
    """It published them, and did not come to look: the publisher was away, or the driver died."""
    if absent := why_absent():
        pytest.skip(absent)
    job = ROOT / "conf" / "databricks_job.py"
    fails = tmp_path / "fails.py"
    fails.write_text(
        f"import runpy\n"
        f"job = runpy.run_path({str(job)!r})\n"
        f"job['Job'].misfits = lambda _: 1 / 0\n"
        f"job['main']()\n"
    )
    file = tmp_path / "flights.ndjson"
    file.write_text('{"carrier": "AA", "dep_delay": "NaN"}\n')
    assert run("load", "flights", str(file), "--key", "carrier").returncode == 0
    table = "spark_catalog.default.flights"

    first = databricks_job.job(fails, table=table).stdout
    second, third = (databricks_job.job(table=table) for _ in range(2))

    assert "ZeroDivisionError" in first
    assert f"dead letters in {databricks_job.publisher}/delays-dead: 1" in second.stdout
    assert (1, 0) == (second.returncode, third.returncode), third.stdout


def test_the_plain_notebook_fills_a_table(databricks, run, tmp_path):
    """I import the file, and change its four values; `%pip` is all that is not run here. A second
    run adds what is new, once.
    """
    if absent := why_absent():
        pytest.skip(absent)
    text = (ROOT / "conf" / "databricks_notebook.py").read_text(encoding="utf-8")
    assert text.startswith("# Databricks notebook source\n")
    values = {
        "https://feeds.example": databricks.publisher,
        "main.default.": "spark_catalog.default.",
        "/Volumes/main/default/feeds": str(databricks.volume),
    }
    for value, here in values.items():
        assert value in text
        text = text.replace(value, here)
    program = tmp_path / "notebook.py"
    program.write_text(text)

    def filled(*carriers: str) -> str:
        flights = [{"carrier": each, "dep_delay": 1, "origin": "EWR"} for each in carriers]
        file = tmp_path / "flights.ndjson"
        file.write_text("".join(f"{json.dumps(each)}\n" for each in flights))
        assert run("load", "flights", str(file), "--key", "carrier").returncode == 0
        done = databricks.run(program)
        assert done.returncode == 0, done.stdout[-4000:]
        assert databricks.token not in done.stdout
        return done.stdout[done.stdout.rindex("|carrier|") :]

    assert sorted(re.findall(r"\b(?:UA|DL|AA)\b", filled("UA", "DL"))) == ["DL", "UA"]
    assert sorted(re.findall(r"\b(?:UA|DL|AA)\b", filled("AA"))) == ["AA", "DL", "UA"]
    assert databricks.files_with_the_token() == []
