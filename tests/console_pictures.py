"""Make the pictures of the console in the docs: `python -m tests.console_pictures`.

They show a real publisher after an hour of a shop's events, in a real Chromium.
"""

from __future__ import annotations

from pathlib import Path

from tests.fix_console import Shop, opened_browser, site
from zeh_spark.store.access import ADMIN

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
SHOTS = (
    ("console-feeds", "", "light", 1100, 700),
    ("console-feed", "/feeds/orders", "dark", 1100, 800),
    ("console-phone", "/refusals", "light", 390, 780),
)
"""For each picture its name, the page, light or dark, and the size of the window."""


def main() -> None:
    """Write all pictures."""
    with site() as publisher, opened_browser() as browser:
        shop = Shop(publisher, publisher.token(*ADMIN, name="ada"))
        shop.run()
        for name, path, scheme, width, height in SHOTS:
            context = browser.new_context(
                color_scheme=scheme, viewport={"width": width, "height": height}
            )
            page = context.new_page()
            page.goto(f"{publisher.console}/sign-in")
            page.get_by_label("Token").fill(shop.token)
            page.get_by_role("button", name="Sign in").click()
            page.goto(publisher.console + path)
            page.screenshot(path=PICTURES / f"{name}.png")
            context.close()


if __name__ == "__main__":
    main()
