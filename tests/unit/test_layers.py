"""Imports go one way. Whoever reads a module needs those below it, and no others."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests.cases import each_case

PACKAGE = Path(__file__).parents[2] / "zeh_spark"
MODULES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
LAYERS = {
    "_locations": set(),
    "_zlib": set(),
    "errors": set(),
    "wire": {"errors"},
    "wire.problems": {"errors"},
    "client.options": {"errors", "wire"},
    "client.http": {"_zlib", "client.options", "errors", "wire", "wire.problems"},
    "client.decoding": {"client.http", "errors", "wire"},
    "client.polling": {"client.http", "client.options", "errors", "wire"},
    "client": {
        "client.decoding", "client.http", "client.options", "client.polling", "errors", "wire",
        "wire.problems",
    },
    "spark.frames": {"errors", "wire"},
    "spark.stateful": {"errors", "spark.frames", "wire"},
    "spark.sink": {
        "client.http", "client.options", "errors", "spark.frames", "wire", "wire.problems",
    },
    "spark.source": {
        "_locations", "client.decoding", "client.http", "client.options", "client.polling",
        "errors", "spark.frames", "wire",
    },
    "spark": {
        "client.decoding", "client.options", "errors", "spark.frames", "spark.sink", "spark.source",
        "spark.stateful", "wire",
    },
    "spark.delta": {"errors", "spark.frames", "spark.sink", "spark.source", "wire"},
    "spark.sessions": {
        "errors", "spark.delta", "spark.frames", "spark.sink", "spark.source", "spark.stateful",
        "wire",
    },
    "service.store": {"errors", "wire", "wire.problems"},
    "service.reads": {"service.store", "wire", "wire.problems"},
    "service.segments": {"_locations", "errors", "service.reads", "service.store", "wire"},
    "service.network": {"errors", "service.store", "wire.problems"},
    "service.sql": {"errors", "service.segments", "service.store", "wire"},
    "service.postgresql": {"errors", "service.sql", "service.store"},
    "service.retention": {
        "errors", "service.reads", "service.segments", "service.sql", "service.store", "wire",
    },
    "service.sqlite": {"errors", "service.sql", "service.store"},
    "service.telemetry": {
        "errors", "service.reads", "service.sql", "service.store", "wire", "wire.problems",
    },
    "service": {"errors", "service.postgresql", "service.sql", "service.sqlite", "service.store"},
    "service.access": {
        "errors", "service.network", "service.store", "service.telemetry", "wire", "wire.problems",
    },
    "service.outbox": {
        "errors", "service.postgresql", "service.reads", "service.sqlite", "service.store",
        "service.telemetry", "wire", "wire.problems",
    },
    "service.console": {
        "errors", "service.access", "service.network", "service.reads", "service.retention",
        "service.store", "service.telemetry", "wire", "wire.problems",
    },
    "service.app": {
        "_zlib", "errors", "service.access", "service.console", "service.network",
        "service.outbox", "service.postgresql", "service.reads", "service.retention",
        "service.sqlite", "service.store", "service.telemetry", "wire", "wire.problems",
    },
    "tools.loading": {"errors", "service.app", "service.store", "wire", "wire.problems"},
    "tools.audit": {
        "client.http", "client.options", "errors", "service.store", "wire", "wire.problems",
    },
    "tools.check": {"client.http", "client.options", "errors", "wire", "wire.problems"},
    "tools.doctor": {"client.http", "client.options", "errors", "spark", "tools.check"},
    "tools.cli": {
        "client", "client.http", "client.options", "errors", "service", "service.access",
        "service.app", "service.network", "service.outbox", "service.retention", "service.segments",
        "service.sql", "service.sqlite", "service.store", "service.telemetry", "spark.source",
        "tools.audit", "tools.check", "tools.doctor", "tools.loading", "wire", "wire.problems",
    },
}  # fmt: skip
"""Which packages, and modules at the root, each package may import. One that is missing here is a
door for users at the root, which may import any.
"""
PUBLISHER_SIDE = {"client", "service", "tools.loading", "wire"}
SPARK_SIDE = {"client", "spark", "wire"}
SERVER = ["starlette", "uvicorn", "sqlalchemy", "click"]


@functools.cache
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


@functools.cache
def ours() -> dict[str, set[str]]:
    """The modules of ours that each imports, but for the package itself, which all may import."""
    return {
        module: {name for name in imports(module) if name in MODULES and name != "zeh_spark"}
        for module in MODULES
        if module != "zeh_spark"
    }


def within(name: str, parent: str) -> bool:
    return name == parent or name.startswith(f"{parent}.")


def room(module: str) -> str:
    """The package in `LAYERS`, or the module at the root, that a module belongs to."""
    name = module.partition(".")[2]
    return max((each for each in LAYERS if within(name, each)), key=len, default=name)


def modules_of(side: set[str]) -> list[str]:
    """The modules of these rooms and families, each of which has some."""
    found = {part: [name for name in MODULES if within(name, f"zeh_spark.{part}")] for part in side}
    assert [part for part, modules in found.items() if not modules] == []
    return [name for modules in found.values() for name in modules]


def floors(imports: dict[str, set[str]]) -> list[set[str]]:
    """Return those who import nobody, then those who import only these, and so on.

    The last set has those in a cycle, and those above it.
    """
    left = {name: names & imports.keys() for name, names in imports.items()}
    found = []
    while ready := {name for name, names in left.items() if not names & left.keys()}:
        found.append(ready)
        left = {name: names for name, names in left.items() if name not in ready}
    return [*found, {*left}]


@each_case("package", LAYERS)
def test_a_package_imports_only_what_it_names(package):
    """I can read and change a package knowing those below it, and no others."""
    used = {
        room(name)
        for module, names in ours().items()
        if room(module) == package
        for name in names
        if room(name) != package
    }

    assert used == LAYERS[package]


def test_every_package_has_its_layer():
    """A new package is added to the table."""
    packages = {path.parent.relative_to(PACKAGE) for path in PACKAGE.glob("*/**/__init__.py")}
    families = {each.parent for each in packages}

    assert {".".join(each.parts) for each in packages - families} <= LAYERS.keys()
    assert [each for each in LAYERS if not modules_of({each})] == []


def test_an_audit_knows_of_the_publisher_what_its_receipts_say():
    """It would not notice a fault of code that it shares."""
    shared = {
        name
        for module, names in ours().items()
        if within(module, "zeh_spark.tools.audit")
        for name in names
        if not within(room(name), "wire")
        and room(name) not in ("client.http", "client.options", "errors", "tools.audit")
    }

    assert {"zeh_spark.service.store.batches"} == shared


@each_case(("side", "unwanted"), [(PUBLISHER_SIDE, ["pyspark"]), (SPARK_SIDE, SERVER)])
def test_a_side_never_imports_the_libraries_of_the_other(side, unwanted):
    """A publisher runs without Spark, a cluster without web framework or database driver."""
    guilty = [
        (module, name)
        for module in modules_of(side)
        for name in imports(module)
        if any(within(name, library) for library in unwanted)
    ]

    assert [] == guilty


def test_the_wire_stands_on_the_errors_alone():
    """The protocol can be read on one page."""
    assert ({"zeh_spark.errors"}, set()) == (
        ours()["zeh_spark.wire.wire"],
        ours()["zeh_spark.errors"],
    )


def test_there_are_no_cycles():
    """Every module and every package can be understood after those that it imports."""
    assert (set(), set()) == (floors(ours())[-1], floors(LAYERS)[-1])


def test_two_folder_levels_are_enough():
    """I find a module without searching, among a few."""
    assert [] == [module for module in MODULES if module.count(".") > 3]
    assert Counter(path.parent for path in MODULES.values()).most_common(1)[0][1] <= 18


@each_case(
    ("modules", "unwanted"),
    [
        (
            "client.http.feed_client publish reading",
            ["pyspark", "zeh_spark.publisher", "zeh_spark.service", *SERVER],
        ),
        (
            "publisher tools.loading.parquet_rows tools.cli.main spark.sessions.session_decision "
            "spark.stateful.seen",
            ["pyspark"],
        ),
        (
            "tools.cli.diagnosis_commands tools.cli.feed_commands tools.cli.repair_commands",
            ["pyspark", "starlette", "uvicorn", "sqlalchemy"],
        ),
        ("spark.datasource", SERVER),
    ],
)
def test_importing_them_does_not_load(modules, unwanted):
    """What I do not use is not loaded, and need not be installed."""
    names = ", ".join(f"zeh_spark.{each}" for each in modules.split())
    program = f"import sys, {names}; print(*(sys.modules.keys() & {set(unwanted)!r}))"

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert "" == done.stdout.strip()
