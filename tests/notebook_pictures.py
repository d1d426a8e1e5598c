"""Make the PNG of each picture in notebooks/pictures: `python -m tests.notebook_pictures`.

The SVG is the source. A notebook shows the PNG, by a relative path in Markdown: GitHub shows no SVG
in notebooks, Databricks documents exactly this, and Jupyter does it as well. Rejected: attachments
and data URIs, which make each difference unreadable. The PNG has twice the pixels, and the digest
of its SVG. By that, a test notices that one was changed alone.
"""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from tests.fix_console import opened_browser

PICTURES = Path(__file__).parents[1] / "notebooks" / "pictures"
DIGEST = "svg-sha256"
WIDTH = 940


def digest(svg: Path) -> str:
    return hashlib.sha256(svg.read_bytes()).hexdigest()


def digest_in(png: Path) -> str:
    """The digest of the SVG that a PNG was made of."""
    with Image.open(png) as image:
        return str(image.info[DIGEST])


def main() -> None:
    with opened_browser() as browser:
        page = browser.new_page(device_scale_factor=2, viewport={"width": WIDTH, "height": 600})
        for svg in sorted(PICTURES.glob("*.svg")):
            page.set_content(
                f"<style>body {{ margin: 0 }} svg {{ display: block }}</style>{svg.read_text()}"
            )
            shot = page.locator("svg").screenshot()
            about = PngInfo()
            about.add_text(DIGEST, digest(svg))
            with Image.open(io.BytesIO(shot)) as image:
                few = image.convert("RGB").quantize(128)
                few.save(svg.with_suffix(".png"), pnginfo=about, optimize=True)


if __name__ == "__main__":
    main()
