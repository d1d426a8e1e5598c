"""The pictures of the docs: small, whole, and shown somewhere."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

from tests.cases import each_case
from tests.pictures import MOST_BYTES, PICTURES, faster

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("docs/**/*.md"), ROOT / "README.md"]


@each_case("picture", sorted(PICTURES.iterdir()))
def test_a_picture_is_small_and_shown(picture: Path) -> None:
    """A page is there at once, and no picture is kept that nobody sees."""
    assert picture.stat().st_size < MOST_BYTES
    if picture.suffix == ".svg":
        ElementTree.parse(picture)
    assert any(f"pictures/{picture.name})" in page.read_text(encoding="utf-8") for page in PAGES)


def test_a_recording_is_played_faster() -> None:
    """What was printed stays as it was; only its times change, and long pauses are cut."""
    cast = '{"version": 2}\n[1.0, "o", "a"]\n[4.0, "o", "b"]\n[64.0, "o", "c"]\n'

    header, *lines = faster(cast, 2, 5).splitlines()

    assert {"version": 2} == json.loads(header)
    assert [[0.5, "o", "a"], [2.0, "o", "b"], [7.0, "o", "c"]] == [*map(json.loads, lines)]
