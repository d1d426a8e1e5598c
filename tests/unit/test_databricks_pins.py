"""An install on Databricks leaves alone what is there: its pinned versions fit our requirements.

`tests/data/databricks/` has the lists of Databricks' repository, each with its source and the day
on which it was read. They are renewed by hand, because tests have no network.
"""

from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from tests.oldest import declared

LISTS = sorted((Path(__file__).parents[1] / "data" / "databricks").glob("*.txt"))
PYTHON = {"python_version": "3.12"}
"""The Python of all these environments, as their `pyproject.toml` has it."""
ENVIRONMENTS = [
    *("runtime-17.3", "runtime-18.0", "runtime-18.1", "runtime-18.2", "runtime-19"),
    *("serverless-4", "serverless-5", "serverless-6"),
]


def pins(path: Path) -> dict[str, str]:
    """Return the version of each library of a list, by its name."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return dict(line.split("~=") for line in lines if not line.startswith("#"))


def needs(*lists: str) -> list[Requirement]:
    """Return what users install there, of these lists of setup.py or of all."""
    found = [Requirement(each) for name in lists or declared() for each in declared()[name]]
    return [each for each in found if each.marker is None or each.marker.evaluate(PYTHON)]


def replaced(there: dict[str, str]) -> list[str]:
    """Name what pip would replace: each requirement that a version which is there does not meet."""
    return [
        f"{each} has {there[each.name]}"
        for each in needs()
        if each.name in there and not each.specifier.contains(Version(there[each.name]))
    ]


def test_the_lists_are_those_of_the_supported_environments() -> None:
    """Each says where it is from, and since when it is here."""
    assert [path.stem for path in LISTS] == ENVIRONMENTS
    for path in LISTS:
        kind, _, version = path.stem.partition("-")
        source, repository, day = path.read_text(encoding="utf-8").splitlines()[:3]
        assert f"{'/dbr/' if kind == 'runtime' else 'serverless-v'}{version}" in source
        assert repository.startswith("# of https://github.com/databricks/environments at commit ")
        assert day.startswith("# read on 20")


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_an_install_on_databricks_replaces_nothing_that_is_there(path: Path) -> None:
    """Neither with an extra. pip refuses another version of a pinned library on serverless compute,
    and elsewhere it could break what the runtime needs.
    """
    there = pins(path)

    assert replaced(there) == []
    assert {"click", "numpy", "pandas", "protobuf", "pyarrow", "requests", "urllib3"} <= {*there}


def test_a_version_that_does_not_fit_is_named() -> None:
    assert replaced({"click": "8.1.6", "numpy": "2.0"}) == ["click>=8.1.7 has 8.1.6"]
