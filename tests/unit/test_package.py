"""What an installed package gives: names, version, types, and no needs but those it tells."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import zeh_spark

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Built from a copy, so that nothing is left in the checkout."""
    copy = tmp_path_factory.mktemp("checkout")
    for name in ("setup.py", "pyproject.toml", "pyspark_zeroeventhub.py", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    shutil.copytree(ROOT / "zeh_spark", copy / "zeh_spark")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", copy / "dist", copy], check=True, capture_output=True)
    return zipfile.ZipFile(next((copy / "dist").glob("*.whl")))


@pytest.fixture(scope="module")
def about(wheel: zipfile.ZipFile) -> Message:
    name = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return message_from_bytes(wheel.read(name))


def test_public_names_are_sorted_and_there():
    """What is documented as public can be imported; `hasattr` and tab completion work."""
    assert sorted(zeh_spark.__all__) == list(zeh_spark.__all__)
    assert [] == [name for name in zeh_spark.__all__ if not hasattr(zeh_spark, name)]
    assert not hasattr(zeh_spark, "subscribe")
    assert {*zeh_spark.__all__} <= {*dir(zeh_spark)}


def test_the_wheel_has_every_module_and_nothing_else(wheel):
    """What works in the checkout works when it is installed."""
    expected = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "zeh_spark").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }

    packed = {name for name in wheel.namelist() if ".dist-info/" not in name}

    assert {*expected, "pyspark_zeroeventhub.py"} == packed
    assert "zeh_spark/py.typed" in packed  # my type checker reads the types of the package


def test_a_plain_install_needs_neither_spark_nor_a_server_framework(about):
    """pip never replaces the Spark that my cluster brings, and installs no server for readers."""
    needed = [need for need in about.get_all("Requires-Dist", []) if "extra ==" not in need]

    names = {re.match(r"[\w.-]+", need)[0].lower() for need in needed}

    ours = {
        "click", "msgspec", "numpy", "orjson", "pyarrow", "requests", "urllib3", "xxhash",
        "zstandard",
    }  # fmt: skip
    assert ours == names


def test_extras_are_those_of_the_documentation(about):
    """`pip install zeh-spark[publisher]` serves feeds, `[sessions]` has what Spark's state
    needs. None brings delta-spark to users, because that would replace their PySpark.
    """
    assert zeh_spark.__version__ == about["Version"]
    extras = {*about.get_all("Provides-Extra", [])}
    deltas = [need for need in about.get_all("Requires-Dist", []) if need.startswith("delta")]

    assert {"publisher", "sessions", "docs", "test", "dev"} == extras
    assert {"dev"} == {re.search(r"extra == ['\"](\w+)", need)[1] for need in deltas}


def test_spark_finds_the_format_by_itself():
    """Without a registration call, also in an editable install: Spark knows no import hooks."""
    from pyspark_zeroeventhub import DefaultSource

    assert "zeroeventhub" == DefaultSource.name()
    program = (
        "import pkgutil; print(*(m.name for m in pkgutil.iter_modules() if 'zeroevent' in m.name))"
    )

    done = subprocess.run(
        [sys.executable, "-P" if sys.version_info >= (3, 11) else "-I", "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd="/",
    )

    assert "pyspark_zeroeventhub" in done.stdout.split()


def test_what_is_installed_here_has_a_version(about):
    """CI installs the same twice: `make constraints` was run after a library came."""
    lines = (ROOT / "tests" / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {Requirement(line).name for line in lines if not line.startswith("#")}
    needs = {Requirement(need).name for need in about.get_all("Requires-Dist", [])}

    assert {need.lower() for need in needs} <= pinned
