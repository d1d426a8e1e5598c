"""The README is a door: short, and its links lead somewhere."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_readme_is_short():
    """I read it in a few minutes; the docs have the rest."""
    assert len(README.splitlines()) <= 150


def test_links_of_the_readme_lead_to_files():
    """Each page and picture that it names is there."""
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", README)
    files = [link for link in links if not link.startswith("http")]

    assert len(files) >= 25
    assert [] == [file for file in files if not (ROOT / file).exists()]
