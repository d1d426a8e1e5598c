"""The console in a real Chromium: readable by everybody, by keyboard alone, and without scripts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import pytest

from tests.fix_console import Shop, Site, site
from zeh_spark.service.store.token_rights import ADMIN
from zeh_spark.testing import publish

HOSTILE = '<img src=x onerror="window.hostile = 1"><script>window.hostile = 1</script>\u202e'

WIDE, PHONE = {"width": 1200, "height": 900}, {"width": 390, "height": 844}

PAGES = (
    "",
    "/refusals",
    "/feeds/orders",
    "/feeds/stock-levels",
    "/feeds/orders/partitions/0",
    "/feeds/stock-levels/partitions/1",
    "/feeds/shipments/partitions/1",
    "/feeds/orders-dead/dead-letters",
    "/feeds/orders/producers/till-1",
    "/feeds/nowhere",
    "/acts",
    "/feeds/orders/retention",
    "/feeds/orders/delete-cursor-set?name=fraud-check",
    "/feeds/orders/producers/till-1/delete",
    "/sign-in",
)


@pytest.fixture(scope="module")
def shop() -> Iterator[Shop]:
    with site() as found:
        shop = Shop(found, found.token(*ADMIN, name="ada"))
        shop.run()
        publish(found.store, "shipments", [HOSTILE, "x" * 60_000], partition=1)
        yield shop


@dataclass
class Tab:
    """A page of the browser, and what went wrong in it.

    Attributes:
        page: The page, as Playwright has it.
        site: The site that it shows.
        violations: Violations of the content security policy, and errors of scripts.
        elsewhere: Requests to other hosts.
    """

    page: object
    site: Site
    violations: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)

    def go(self, path: str = "") -> None:
        self.page.goto(self.site.console + path)

    def sign_in(self, token: str) -> None:
        self.go("/sign-in")
        self.page.get_by_label("Token").fill(token)
        self.page.get_by_role("button", name="Sign in").click()


@pytest.fixture
def tab(browser, shop) -> Iterator[Tab]:
    context = browser.new_context(viewport=WIDE)
    page = context.new_page()
    tab = Tab(page, shop.site)
    page.on("pageerror", lambda error: tab.violations.append(str(error)))
    page.on("dialog", lambda dialog: tab.violations.append(dialog.message))
    page.on(
        "console",
        lambda said: "Security Policy" in said.text and tab.violations.append(said.text),
    )
    own = urlsplit(shop.site.base).netloc
    page.on(
        "request",
        lambda sent: urlsplit(sent.url).netloc != own and tab.elsewhere.append(sent.url),
    )
    yield tab
    context.close()
    assert (tab.violations, tab.elsewhere) == ([], [])


def test_pages_are_accessible_in_light_and_dark_and_on_a_phone(tab, shop):
    """axe finds nothing, all fits the screen, and a hostile event runs nothing that `tab` sees."""
    from axe_playwright_python.sync_playwright import Axe

    tab.sign_in(shop.token)
    faults, grounds = [], set()
    for size, scheme in ((WIDE, "light"), (PHONE, "dark")):
        tab.page.set_viewport_size(size)
        tab.page.emulate_media(color_scheme=scheme)
        for path in PAGES:
            tab.go(path)
            faults += [
                (scheme, path, each["id"], [node["html"] for node in each["nodes"]])
                for each in Axe().run(tab.page).response["violations"]
            ]
            if tab.page.evaluate("document.scrollingElement.scrollWidth > window.innerWidth"):
                faults.append((scheme, path, "it is wider than the screen"))
        grounds.add(tab.page.evaluate("getComputedStyle(document.body).backgroundColor"))

    assert (faults, len(grounds)) == ([], 2)


def test_the_keyboard_is_enough(tab, shop):
    """The first stop skips to the content; each stop can be seen; a form is sent with Enter."""
    keys, page = tab.page.keyboard, tab.page
    tab.go("/feeds/orders")
    assert page.evaluate("document.activeElement.id") == "token"
    keys.type(shop.token)
    with page.expect_navigation():
        keys.press("Enter")
    keys.press("Tab")
    assert page.evaluate("document.activeElement.innerText") == "Skip to the content"
    assert page.evaluate("document.activeElement.getBoundingClientRect().left") >= 0
    keys.press("Enter")
    keys.press("Tab")
    assert page.evaluate("document.activeElement.closest('main') !== null")

    seen = []
    for _ in range(60):
        stop = page.evaluate(
            """() => {
                const at = document.activeElement, box = at.getBoundingClientRect();
                const style = getComputedStyle(at);
                return [at.tagName, at.innerText, style.outlineStyle,
                        box.top >= 0 && box.bottom <= window.innerHeight && box.left >= 0];
            }"""
        )
        if stop[0] == "BODY":
            break
        seen.append(stop)
        keys.press("Tab")

    assert len(seen) > 8
    assert {(outline, is_in_view) for _, _, outline, is_in_view in seen} == {("solid", True)}
    assert "Change retention" in [text for _, text, _, _ in seen]


def test_another_site_can_neither_frame_the_console_nor_act_in_it(browser, shop):
    """A page that I visit elsewhere gets nothing, although I am signed in."""
    context = browser.new_context()
    tab = Tab(context.new_page(), shop.site)
    tab.sign_in(shop.token)
    before = shop.site.store.retention("payments")
    page = context.new_page()
    page.route("http://evil.example/*", lambda route: route.fulfill(
        content_type="text/html",
        body=f"""<iframe id="framed" src="{shop.site.console}"></iframe>
        <form id="form" method="post" action="{shop.site.console}/feeds/payments/retention">
        <input name="age" value="1s"><input name="size"><input name="readers">
        <input name="names"><input name="confirmed" value="yes"></form>""",
    ))  # fmt: skip
    page.goto("http://evil.example/")
    framed = page.frame_locator("#framed").get_by_role("heading", name="Feeds").count()
    page.evaluate("document.getElementById('form').submit()")
    page.wait_for_url(f"{shop.site.console}/**")
    said = page.get_by_role("heading").inner_text()
    page.get_by_role("link", name="Open the console").click()
    opened = page.get_by_role("heading", name="Feeds", exact=True).count()
    context.close()

    assert (framed, said, opened) == (0, "Foreign origin", 1)
    assert shop.site.store.retention("payments") == before
