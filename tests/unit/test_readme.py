"""The README's tables say what the code does."""

import inspect
import re
from pathlib import Path

from zeh_spark.audit.findings import Difference, Tally
from zeh_spark.options import HEADER_PREFIX, SECRET_HEADER_PREFIX, ClientOptions, declared
from zeh_spark.protocol.problems import PROBLEMS
from zeh_spark.protocol.upload_format import LINE_BYTES
from zeh_spark.sessions.model import REASONS, RECORDS
from zeh_spark.sessions.ordering import in_order
from zeh_spark.sink.options import SinkOptions
from zeh_spark.source.options import SourceOptions

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def rows(first_cell: str) -> list[list[str]]:
    """The rows of the table whose header begins so."""
    lines = README.splitlines()
    begin = next(i for i, line in enumerate(lines) if line.startswith(f"| {first_cell} |"))
    found = []
    for line in lines[begin + 2 :]:
        if not line.startswith("|"):
            break
        found.append([cell.strip() for cell in line.strip("|").split(" |")])
    return found


def described(kind):
    """Options as rows of a table."""
    return [
        [
            f"`{name}`",
            "" if each.default is None else f"`{each.default}`",
            each.query,
            each.meaning,
        ]
        for name, each in declared(kind).items()
    ]


def test_options_to_write_with_are_those_of_the_code():
    """What only a write has is in a table of its own."""
    shared = described(ClientOptions)

    assert rows("write option") == [row for row in described(SinkOptions) if row not in shared]


def test_options_are_those_of_the_code():
    """Each option is in the table with its default, its kind of query and its meaning."""
    in_code = described(SourceOptions)
    prefixes = [f"`{prefix}<Name>`" for prefix in (HEADER_PREFIX, SECRET_HEADER_PREFIX)]

    table = rows("option")

    assert table[: len(in_code)] == in_code
    assert [row[0] for row in table[len(in_code) :]] == prefixes


def test_every_promise_names_a_test_that_exists():
    """A promise without a test is none."""
    files = [*ROOT.glob("tests/**/test_*.py"), *ROOT.glob("zeh_spark/testing/contract_*.py")]
    tests = "\n".join(path.read_text(encoding="utf-8") for path in files)

    missing = [
        name
        for row in rows("promise")
        for name in re.findall(r"`(test_\w+)`", row[1])
        if f"def {name}(" not in tests
    ]

    assert len(rows("promise")) >= 16
    assert missing == []


def test_every_refusal_of_a_batch_is_explained():
    """What an error names can be looked up; only what concerns writers of clients is left out."""
    told = {name for row in rows("refusal") for name in re.findall(r"`([\w-]+)`", row[0])}

    decided = {name for name, known in PROBLEMS.items() if "incarnation" in known.members}

    assert decided - {"upload-conflict", "unknown-batch"} == told


def test_an_audit_speaks_as_the_example_does():
    """What to expect is what comes."""
    tally = Tally(producers=3, batches=1234, events=5_678_901, first=1, last=9876)
    wrong = Difference(17, "sequence number in partition 0", 1000, 2000, "orders-job", 3)

    assert f"\n{tally}\n" in README
    assert f" is not as published:\n{wrong}\n" in README


def test_the_longest_line_is_the_one_that_writers_hold_to():
    """The publisher's limit is stated as it is."""
    stated = re.findall(r"([0-9][0-9,]*) bytes", README)

    assert stated and {f"{LINE_BYTES:,}"} == set(stated)


def test_reasons_of_dead_letters_are_those_of_the_code():
    """Each reason that a session gives can be looked up; records say that they are none."""
    table = {row[0].strip("`"): row[1] for row in rows("reason")}

    assert list(REASONS) == list(table)
    assert set(RECORDS) == {name for name, text in table.items() if "record" in text}


def test_session_options_are_those_of_the_code():
    """Each argument of in_order is in the table, with its default."""
    table = {
        name: row[1] for row in rows("session option") for name in re.findall(r"`(\w+)`", row[0])
    }
    in_code = dict(list(inspect.signature(in_order).parameters.items())[1:])

    assert in_code.keys() == table.keys()
    for name in ("gap_timeout", "on_gap", "delay", "keep_closed", "first", "buckets", "metrics"):
        assert str(in_code[name].default) == table[name].strip("`")
