"""What works on which Spark, found by running tests: `make matrix`.

`python -m tests.matrix` runs the tests below on the Spark of its Python; with names of modules,
only theirs. It keeps their outcomes in `tests/data/matrix.json`, and writes the table of
`docs/operate/where-it-runs.md` from all outcomes. `tests/docs/test_matrix.py` checks that both are
complete, have no failure, and fit the tests.

Rule for editors: a line names tests that use nothing but its part, and never one that is skipped
for another reason than that the part is not there. A part that the package refuses on a Spark has
a test of the refusal. After a change of LINES run `make matrix` again.
"""

from __future__ import annotations

import json
import platform
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests" / "acceptance"
OUTCOMES = ROOT / "tests" / "data" / "matrix.json"
PAGE = ROOT / "docs" / "operate" / "where-it-runs.md"
BEGIN, END = "<!-- written by `make matrix` -->", "<!-- end of what `make matrix` writes -->"
SPARKS = ("4.0", "4.1", "4.2", "4.3")


@dataclass(frozen=True)
class Line:
    """A part of the package, as a user calls it, in a session: `classic` or `Connect`.

    `tests` are like `module::test` of `tests/acceptance`, with `[parameter]` for one of its cases;
    `refusal` is the test that shows that the part is refused, on a Spark where these are skipped.
    """

    part: str
    session: str
    tests: tuple[str, ...]
    refusal: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return self.tests + ((self.refusal,) if self.refusal else ())


CONNECT = "test_connect::test_"
REFUSED = f"{CONNECT}ordered_sessions_are_refused_on_spark_4_0"
SOURCE, SINK = "source: batch and stream", "sink: batch and stream"
ORDERED, HANDLED = "sessions in order", "sessions with handlers"
APPEND, MERGE = "to Delta: append", "to Delta: merge"
LINES = (
    Line(SOURCE, "classic", (
        "test_queries::test_a_feed_is_read_by_its_address_alone",
        "test_queries::test_a_second_run_brings_only_what_is_new",
        "test_queries::test_an_idle_query_gets_new_events_by_itself",
        "test_exactly_once::test_each_event_arrives_once_when_the_driver_is_killed",
    )),
    Line(SOURCE, "Connect", (f"{CONNECT}a_feed_is_read_and_published",)),
    Line(SINK, "classic", (
        "test_publish_once::test_a_named_write_adds_its_rows_once",
        "test_publish_once::test_a_repeated_batch_adds_nothing_whatever_its_tasks",
    )),
    Line(SINK, "Connect", (f"{CONNECT}a_feed_is_read_and_published",)),
    Line(ORDERED, "classic", (
        "test_sessions::test_a_subscribers_flow_chart",
        "test_sessions::test_sessions_begin_where_they_are_told",
    )),
    Line(ORDERED, "Connect", (f"{CONNECT}sessions_come_in_order",), REFUSED),
    Line(HANDLED, "classic", ("test_sessions_process::test_every_arrow_of_the_chart",)),
    Line(HANDLED, "Connect", (
        f"{CONNECT}a_handler_is_called_for_each_event_of_a_session",
    ), REFUSED),
    Line("deduplication", "classic", (
        "test_dedup::test_each_number_passes_once_however_the_feed_is_read",
        "test_dedup_ids::test_each_id_passes_once_and_other_content_is_told",
    )),
    Line("deduplication", "Connect", (
        f"{CONNECT}each_number_passes_once",
    ), f"{CONNECT}deduplication_is_refused_on_spark_4_0"),
    Line(APPEND, "classic", ("test_delta_once::test_a_feed_is_in_the_table_once",)),
    Line(APPEND, "Connect", (f"{CONNECT}a_feed_is_in_a_table_once[append]",)),
    Line(MERGE, "classic", ("test_delta_merge::test_the_newest_event_of_each_key_is_shown",)),
    Line(MERGE, "Connect", (
        f"{CONNECT}a_feed_is_in_a_table_once[merge]",
        f"{CONNECT}a_version_of_an_app_is_merged_once",
    ), f"{CONNECT}merges_are_refused_on_spark_4_0"),
    Line("from Delta", "classic", ("test_from_delta::test_each_row_of_a_table_is_published_once",)),
    Line("from Delta", "Connect", (f"{CONNECT}a_table_is_a_feed",)),
    Line("SQL tables", "classic", (
        "test_sql::test_a_table_is_selected_from",
        "test_sql::test_a_table_is_read_as_a_stream",
        "test_sql::test_rows_are_inserted_where_the_statement_says",
        "test_sql::test_a_view_is_read_and_inserted_into",
        "test_sql::test_a_stream_is_published_through_a_table",
    )),
    Line("SQL tables", "Connect", (f"{CONNECT}a_feed_is_a_table_in_sql",)),
    Line("declarative pipelines", "Connect", (  # spark-pipelines uses a server of Spark Connect
        "test_pipelines::test_a_pipeline_publishes_each_row_once_also_after_a_full_refresh",
    )),
)  # fmt: skip


class Recorder:
    """A plugin of pytest: keeps the tests of LINES, and notes what became of them.

    `outcomes` has for each name of LINES `passed`, `failed` or `skipped: REASON`.
    """

    def __init__(self) -> None:
        self.outcomes: dict[str, str] = {}
        self._names = {name for line in LINES for name in line.names}

    def pytest_collection_modifyitems(self, config: Any, items: list[pytest.Item]) -> None:
        kept = [item for item in items if self._named(item.nodeid)]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept

    def pytest_collectreport(self, report: Any) -> None:
        """A module whose needs are not installed is skipped as a whole."""
        if report.skipped and report.nodeid.endswith(".py"):
            for name in self._names:
                if name.startswith(f"{Path(report.nodeid).stem}::"):
                    self._note(name, report)

    def pytest_runtest_logreport(self, report: Any) -> None:
        for name in self._named(report.nodeid):
            if report.when == "call" or not report.passed:
                self._note(name, report)
        if report.failed:  # now, not at the end: a run takes minutes
            print(f"\n{report.nodeid}\n{report.longreprtext}", flush=True)  # noqa: T201

    def _named(self, nodeid: str) -> list[str]:
        path, _, test = nodeid.partition("::")
        case = f"{Path(path).stem}::{test}"
        return [name for name in (case, case.partition("[")[0]) if name in self._names]

    def _note(self, name: str, report: Any) -> None:
        told = report.outcome
        if told == "skipped":
            told = f"skipped: {str(report.longrepr[2]).removeprefix('Skipped: ')}"
        before = self.outcomes.get(name, told)
        if before != told and "failed" not in (before, told):
            told = "failed"  # some of its cases are skipped: what the part can is not known
        self.outcomes[name] = "failed" if "failed" in (before, told) else told


def verdict(line: Line, outcomes: Mapping[str, str]) -> tuple[str, str]:
    """Return what a line's cell says, and the reason for what is not there.

    The cell is `passed`, `refused`, `not there`, or `failed`: a test failed, was not run, or only a
    part of them was skipped.
    """
    told = {outcomes.get(name, "failed") for name in line.tests}
    if told == {"passed"}:
        return "passed", ""
    if not all(each.startswith("skipped: ") for each in told):
        return "failed", ""
    if line.refusal and outcomes.get(line.refusal) == "passed":
        return "refused", ""
    return "not there", "; ".join(sorted(each.removeprefix("skipped: ") for each in told))


def table(runs: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the Markdown of all runs: what works, why some does not, and what was installed."""
    sparks = sorted(runs)
    reasons: list[str] = []
    rows = [("part", "session", *(f"Spark {each}" for each in sparks))]
    for line in LINES:
        cells = []
        for spark in sparks:
            cell, reason = verdict(line, runs[spark]["tests"])
            if reason and reason not in reasons:
                reasons.append(reason)
            cells.append(f"{cell} ({reasons.index(reason) + 1})" if reason else cell)
        rows.append((line.part, line.session, *cells))
    notes = "\n".join(f"{number}. {reason}" for number, reason in enumerate(reasons, 1))
    tools = [("Spark", "delta-spark", "Python", "Java")]
    tools += [tuple(runs[each][name] for name in RUN) for each in sparks]
    return "\n\n".join(filter(None, [_markdown(rows), notes, _markdown(tools)]))


RUN = ("spark", "delta", "python", "java")


def _markdown(rows: list[tuple[str, ...]]) -> str:
    head, *others = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([head, "|" + "---|" * len(rows[0]), *others])


def written(page: str, runs: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the page with the table between its marks. Raises ValueError if it lacks one."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE.name} lacks {BEGIN} or {END}. Put both lines into it")
    return f"{before}{begin}\n\n{table(runs)}\n\n{end}{after}"


def stored() -> dict[str, dict[str, Any]]:
    return json.loads(OUTCOMES.read_text(encoding="utf-8")) if OUTCOMES.exists() else {}


def _installed() -> dict[str, str]:
    from tests.conftest import _java

    try:
        delta = metadata.version("delta-spark")
    except metadata.PackageNotFoundError:
        delta = "none"
    java = _java().removeprefix("java ")
    return dict(
        zip(RUN, (metadata.version("pyspark"), delta, platform.python_version(), java), strict=True)
    )


def main(modules: list[str]) -> int:
    """Run the tests on this Spark, and keep what came of them.

    If modules are named, like `test_sql`, the others keep what they gave with the same versions.
    """
    everything = sorted({name.partition("::")[0] for line in LINES for name in line.names})
    recorder, installed = Recorder(), _installed()
    files = [str(TESTS / f"{each}.py") for each in modules or everything]
    pytest.main([*files, "-p", "no:randomly", "-W", "default"], plugins=[recorder])
    spark = re.match(r"\d+\.\d+", installed["spark"])[0]  # type: ignore[index]
    runs = stored()
    before = runs.get(spark, {})
    kept = before.get("tests", {}) if installed.items() <= before.items() else {}
    outcomes = {**(kept if modules else {}), **recorder.outcomes}
    runs[spark] = {**installed, "tests": outcomes}
    names = {name for line in LINES for name in line.names}
    for run in runs.values():  # what LINES names no more goes
        run["tests"] = {name: told for name, told in run["tests"].items() if name in names}
    OUTCOMES.write_text(json.dumps(runs, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), runs), encoding="utf-8")
    bad = [line for line in LINES if verdict(line, outcomes)[0] == "failed"]
    for line in bad:
        told = {name: outcomes.get(name, "not run") for name in line.names}
        print(f"Spark {spark}: {line.part}, {line.session}: {told}")  # noqa: T201
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
