"""What readers are told to install and to run exists: extras, versions, wheels, make's targets."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

import yaml
from packaging.requirements import Requirement

from tests.cases import each_case
from tests.release import smoke
from zeh_spark import __version__

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    page
    for folder in (
        *(".github", "benchmarks", "conf", "docs", "examples", "notebooks", "tests", "zeh_spark"),
    )
    for page in (ROOT / folder).rglob("*")
    if page.suffix in {".md", ".ipynb", ".py", ".yml", ".Dockerfile"}
)
TEXTS = {
    str(page.relative_to(ROOT)): page.read_text(encoding="utf-8")
    for page in [ROOT / "README.md", ROOT / "CHANGELOG.md", *PAGES]
    if page != Path(__file__)
}


def found(pattern: str) -> list[tuple[str, str]]:
    """What a pattern finds in the pages and in our messages, each with its file."""
    return [(name, each) for name, text in TEXTS.items() for each in re.findall(pattern, text)]


def requirements(package: str) -> list[tuple[str, Requirement]]:
    """The requirements of a package to install, each with its file, but "no extra `…`"."""
    form = rf"""(?<!extra )["'`]({package}(?:\[[\w,-]+\])?(?:[=<>~]=[\d.*]+)?)\\?["'`]"""
    return [(file, Requirement(each)) for file, each in found(form)]


def test_extras_that_are_named_exist():
    """pip installs what I copy, and leaves nothing out with a warning."""
    named = [(file, extra) for file, need in requirements("zeh-spark") for extra in need.extras]
    local = r'pip install (?:-e )?"\.[./]*\[([\w,]+)\]"'
    named += [(file, extra) for file, extras in found(local) for extra in extras.split(",")]
    ours = set(metadata.metadata("zeh-spark").get_all("Provides-Extra", []))

    assert len(named) >= 20
    assert [] == [each for each in named if each[1] not in ours]


@each_case("package", ["pyspark", "delta-spark"])
def test_versions_that_are_named_are_those_of_the_tests(package):
    """What the docs install is what `make test` runs with."""
    developed = [Requirement(need) for need in metadata.requires("zeh-spark") or []]
    (pin,) = {str(n.specifier) for n in developed if n.name == package and "dev" in str(n.marker)}
    pinned = [(file, str(need.specifier)) for file, need in requirements(package)]
    told = [each for each in pinned if each[1] and not each[0].startswith("tests/")]

    assert len(told) >= 3
    assert [] == [each for each in told if each[1] != pin]


def test_wheels_that_are_named_are_of_this_version():
    """The file is there after `make dist`. Between releases the docs may name the last one."""
    named = found(r"zeh_spark-([\w.]+)-py3-none-any\.whl")

    assert len(named) >= 5
    assert "dev" in __version__ or {__version__} == {each for _, each in named}


def test_targets_of_make_that_are_named_exist():
    """I copy `make …` from a page, and it does something."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    named = found(r"(?:^|[`(]|run: )make ([a-z][a-z-]+)(?=[`\s])")

    assert len(named) >= 20
    assert [] == [each for each in named if each[1] not in targets]


def test_a_release_is_tried_with_each_spark():
    """What the workflow tries before it publishes is each version that the docs name."""
    workflow = ROOT / ".github" / "workflows" / "release.yml"
    jobs = yaml.safe_load(workflow.read_text(encoding="utf-8"))["jobs"]
    matrix = jobs["smoke"]["strategy"]["matrix"]["include"]
    page = (ROOT / "docs" / "operate" / "where-it-runs.md").read_text(encoding="utf-8")

    assert list(smoke.NAMES) == [row["name"] for row in matrix]
    assert f"| Spark | {', '.join(smoke.SPARKS)} |" in page
