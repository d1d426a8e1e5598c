"""How large the package is, and how its parts hang together: `python -m tests.measures`.

`make lint` prints it. Nothing fails here: `tests/unit/test_layers.py` has what must hold.
"""

from __future__ import annotations

from collections import Counter

from tests.unit.test_layers import MODULES, PACKAGE, floors, ours, room

LONG = 450
"""More lines than a file should have."""


def main() -> None:
    """Print a line for each measure. A room is a package, or a module at the root."""
    rooms: dict[str, set[str]] = {}
    for module, names in ours().items():
        used = rooms.setdefault(room(module), set())
        used |= {room(name) for name in names} - {room(module)}
    *levels, in_cycles = floors(rooms)
    upward = [f"{name} to {each}" for name in in_cycles for each in rooms[name] & in_cycles]
    folders = Counter(str(path.parent.relative_to(PACKAGE)) for path in MODULES.values())
    folder, most = folders.most_common(1)[0]
    lengths = {path: len(path.read_text("utf-8").splitlines()) for path in MODULES.values()}
    long = [f"{path.relative_to(PACKAGE)} {n}" for path, n in lengths.items() if n > LONG]

    print(f"lines               {sum(lengths.values())}")
    print(f"rooms               {len(rooms)} on {len(levels)} floors")
    print(f"import edges        {sum(map(len, rooms.values()))}")
    print(f"modules a folder    at most {most}, in {folder}")
    print(f"files over {LONG}      {len(long)}", *long)
    print(f"modules in cycles   {len(floors(ours())[-1])}")
    print(f"arrows up           {len(upward)}", *upward)


if __name__ == "__main__":
    main()
