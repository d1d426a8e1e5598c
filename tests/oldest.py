"""The oldest versions that setup.py allows, as constraints for pip: `python -m tests.oldest`.

`make test-oldest` installs them, so that no lower bound is a guess. What only tests need may be
newer. It needs nothing but Python.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

SETUP = Path(__file__).parents[1] / "setup.py"
LISTS = ("REQUIRES", "PUBLISHER", "SESSIONS")
"""The lists of setup.py whose requirements users install."""


def declared() -> dict[str, list[str]]:
    """Return what users install, with and without extras, as setup.py has it, by list."""
    found = {}
    for node in ast.parse(SETUP.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = node.value
    return {name: ast.literal_eval(found[name]) for name in LISTS}


def pinned(requirement: str) -> str:
    """Return a requirement with its lower bound as the only version: `a[b]>=1,<3` as `a==1`.

    Extras are left out, because constraints have none. Markers stay.
    """
    needed, _, marker = requirement.partition(";")
    found = re.fullmatch(r"([\w.-]+)(?:\[[\w,-]+\])?>=([\w.]+)(?:,[<!]=?[\w.]+)*", needed.strip())
    if not found:
        raise ValueError(f"{requirement!r} has no lower bound. Give it one in setup.py")
    return f"{found[1]}=={found[2]}" + (f"; {marker.strip()}" if marker else "")


if __name__ == "__main__":
    needed = [each for needs in declared().values() for each in needs]
    sys.stdout.writelines(f"{pinned(each)}\n" for each in needed)
