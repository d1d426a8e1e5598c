"""The tables of the docs say what the code does."""

import inspect
import re
from pathlib import Path

import msgspec

from docs.generate import PARTS, generated
from tests.cases import each_case
from tests.release import sbom
from tests.unit.test_databricks_pins import LISTS, needs, pins
from tests.unit.test_errors import TREE
from zeh_spark.service.app.config import FeedConfig
from zeh_spark.service.sql.schema import VERSION as STORE_VERSION
from zeh_spark.spark.delta import commits
from zeh_spark.spark.sessions import state as sessions_state
from zeh_spark.spark.sessions.model import REASONS, RECORDS
from zeh_spark.spark.sessions.ordering import in_order
from zeh_spark.spark.source import offsets
from zeh_spark.spark.stateful import dedup_state, seen_ids
from zeh_spark.tools.audit.findings import Difference, Tally
from zeh_spark.tools.cli.main import COMMANDS
from zeh_spark.wire.option_values import HEADER_PREFIX, SECRET_HEADER_PREFIX
from zeh_spark.wire.problems import PROBLEMS
from zeh_spark.wire.upload_format import DIGEST_VERSION, LINE_BYTES
from zeh_spark.wire.wire import MAX_LINE

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
LINK = re.compile(r"\[([^\]]+)\]\(#([^)]+)\)")


def text_of(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def tables(page: str, first_cell: str) -> list[list[list[str]]]:
    """Return the rows of each table of a page whose header begins with `first_cell`."""
    form = rf"(?m)^\| {re.escape(first_cell)} \|.*\n.*\n((?:\|.*\n)*)"
    return [
        [[cell.strip() for cell in line.strip("|").split(" |")] for line in table.splitlines()]
        for table in re.findall(form, text_of(page))
    ]


def rows(page: str, first_cell: str) -> list[list[str]]:
    """Return the rows of the only table whose header begins with `first_cell`."""
    (table,) = tables(page, first_cell)
    return table


@each_case("page", PARTS)
def test_generated_parts_are_those_of_the_code(page):
    """What the reference says about options and commands is what the code declares."""
    text = (ROOT / page).read_text(encoding="utf-8")

    assert generated(page, text) == text, "stale: run python docs/generate.py"


def test_the_table_of_tasks_leads_to_every_command():
    """I find a command by what I want to do, and the sections that the table names are there."""
    text = text_of("reference/command-line.md")
    table = rows("reference/command-line.md", "task")
    named = {each for row in table for each in LINK.findall(row[1])}
    sections = set(re.findall(r"^## ([a-z][a-z -]+)$", text, re.MULTILINE))

    assert {name.partition(" ")[0] for name, _ in named} == set(COMMANDS)
    assert [] == [name for name, link in named if link != name.replace(" ", "-")]
    assert {name for name, _ in named} <= sections


def test_every_promise_names_a_test_that_exists():
    """A promise without a test is none (EX-10)."""
    files = [*ROOT.glob("tests/**/test_*.py"), *ROOT.glob("tests/store_contract/*.py")]
    tests = "\n".join(path.read_text(encoding="utf-8") for path in files)
    promises = [row for table in tables("explanation/guarantees.md", "promise") for row in table]
    named = [re.findall(r"`(test_\w+)`", row[1]) for row in promises]

    missing = [name for names in named for name in names if f"def {name}(" not in tests]

    assert len(promises) >= 16
    assert all(named)
    assert missing == []


@each_case("page", ["explanation/limits.md", "reference/json-types.md", "reference/publish-api.md"])
def test_the_longest_line_is_the_one_that_writers_hold_to(page):
    text = text_of(page)
    stated = re.findall(r"(6[0-9],[0-9]{3}) bytes", text)

    assert {f"{LINE_BYTES:,}"} == set(stated) - {f"{MAX_LINE:,}"}


def test_files_of_the_repository_that_pages_name_exist():
    """I can read on in the code."""
    pages = [*DOCS.rglob("*.md"), *(ROOT / ".github").glob("*.md")]
    named = r"\b(?:zeh_spark|tests|notebooks|benchmarks|conf)/[\w./-]*\w"
    paths = {path for page in pages for path in re.findall(named, page.read_text("utf-8"))}

    assert len(paths) > 20
    assert [] == sorted(path for path in paths if not (ROOT / path).exists())


def test_every_refusal_of_a_batch_is_explained():
    """What an error names can be looked up; only what concerns writers of clients is left out."""
    table = rows("operate/errors.md", "refusal")
    told = {name for row in table for name in re.findall(r"`([\w-]+)`", row[0])}

    decided = {name for name, known in PROBLEMS.items() if "incarnation" in known.members}

    assert decided - {"upload-conflict", "unknown-batch"} == told


def test_every_problem_of_the_publisher_has_a_heading():
    """What a publisher answers can be looked up; bad requests (400) are explained together."""
    text = text_of("operate/errors.md")
    headings = " ".join(re.findall(r"^### (.+)$", text, re.MULTILINE))
    named = set(re.findall(r"[a-z-]+", headings))

    problems = {name for name, known in PROBLEMS.items() if known.status not in {400, 405}}

    assert problems - named == set()


def test_an_audit_speaks_as_the_example_does():
    text = text_of("operate/audit.md")
    tally = Tally(producers=3, batches=1234, events=5_678_901, first=1, last=9876)
    wrong = Difference(17, "sequence number in partition 0", 1000, 2000, "orders-job", 3)

    assert f"\n{tally}\n" in text
    assert f" is not as published:\n{wrong}\n" in text


@each_case(
    ("page", "first_cell", "expected"),
    [
        # the options whose names a user completes
        ("reference/source-options.md", "header option",
         [(f"{prefix}<Name>",) for prefix in (HEADER_PREFIX, SECRET_HEADER_PREFIX)]),
    ],
)  # fmt: skip
def test_rows_are_those_of_the_code(page, first_cell, expected):
    columns = len(expected[0])
    found = [(row[0].strip("`"), *row[1:columns]) for row in rows(page, first_cell)]

    assert expected == found


def test_versions_on_databricks_are_those_of_its_lists():
    """I see what pip leaves alone on a runtime, and in the serverless environment beside it."""
    lists = {path.stem: pins(path) for path in LISTS}
    columns = [
        ("runtime-17.3", "serverless-4"),
        ("runtime-18.0", "runtime-18.1", "runtime-18.2", "serverless-5"),
        ("runtime-19", "serverless-6"),
    ]
    libraries = sorted(each.name for each in needs("REQUIRES", "SESSIONS"))
    expected = [
        [name, *(" or ".join(sorted({lists[each].get(name, "none") for each in column}))
                 for column in columns)]
        for name in libraries
    ]  # fmt: skip

    found = [row[:4] for row in rows("operate/databricks.md", "library")]

    assert [row for row in expected if {*row[1:]} != {"none"}] == found


def test_reasons_of_dead_letters_are_those_of_the_code():
    """Each reason that a session gives can be looked up; records say that they are none."""
    table = {row[0].strip("`"): row[1] for row in rows("guides/order-sessions.md", "reason")}

    assert list(REASONS) == list(table)
    assert set(RECORDS) == {name for name, text in table.items() if "record" in text}


def test_session_options_are_those_of_the_code():
    """Each argument of in_order is in the table, with its default."""
    options = rows("guides/order-sessions.md", "session option")
    table = {name: row[1] for row in options for name in re.findall(r"`(\w+)`", row[0])}
    in_code = dict(list(inspect.signature(in_order).parameters.items())[1:])

    assert in_code.keys() == table.keys()
    for name in ("gap_timeout", "on_gap", "delay", "keep_closed", "first", "buckets", "metrics"):
        assert str(in_code[name].default) == table[name].strip("`")


def test_settings_of_a_table_are_those_of_the_code():
    """Each key of a section [feeds.NAME] is in the guide, with its default."""
    table = {row[0].strip("`"): row[1] for row in rows("guides/outbox.md", "key of `[feeds.NAME]`")}
    fields = msgspec.structs.fields(FeedConfig)
    needed = [each.name for each in fields if each.required]
    by_other_keys = {"strict_cursors"}
    stated = {
        name: None if cell == "none" else msgspec.toml.decode(f"value = {cell.strip('`')}")["value"]
        for name, cell in table.items()
        if name not in {*needed, *by_other_keys}
    }

    assert [each.name for each in fields] == list(table)
    assert {"needed"} == {table[name] for name in needed}
    assert stated == {
        name: value
        for name, value in msgspec.structs.asdict(FeedConfig(url="", table="")).items()
        if name in stated
    }


def test_the_page_of_errors_has_the_code_of_each_type():
    told = {row[0].strip("`"): row[1].strip("`") for row in rows("operate/errors.md", "type")}

    assert {each.__name__: each("?").code for each in TREE} == told


def test_the_guide_of_pipelines_shows_the_example_that_is_tested():
    """What I copy from the page is what `tests/acceptance/test_pipelines.py` runs."""
    file = ROOT / "notebooks" / "pipeline" / "transformations" / "flights.py"
    _, _, code = file.read_text(encoding="utf-8").partition('"""\n\n')

    assert f"```python\n{code}```" in text_of("guides/pipelines.md")


def test_the_table_of_licences_is_of_what_is_required():
    """Each library that pip brings is there, as setup.py requires it, with a licence that fits."""
    (table,) = [rows for rows in tables("explanation/libraries.md", "library") if len(rows[0]) == 4]
    licences = {sbom.normal(row[0].partition("[")[0]): row[3] for row in table}
    text = text_of("explanation/libraries.md")

    assert f"\n{sbom.table(licences)}\n" in text, "stale: run make dist sbom"
    for name, each in licences.items():
        component = {"name": name, "version": "", "licenses": [{"expression": each}]}
        assert each == sbom.licence(component)


def test_the_log_settings_in_the_docs_are_those_of_the_file() -> None:
    """Whoever installs with pip copies them from the page."""
    page = text_of("operate/monitor.md")
    (shown,) = re.findall(r'```properties title="log4j2.properties"\n(.*?)```', page, re.DOTALL)
    kept = (ROOT / "conf/log4j2.properties").read_text(encoding="utf-8")

    assert shown == kept.partition("\n\n")[2]


def test_versions_of_formats_are_those_of_the_code() -> None:
    """An operator who goes back to an older version compares them."""
    (table,) = tables("operate/upgrade.md", "stored data")
    told = [version.partition(":")[0] for _, version in table]
    state = [each.FORMAT.version for each in (sessions_state, dedup_state, seen_ids)]

    assert [
        f"{STORE_VERSION}",
        f"{offsets.VERSION}; {offsets.DIRECT_VERSION} if executors fetch; "
        f"{offsets.SUBSET_VERSION} with `partitions`",
        f"{state[0]}",
        f"{state[1]}; {state[2]} with `id`",
        f"{DIGEST_VERSION}",
        f"{commits.FORMAT}",
    ] == told
