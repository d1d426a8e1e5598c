"""A publisher with a console, an hour of a shop's events, and a real Chromium that looks at it."""

from __future__ import annotations

import functools
import html
import importlib.util
import json
import math
import random
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
import requests

from tests.fix_publish import Caller, Who, rows
from tests.fix_publisher import token_of
from tests.patience import eventually
from tests.scratch_store import ScratchStore
from zeh_spark.publisher import create_app
from zeh_spark.service.access.gate import Gate, own_hosts
from zeh_spark.service.app import telemetry_api
from zeh_spark.service.store.interface import Retention
from zeh_spark.service.store.token_rights import ADMIN, Grant
from zeh_spark.service.telemetry.health import Telemetry
from zeh_spark.testing import running_publisher
from zeh_spark.wire import dead_letters

if TYPE_CHECKING:
    from playwright.sync_api import Browser

MINUTES = 60
FEEDS = {"orders": 2, "payments": 2, "shipments": 2, "stock-levels": 2, "orders-dead": 1}

_ARGUMENTS = (
    "--no-sandbox",  # tests may run as root
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@functools.cache
def why_absent() -> str | None:
    """Why tests in a browser skip; None if they run."""
    if _chromium() is None:
        return "Chromium (Debian: apt-get install chromium)"
    missing = [
        each
        for each in ("playwright", "axe_playwright_python")
        if importlib.util.find_spec(each) is None
    ]
    return f"{missing[0]} (pip install 'zeh-spark[test]')" if missing else None


def _chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("google-chrome")


@contextmanager
def opened_browser() -> Iterator[Browser]:
    """A headless Chromium with an empty profile of its own."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_chromium(), args=list(_ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if reason := why_absent():
        pytest.skip(f"no {reason}")
    with opened_browser() as found:
        yield found


class Clock:
    """A clock that is set: an hour passes while a test publishes.

    For rates it stands in the middle of a minute, however long a test takes.
    """

    def __init__(self) -> None:
        self.behind = 0.0

    def seconds(self) -> float:
        return 100 * 3600.0 + 30 - self.behind

    def ms(self) -> int:
        return round((time.time() - self.behind) * 1000)


@dataclass(frozen=True)
class Site:
    """A publisher with a console, and the clock of its store and of its rates."""

    base: str
    store: ScratchStore
    clock: Clock
    app: Any

    @property
    def console(self) -> str:
        return f"{self.base}/console"

    def token(self, *grants: Grant, name: str = "test") -> str:
        """A new token with these rights, known to the publisher at once."""
        text = token_of(self.store, *grants, name=name)
        eventually(lambda: self.get(token=text).status_code != 401)
        return text

    def caller(self, feed: str, token: str) -> Caller:
        """What publishes to a feed with a token."""
        caller = Caller(f"{self.base}/{feed}")
        caller._session.headers["Authorization"] = f"Bearer {token}"
        return caller

    def visitor(self, token: str) -> Visitor:
        """A browser that has signed in."""
        visitor = Visitor(self)
        answer = visitor.post("/sign-in", token=token)
        assert answer.status_code == 303, answer.text
        return visitor

    def get(self, path: str = "", token: str | None = None, **headers: str) -> requests.Response:
        if token:
            headers["Authorization"] = f"Bearer {token}"
        return requests.get(
            f"{self.console}{path}", headers=headers, timeout=30, allow_redirects=False
        )


class Visitor:
    """What a browser sends: cookies, and forms with the hidden fields of the page before."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.session = requests.Session()
        self.session.headers["Accept"] = "text/html"

    def get(self, path: str = "") -> requests.Response:
        return self.session.get(self.site.console + path, timeout=30, allow_redirects=False)

    def post(self, path: str, at: str | None = None, **fields: str) -> requests.Response:
        """Send the form of the page at `path`, or at another path; fields may replace its own."""
        page = self.get(path if at is None else at).text
        hidden = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', page)
        data = {**{name: html.unescape(value) for name, value in hidden}, **fields}
        return self.send(path, data)

    def send(self, path: str, data: dict[str, str], **headers: str) -> requests.Response:
        return self.session.post(
            self.site.console + path, data=data, headers=headers, timeout=30, allow_redirects=False
        )


@contextmanager
def site(*, tokens: bool = True, **feeds: int) -> Iterator[Site]:
    """A publisher with a console, and an administrator's token unless it has none."""
    clock = Clock()
    store = ScratchStore(clock=clock.ms, **feeds)
    if tokens:
        token_of(store, *ADMIN, name="first")
    hosts = None if tokens else own_hosts("127.0.0.1", [])
    gate = Gate(store, is_open=not tokens, hosts=hosts)
    app = create_app(store, gate=gate, telemetry=Telemetry(seconds=clock.seconds), console=True)
    with running_publisher(store, app) as base:
        yield Site(base, store, clock, app)


@dataclass
class Shop:
    """An hour of a shop: its tills, its payments, and readers that follow or stay behind."""

    site: Site
    token: str
    batches: dict[str, int] = field(default_factory=dict)
    random: random.Random = field(default_factory=lambda: random.Random(7))

    def run(self) -> None:
        site = self.site
        for name, partitions in FEEDS.items():
            site.store.create(name, partitions)
        site.store.set_retention("orders", Retention(30 * 86_400_000, None, ("warehouse",)))
        for minute in range(MINUTES):
            site.clock.behind = 60.0 * (MINUTES - minute)
            wave = 1 + math.sin(minute / 9) / 2
            self.publish("orders", "till-1", round(9 * wave))
            self.publish("orders", "webshop", round(14 * wave))
            self.publish("payments", "psp-bridge", round(18 * wave))
            if minute % 5 == 0:
                self.publish("shipments", "warehouse-job", 12)
            if minute % 20 == 7:
                self.letter("orders-dead", minute)
            if minute > 50:
                self.read("payments", "ledger")
            if minute == 25:
                self.read("orders", "fraud-check")
            with patch.object(telemetry_api, "GAUGE_SECONDS", -1.0):  # each minute is a new look
                assert site.get(token=self.token).status_code == 200
        site.clock.behind = 0.0
        self.read("orders", "warehouse")
        self.publish("orders", "till-1", 3)
        self.refused()

    def publish(self, feed: str, producer: str, count: int) -> None:
        events = [self.event(feed, producer, number) for number in range(count)]
        who, caller = self.who(feed, producer), self.site.caller(feed, self.token)
        half = len(events) // 2
        chunks = [*rows(*events[:half]), *rows(*events[half:], partition=1)]
        caller.upload(who, chunks)
        caller.commit(who, chunks)

    def letter(self, feed: str, minute: int) -> None:
        row = {"data": f'{{"order": "A-{1000 + minute}", "total": NaN}}', "key": f"c-{minute}"}
        reason = "data: not JSON: NaN is no number (byte 29)"
        data = dead_letters.letter(reason, "webshop", minute, row)
        self.site.caller(feed, self.token).publish(self.who(feed, "webshop-dead"), data)

    def read(self, feed: str, cursor_set: str) -> None:
        n = FEEDS[feed]
        cursors = "&".join(f"cursor{each}=_first" for each in range(n))
        url = f"{self.site.base}/{feed}?n={n}&cursorset={cursor_set}&store_cursor=1&{cursors}"
        page = requests.get(url, headers={"Authorization": f"Bearer {self.token}"}, timeout=30)
        last = {line["partition"]: line["cursor"] for line in map(json.loads, page.iter_lines())
                if "cursor" in line}  # fmt: skip
        asked = "&".join(f"cursor{each}={cursor}" for each, cursor in last.items())
        url = f"{self.site.base}/{feed}?n={n}&cursorset={cursor_set}&store_cursor=1&{asked}"
        requests.get(url, headers={"Authorization": f"Bearer {self.token}"}, timeout=30)

    def refused(self) -> None:
        """A till whose day's batch came out differently, and a job that left out batches."""
        orders = self.site.caller("orders", self.token)
        published = Who(self.batches["orders", "till-1"] - 1, "till-1", "plain", n=2)  # type: ignore[index]
        assert orders.publish(published, {"order": "other"}).status == 409
        gap = Who(17, "nightly-export", "3f1c9a52", n=2)
        assert orders.publish(gap, {"order": "late"}).status == 409

    def who(self, feed: str, producer: str) -> Who:
        key: Any = (feed, producer)
        number = self.batches[key] = self.batches.get(key, 0) + 1
        return Who(number - 1, producer, "plain", n=FEEDS[feed])

    def event(self, feed: str, producer: str, number: int) -> dict[str, object]:
        pick = self.random
        order = f"{producer[:1].upper()}-{pick.randrange(10_000, 99_999)}"
        if feed == "payments":
            return {"order": order, "amount": pick.randrange(5, 400) / 2, "method": "card"}
        if feed == "shipments":
            return {"order": order, "carrier": pick.choice(["DHL", "Bring"]), "parcels": 1}
        items = [{"sku": f"SKU-{pick.randrange(100, 999)}", "count": pick.randrange(1, 4)}]
        return {"order": order, "customer": f"c-{pick.randrange(1, 999)}", "items": items}
