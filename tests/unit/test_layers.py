"""Imports go one way. Whoever reads a module needs those below it, and no others."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "zeh_spark"
MODULES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
FAMILIES = ["zeh_spark.source", "zeh_spark.sink", "zeh_spark.publisher"]
SERVER = ["starlette", "uvicorn", "sqlalchemy", "click"]


def imports(module: str) -> set[str]:
    """Full names of all that a module imports, wherever in it, our own as modules."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else str(node.module) for name in names}
    return found


# The package itself only tells its version and hands out names on first use; all may import it.
OURS = {
    module: {name for name in imports(module) if name in MODULES and name != "zeh_spark"}
    for module in MODULES
    if module != "zeh_spark"
}


def within(name: str, parent: str) -> bool:
    return name == parent or name.startswith(f"{parent}.")


@pytest.mark.parametrize("family", FAMILIES)
def test_source_sink_and_publisher_never_import_each_other(family):
    """I can read, change or install one of them without the others."""
    others = [other for other in FAMILIES if other != family]
    crossings = {
        (module, name)
        for module, names in OURS.items()
        for name in names
        if within(module, family) and any(within(name, other) for other in others)
    }

    assert set() == crossings


def test_an_audit_knows_of_the_publisher_what_its_receipts_say():
    """It would not notice a fault of code that it shares."""
    shared = {
        name
        for module, names in OURS.items()
        if within(module, "zeh_spark.audit")
        for name in names
        if any(within(name, family) for family in FAMILIES)
    }

    assert {"zeh_spark.publisher.batches"} == shared


def test_the_publisher_never_imports_pyspark():
    """A publisher runs where there is no Spark."""
    guilty = [
        module
        for module in MODULES
        if within(module, "zeh_spark.publisher")
        and any(within(name, "pyspark") for name in imports(module))
    ]

    assert [] == guilty


def test_spark_side_never_imports_the_servers_libraries():
    """A cluster needs neither a web framework nor a database driver."""
    guilty = [
        (module, name)
        for module in MODULES
        for name in imports(module)
        if within(module, "zeh_spark.source") or within(module, "zeh_spark.sink")
        if any(within(name, library) for library in SERVER)
    ]

    assert [] == guilty


def test_the_wire_stands_on_the_errors_alone():
    """The protocol can be read on one page."""
    assert ({"zeh_spark.errors"}, set()) == (OURS["zeh_spark.wire"], OURS["zeh_spark.errors"])


def test_there_are_no_cycles():
    """Every module can be understood after those that it imports."""
    left = {module: set(names) for module, names in OURS.items()}
    while ready := {module for module, names in left.items() if not names & left.keys()}:
        left = {module: names for module, names in left.items() if module not in ready}

    assert {} == left


def test_one_folder_level_is_enough():
    """I find a module without searching."""
    assert [] == [module for module in MODULES if module.count(".") > 2]


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("zeh_spark", ["pyspark", *SERVER]),
        ("zeh_spark.client", ["pyspark", *SERVER]),
        ("zeh_spark.publish", ["pyspark", "zeh_spark.publisher", *SERVER]),
        ("zeh_spark.publisher", ["pyspark"]),
        ("zeh_spark.datasource", SERVER),
        ("zeh_spark.sessions.logic", ["pyspark"]),
        ("zeh_spark.seen", ["pyspark"]),
    ],
)
def test_importing_it_does_not_load(module, unwanted):
    """What I do not use is not loaded, and need not be installed."""
    program = f"import sys, {module}; print(*(sys.modules.keys() & {set(unwanted)!r}))"

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert "" == done.stdout.strip()
