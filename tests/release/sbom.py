"""Write what the wheel of `dist/` brings along: `python -m tests.release.sbom`.

For the package alone, and with each extra that users install, it makes an empty environment and
writes a CycloneDX document to `dist/sbom`. From these it writes the table of licences in
`docs/explanation/libraries.md`.

Rule for editors: a library whose licence is not in FITTING, direct or not, stops it. Whoever adds a
licence there has read it, and writes on that page what follows for users.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from tests.oldest import declared
from tests.release.artifacts import DIST, ROOT, version, wheel

PAGE = ROOT / "docs" / "explanation" / "libraries.md"
BEGIN, END = "<!-- generated: licences -->", "<!-- end of licences -->"
EXTRAS = {"REQUIRES": "", "PUBLISHER": "publisher", "SESSIONS": "sessions"}
"""The extras that users install, by the lists of setup.py."""

FITTING = {
    "0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "LGPL-3.0-only", "MIT",
    "MIT-0", "MPL-2.0", "PSF-2.0", "Zlib",
}  # fmt: skip
"""The licences of libraries that may be installed beside Apache-2.0, by their names in SPDX."""

_SPDX = {
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD-3-Clause",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
}
"""The names in SPDX of licences that a library names in words, after it was looked up which of the
BSD licences it has.
"""

_UNTOLD = {"protobuf": "BSD-3-Clause"}
"""The licences of libraries whose packages tell theirs in a way that the tool does not read."""


def document(extra: str, more: list[str]) -> dict[str, Any]:
    """Return the CycloneDX document of an empty environment with the wheel and an extra, if any.

    `more` is installed, too: libraries that the package needs on other Pythons only.
    """
    folder = Path(tempfile.mkdtemp(prefix="zeh-sbom-"))
    try:
        python, file = folder / "venv" / "bin" / "python", folder / "sbom.json"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
        pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet"]
        needed = f"{wheel()}[{extra}]" if extra else str(wheel())
        subprocess.run([*pip, "--disable-pip-version-check", needed, *more], check=True)
        tool = [sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible"]
        subprocess.run([*tool, "--output-file", file, python], check=True)
        return _about_the_package(json.loads(file.read_text(encoding="utf-8")))
    finally:
        shutil.rmtree(folder)


def _about_the_package(found: dict[str, Any]) -> dict[str, Any]:
    """Name the package as what the document is about, and add what the tool does not read."""
    (package,) = [each for each in found["components"] if each["name"] == "zeh-spark"]
    package.pop("externalReferences", None)  # the wheel's path on this machine
    found["components"].remove(package)
    found["metadata"]["component"] = package
    for each in found["components"]:
        if each["name"] in _UNTOLD and "licenses" not in each:
            each["licenses"] = [{"license": {"id": _UNTOLD[each["name"]]}}]
    return found


def licence(component: dict[str, Any]) -> str:
    """Return the licence of a component as an expression of SPDX, if it is one of those above."""
    named = [
        each.get("expression") or each["license"].get("id") or each["license"].get("name", "")
        for each in component.get("licenses", [])
    ]
    bare = (each.removeprefix("License :: OSI Approved :: ") for each in named)
    spdx = sorted({_SPDX.get(each, each) for each in bare})
    parts = {part for each in spdx for part in re.split(r" (?:AND|OR|WITH) |[()]", each) if part}
    if not parts or parts - FITTING:
        raise ValueError(
            f"{component['name']} {component['version']} has the licence {named}, which is not "
            f"known to fit. Read it, and add it to FITTING or _SPDX in tests/release/sbom.py"
        )
    return " AND ".join(spdx)


def table(licences: dict[str, str]) -> str:
    """Return the table of the direct dependencies. Licences are by their normal names."""
    rows = ["| library | version | extra | licence |", "|---|---|---|---|"]
    for name, extra in EXTRAS.items():
        for need in map(Requirement, declared()[name]):
            extras = f"[{','.join(sorted(need.extras))}]" if need.extras else ""
            bounds = ",".join(sorted(map(str, need.specifier), reverse=True))
            told = f"`{bounds}`" + (f"; {need.marker}" if need.marker else "")
            known = licences[normal(need.name)]
            rows.append(f"| {need.name}{extras} | {told} | {extra} | {known} |")
    return "\n".join(rows)


def normal(name: str) -> str:
    """Return the name of a library as PyPI compares names."""
    return re.sub(r"[-_.]+", "-", name).lower()


def main() -> None:
    """Write documents and table, and print which licences there are, and of how many libraries."""
    folder = DIST / "sbom"
    folder.mkdir(exist_ok=True)
    licences: dict[str, str] = {}
    for name, extra in EXTRAS.items():
        elsewhere = [need.partition(";")[0].strip() for need in declared()[name] if ";" in need]
        found = document(extra, elsewhere)
        file = folder / f"zeh-spark-{version()}{extra and f'-{extra}'}.cdx.json"
        file.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
        licences |= {normal(each["name"]): licence(each) for each in found["components"]}
        print(f"{file.relative_to(ROOT)}  {len(found['components'])} libraries")
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n\n{table(licences)}\n\n{END}{after}", encoding="utf-8")
    for spdx, count in Counter(licences.values()).most_common():
        print(f"{count:4}  {spdx}")


if __name__ == "__main__":
    main()
