"""The console over raw HTTP: who sees what, how a browser signs in, what each answer has."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import requests

from tests.cases import each_case
from tests.fix_console import Site, Visitor, site
from tests.fix_publish import Who
from tests.fix_publisher import new_feed, served
from tests.patience import eventually
from tests.scratch_store import ScratchStore
from zeh_spark.publisher import create_app
from zeh_spark.service.store.token_rights import ADMIN, Grant, Right, parse_grant
from zeh_spark.testing import publish, running_publisher

HTML = {"Accept": "text/html"}

PROTECTING = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; img-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


@pytest.fixture
def console() -> Iterator[Site]:
    with site(orders=2, secret=2) as found:
        yield found


# Who sees what


@each_case(
    ("right", "there"),
    [
        (Right.READ, ">orders<"),
        (Right.AUDIT, ">orders<"),
        (Right.CONSUME, "This token sees no feeds"),
    ],
)
def test_a_token_sees_the_feeds_for_which_it_has_a_right(console, right, there):
    page = console.get(token=console.token(Grant(right, "orders"), name=right.name)).text

    assert there in page
    assert "secret" not in page


def test_a_token_that_publishes_sees_its_own_producer_and_its_refusals(console):
    """Whoever runs a job sees why its batches are refused, and nothing of other jobs."""
    admin = console.token(*ADMIN)
    for producer in ("till-1", "till-2"):
        caller = console.caller("orders", admin)
        assert caller.publish(Who(7, producer), "late").short == (409, "batch-gap")
    token = console.token(parse_grant(Right.PUBLISH, "orders/till-1"))

    overview = console.get(token=token).text
    own = console.get("/feeds/orders/producers/till-1", token)
    other = console.get("/feeds/orders/producers/till-2", token)

    assert 'href="/console/feeds/orders/producers/till-1"' in overview
    assert ("acceptGap=a@-1:7" in overview, "till-2" in overview) == (True, False)
    assert (own.status_code, other.status_code) == (200, 403)
    assert "till-2" not in console.get("/refusals", token).text


def test_a_token_that_sees_no_refusals_is_not_told_that_there_were_none(console):
    admin = console.token(*ADMIN)
    assert console.caller("orders", admin).publish(Who(7, "till-1"), "late").status == 409
    token = console.token(Grant(Right.READ, "orders"))

    for path in ("", "/refusals"):
        assert "that this token may see" in console.get(path, token).text


def test_a_page_of_a_feed_has_the_producers_and_consumers_of_the_token_alone(console):
    caller = console.caller("orders", console.token(*ADMIN))
    for producer in ("till-1", "till-2"):
        assert caller.publish(Who(0, producer), "event").status == 200
    for name in ("warehouse", "ledger"):
        console.store.save_cursors("orders", name, 1, {0: "0.00000000"})
    grants = [
        Grant(Right.READ, "orders"),
        parse_grant(Right.PUBLISH, "orders/till-1"),
        parse_grant(Right.CONSUME, "orders/ledger"),
    ]

    some = console.get("/feeds/orders", console.token(*grants)).text
    every = console.get("/feeds/orders", console.token(Grant(Right.AUDIT, "orders"))).text

    assert [each in some for each in ("till-1", "till-2", "ledger", "warehouse")] == [
        True, False, True, False,
    ]  # fmt: skip
    assert all(each in every for each in ("till-1", "till-2", "ledger", "warehouse"))


def test_repeats_are_shown_to_whoever_sees_all_producers(console):
    """What would have been a duplicate without idempotence can be seen."""
    caller = console.caller("orders", console.token(*ADMIN))
    for who in (Who(), Who(), Who(1, run="r2")):
        assert caller.publish(who, "event").status == 200
    assert caller.commit(Who(2)).short == (403, "fenced")
    auditor = console.token(Grant(Right.AUDIT, "orders"))
    reader = console.token(Grant(Right.READ, "orders"))

    def counts(token):
        page = console.get("/feeds/orders", token).text
        return re.findall(r"<dt>(Repeated|Calls)[a-z ]*</dt><dd>(\d+)<", page)

    eventually(lambda: counts(auditor) == [("Repeated", "1"), ("Calls", "1")])
    assert counts(reader) == []


def test_events_need_the_right_to_read(console):
    """Whoever sees that batches came need not see what is in them."""
    publish(console.store, "orders", ["confidential"])
    auditor = console.token(Grant(Right.AUDIT, "orders"))

    assert "confidential" not in console.get("/feeds/orders", auditor).text
    for path in ("/feeds/orders/partitions/0", "/feeds/orders/dead-letters"):
        assert console.get(path, auditor).status_code == 403


def test_what_is_wrong_with_the_publisher_is_told_to_auditors_alone(console):
    """Details name addresses and disks; a stranger learns that it is not ready."""
    console.app.state.drain()

    reader = console.get(token=console.token(Grant(Right.READ, "orders"))).text
    auditor = console.get(token=console.token(Grant(Right.AUDIT, "*"))).text

    assert ("Not ready" in reader, "stopping" in reader) == (True, False)
    assert "stopping" in auditor


# Signing in


def test_a_browser_signs_in_and_out(console):
    """The page that was asked for follows; afterwards the cookie is worth nothing."""
    visitor = Visitor(console)
    asked = visitor.get("/feeds/orders")
    token = console.token(*ADMIN)
    answer = visitor.post("/sign-in", at="/feeds/orders", token=token)
    cookie = answer.headers["Set-Cookie"]

    assert (asked.status_code, "Sign in" in asked.text) == (401, True)
    assert (answer.status_code, answer.headers["Location"]) == (303, "/console/feeds/orders")
    assert ("HttpOnly" in cookie, "SameSite=strict" in cookie, token in cookie) == (
        True, True, False,
    )  # fmt: skip
    assert visitor.get("/feeds/orders").status_code == 200

    before = dict(visitor.session.cookies)
    assert visitor.post("/sign-out", at="").status_code == 303
    visitor.session.cookies.update(before)
    assert visitor.get().status_code == 401


def test_a_wrong_token_begins_no_session(console):
    visitor = Visitor(console)

    for text in ("zeh_00000000_wrong", "", "x" * 4000):
        answer = visitor.post("/sign-in", token=text)

        assert (answer.status_code, "Set-Cookie" in answer.headers) == (401, False)
        assert 'role="alert"' in answer.text


@each_case(
    "back",
    ["//evil.example", "https://evil.example", "/\\evil.example", "/..//x", "/a?b", "/\r\nX: 1"],
)
def test_signing_in_leads_nowhere_else(console, back):
    token = console.token(*ADMIN, name=f"ada{len(console.store.tokens())}")
    answer = Visitor(console).post("/sign-in", token=token, back=back)

    assert (answer.status_code, answer.headers["Location"]) == (303, "/console")


def test_a_revoked_token_ends_its_session_within_seconds(console):
    text = console.token(*ADMIN, name="ada")
    visitor = console.visitor(text)
    assert visitor.get().status_code == 200

    console.store.revoke_token("ada")

    eventually(lambda: visitor.get().status_code == 401)


def test_a_cookie_opens_only_the_console(console):
    """The API takes tokens alone, so that no web page can use a session for it."""
    visitor = console.visitor(console.token(*ADMIN))

    answer = visitor.session.get(f"{console.base}/orders?n=2&cursor0=_first", timeout=30)

    assert answer.status_code == 401


@each_case("host", ["[", "a:b:c", "a:99999999", ""])
def test_a_malformed_host_is_asked_to_sign_in(console, host):
    """With tokens any Host is served, also one that is no address."""
    answer = console.get(**HTML, Host=host)

    assert (answer.status_code, "form_key" in answer.text) == (401, True)


# Forms of other pages


def test_a_form_of_another_page_is_refused(console):
    """Neither without the key of the session, nor with that of another one, nor from elsewhere."""
    token = console.token(*ADMIN)
    visitor, other = console.visitor(token), console.visitor(token)
    (key,) = set(re.findall(r'name="form_key" value="(\w+)"', visitor.get().text))
    (theirs,) = set(re.findall(r'name="form_key" value="(\w+)"', other.get().text))

    answers = [
        visitor.send("/sign-out", {}),
        visitor.send("/sign-out", {"form_key": theirs}),
        visitor.send("/sign-out", {"form_key": key}, Origin="null"),
        visitor.send("/sign-out", {"form_key": key}, Origin="http://evil.example"),
        visitor.send("/sign-out", {"form_key": key}, **{"Sec-Fetch-Site": "cross-site"}),
    ]

    assert [each.status_code for each in answers] == [403] * 5
    assert visitor.get().status_code == 200
    assert visitor.send("/sign-out", {"form_key": key}, Origin=console.base).status_code == 303


def test_a_body_that_is_no_form_is_refused(console):
    visitor = Visitor(console)
    fields = "&".join(f"a{each}=1" for each in range(60))
    for data, kind, status in [
        (b"{}", "application/json", 415),
        (b"x" * 20_000, "application/x-www-form-urlencoded", 413),
        (fields.encode(), "application/x-www-form-urlencoded", 413),
    ]:
        answer = visitor.session.post(
            f"{console.console}/sign-in", data=data, headers={"Content-Type": kind}, timeout=30
        )

        assert answer.status_code == status


# What each answer has


def test_each_answer_has_the_headers_that_protect_it(console):
    """Also problems, which are pages for a browser."""
    token = console.token(*ADMIN)
    paths = {
        200: ["", "/refusals", "/feeds/orders", "/feeds/orders/partitions/0", "/acts", "/sign-in",
              "/feeds/orders/dead-letters", "/feeds/orders/producers/nobody", "/style.css",
              "/icon.svg"],
        400: ["/feeds/orders/partitions/9", "/feeds/orders?partition=x"],
        404: ["/feeds/nowhere", "/no/such/page"],
    }  # fmt: skip
    for path, status in [(path, status) for status, some in paths.items() for path in some]:
        answer = console.get(path, token, **HTML)

        assert (path, answer.status_code) == (path, status)
        assert {name: answer.headers.get(name) for name in PROTECTING} == PROTECTING
        if answer.headers["Content-Type"].startswith("text/html"):
            assert not re.search(r"<script|\sstyle=|\son\w+=", answer.text)


def test_a_program_gets_problems_as_documents(console):
    answer = console.get("/feeds/nowhere", console.token(*ADMIN))

    assert answer.headers["Content-Type"] == "application/problem+json"


# Where it is


def test_a_publisher_that_another_app_mounts_has_no_console_unless_it_asks():
    """Whatever mounts the app decides who may see what."""
    with running_publisher(ScratchStore()) as base:
        assert requests.get(f"{base}/console", timeout=30).status_code == 404


def test_links_lead_to_where_the_app_is_mounted():
    from starlette.applications import Starlette
    from starlette.routing import Mount

    store = ScratchStore(orders=1)
    app = Starlette(routes=[Mount("/feeds/v1", create_app(store, console=True))])
    with running_publisher(store, app) as base:
        page = requests.get(f"{base}/feeds/v1/console", timeout=30).text
        links = re.findall(r'(?:href|src|action)="(/[^"]*)"', page)
        answers = [requests.get(base + each, timeout=30).status_code for each in links]

    assert links
    assert set(answers) == {200}


@pytest.mark.parametrize(
    ("words", "is_there"),
    [
        ((), True),
        (("--no-console",), False),
        (("--host", "0.0.0.0", "--allow-anyone"), False),
        (("--host", "0.0.0.0", "--allow-anyone", "--console"), True),
    ],
)
def test_serve_has_a_console_on_this_machine_unless_told_otherwise(tmp_path, words, is_there):
    with served(new_feed(tmp_path / "feeds.db"), *words) as (base, process):
        assert process.stdout.readline().endswith("/orders  1 partition\n")
        assert not is_there or process.stdout.readline().endswith(f"{base}/console\n")
        address = base.replace("0.0.0.0", "127.0.0.1")
        answer = requests.get(f"{address}/console", timeout=30)

    assert (answer.status_code == 200) is is_there
