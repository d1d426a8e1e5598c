"""Build the wheel and the sdist into `dist/`, and check them: `python -m tests.release.artifacts`.

The sdist has the files of the repository, so that whoever packages it can run the tests. The wheel
has the package.

With `--publish TAG` it also fails if this is not the version to publish under that tag of git: see
`unready`.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

ROOT = Path(__file__).parents[2]
DIST = ROOT / "dist"
LEFT_OUT = (".ci/", ".gitignore")
"""What the sdist leaves out: files for whoever hosts the repository."""

_OF_SDIST = re.compile(r"PKG-INFO|setup\.cfg|zeh_spark\.egg-info/[\w.-]+")
_OF_WHEEL = re.compile(
    r"zeh_spark-[\w.]+\.dist-info/"
    r"(METADATA|WHEEL|RECORD|entry_points\.txt|top_level\.txt|licenses/LICENSE)"
)


def version() -> str:
    """Return the version of the checkout."""
    text = (ROOT / "zeh_spark" / "__init__.py").read_text(encoding="utf-8")
    (found,) = re.findall(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    return str(found)


def wheel() -> Path:
    """Return the wheel in `dist/`."""
    return DIST / f"zeh_spark-{version()}-py3-none-any.whl"


def sdist() -> Path:
    """Return the sdist in `dist/`."""
    return DIST / f"zeh_spark-{version()}.tar.gz"


def build() -> None:
    """Build both, the wheel from the sdist, with the time of the last commit."""
    shutil.rmtree(DIST, ignore_errors=True)
    time = subprocess.run(
        ["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    env = {**os.environ, "SOURCE_DATE_EPOCH": time.stdout.strip()}
    command = [sys.executable, "-m", "build", "--outdir", DIST, ROOT]
    built = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if built.returncode:
        sys.exit(built.stdout + built.stderr)


def tracked() -> set[str]:
    """Return the paths of the files that git has, as they are in the working tree."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return {name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()}


def differences(files: set[str]) -> list[str]:
    """Return which files of the repository wheel and sdist lack, and what they have too much."""
    with zipfile.ZipFile(wheel()) as packed:
        in_wheel = {name for name in packed.namelist() if not _OF_WHEEL.fullmatch(name)}
    with tarfile.open(sdist()) as packed_sources:
        names = [each.name.partition("/")[2] for each in packed_sources if each.isfile()]
    in_sdist = {name for name in names if not _OF_SDIST.fullmatch(name)}
    of_package = {f for f in files if f.startswith("zeh_spark/") or f == "pyspark_zeroeventhub.py"}
    of_sources = {f for f in files if not f.startswith(LEFT_OUT)}
    return [
        f"{file.name} {what}: {', '.join(sorted(found))}"
        for file, has, wanted in (
            (wheel(), in_wheel, of_package),
            (sdist(), in_sdist, of_sources),
        )
        for what, found in (("lacks", wanted - has), ("has too much", has - wanted))
        if found
    ]


def metadata() -> Message:
    """Return the metadata of the wheel."""
    with zipfile.ZipFile(wheel()) as packed:
        name = f"zeh_spark-{version()}.dist-info/METADATA"
        return message_from_bytes(packed.read(name))


def unready(tag: str | None) -> list[str]:
    """Return why this is not a version to publish, under a tag if there is one already."""
    found = []
    if tag and tag != f"v{version()}":
        found.append(f"the tag {tag} is not v{version()}")
    if re.search(r"[a-z]|\+", version()):
        found.append(
            f"{version()} is not a final version. Set __version__ in zeh_spark/__init__.py"
        )
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    if not re.search(rf"^## \[{re.escape(version())}\] - \d{{4}}-\d\d-\d\d$", changes, re.M):
        found.append(f"CHANGELOG.md has no heading '## [{version()}] - YYYY-MM-DD'")
    if relative := re.findall(r"\]\((?!https?:|#|mailto:)([^)]+)\)", str(metadata().get_payload())):
        found.append(
            f"{len(relative)} links of the description lead nowhere on PyPI, like {relative[0]}. "
            f"Set ZEH_REPOSITORY to the address of the repository"
        )
    dirty = subprocess.run(
        ["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    if dirty.stdout:
        found.append("the working tree has changes that are not committed")
    return found


def main() -> None:
    """Build and check. Ends with an exit code that is not 0 if anything is wrong."""
    parser = argparse.ArgumentParser(description="Build and check wheel and sdist.")
    parser.add_argument("--publish", metavar="TAG", help="also fail if it is not ready")
    tag = parser.parse_args().publish
    build()
    files = [str(wheel()), str(sdist())]
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *files], check=True)
    wrong, later = differences(tracked()), unready(tag)
    for each in wrong + later:
        print(f"{'not ready to publish' if each in later else 'wrong'}: {each}")
    for file in (wheel(), sdist()):
        print(f"dist/{file.name}  {file.stat().st_size / 1024:,.0f} KiB")
    sys.exit(bool(wrong or (tag and later)))


if __name__ == "__main__":
    main()
