"""The README is a door: short, and its links lead somewhere, on PyPI, too."""

import os
import re
import subprocess
import sys
from pathlib import Path

from zeh_spark import __version__

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
LINK = re.compile(r"(!?)\[[^\]]*\]\(([^)#]+)[^)]*\)")


def test_the_readme_is_short():
    """I read it in a few minutes; the docs have the rest."""
    assert len(README.splitlines()) <= 150


def test_links_of_the_readme_lead_to_files():
    """Each page and picture that it names is there."""
    files = [link for _, link in LINK.findall(README) if not link.startswith("http")]

    assert len(files) >= 25
    assert [] == [file for file in files if not (ROOT / file).exists()]


def test_links_of_the_description_lead_to_the_repository():
    """What I read on PyPI leads to the files of that version, and shows the pictures."""
    home = "https://git.example/feeds/zeh-spark"
    program = (
        "import runpy, setuptools\n"
        "setuptools.setup = lambda **given: print(given['long_description'])\n"
        "runpy.run_path('setup.py')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env={**os.environ, "ZEH_REPOSITORY": home},
        capture_output=True, text=True, check=True,
    )  # fmt: skip

    expected = [
        link
        if link.startswith("http")
        else f"{home}/{'raw' if picture else 'blob'}/v{__version__}/{link}"
        for picture, link in LINK.findall(README)
    ]
    assert expected == [link for _, link in LINK.findall(done.stdout)]
