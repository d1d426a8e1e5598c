"""What administrators change in the console: asked, confirmed, done once, and written down."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

import pytest
from requests import Response

from tests.cases import each_case
from tests.fix_console import Site, Visitor, site
from zeh_spark.errors import StoreError
from zeh_spark.service.console import retention_form
from zeh_spark.service.store.interface import NAMES_MS, Retention
from zeh_spark.service.store.token_rights import ADMIN, Grant, Right
from zeh_spark.testing import publish

DAY = 86_400_000
RETENTION = "/feeds/orders/retention"


@pytest.fixture
def console() -> Iterator[Site]:
    with site(orders=1) as found:
        publish(found.store, "orders", range(10))
        found.store.save_cursors("orders", "ware/house", 1, {0: "0.00000000"})
        yield found


@pytest.fixture
def ada(console: Site) -> Visitor:
    return console.visitor(console.token(*ADMIN, name="ada"))


def hidden_fields(page: str) -> dict[str, str]:
    found = re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', page)
    return {name: html.unescape(value) for name, value in found}


def ask_for(ada: Visitor, **fields: str) -> Response:
    """The answer to the form of a retention, which is otherwise empty."""
    empty = {"age": "", "size": "", "readers": "", "names": "90d", "producers": ""}
    return ada.post(RETENTION, **{**empty, **fields})


def acts(console: Site) -> list[tuple[str, str, str, str]]:
    """Who did what in the console, the newest first."""
    found = [each for each in console.store.acts() if each.via == "console"]
    return [(each.actor, each.action, each.feed, each.subject) for each in found]


def test_a_cursor_set_is_deleted_after_a_question(console, ada):
    path, query = "/feeds/orders/delete-cursor-set", "?name=ware/house"
    linked = f'href="/console{path}{query}"' in ada.get("/feeds/orders").text
    asked = ada.get(path + query)
    before = [each.name for each in console.store.cursor_sets("orders")]
    done = ada.post(path, at=path + query)
    again = ada.send(path, hidden_fields(asked.text))
    said = [ada.get(f"/feeds/orders?done={each}").text for each in ("cursor-set", "same")]

    assert ["The cursor set is deleted." in each for each in said] == [True, False]
    assert 'href="/console/feeds/orders#consumers">Cancel<' in asked.text
    assert (linked, asked.status_code, before) == (True, 200, ["ware/house"])
    assert done.headers["Location"] == "/console/feeds/orders?done=cursor-set"
    assert again.headers["Location"] == "/console/feeds/orders?done=same"
    assert console.store.cursor_sets("orders") == []
    assert acts(console) == [("ada", "delete-cursor-set", "orders", "ware/house")]


def test_retention_is_changed_after_it_was_shown_what_that_removes(console, ada):
    console.clock.behind = -2.0 * 86_400  # two days later
    shown = ask_for(ada, age="1d", size="10g", names="30d")
    assert shown.status_code == 200
    assert [each in shown.text for each in ("10 events", "the newest 10 GiB")] == [True, True]
    assert console.store.retention("orders") == Retention()

    done = ada.send(RETENTION, hidden_fields(shown.text))

    assert done.headers["Location"] == "/console/feeds/orders?done=retention"
    assert console.store.retention("orders") == Retention(DAY, 10 << 30, (), 30 * DAY)
    assert acts(console) == [("ada", "set-retention", "orders", "")]


def test_a_field_that_is_wrong_is_named_and_kept(console, ada):
    answer = ask_for(ada, age="soon", size="1g", readers="a b")

    assert answer.status_code == 400
    assert ("Age: &#39;soon&#39;" in answer.text, 'value="soon"' in answer.text) == (True, True)
    assert acts(console) == []


def test_a_retention_that_somebody_changed_meanwhile_is_confirmed_again(console, ada):
    """I never confirm a change other than the one that I was shown: nothing is rounded."""
    hour = DAY // 24
    console.store.set_retention("orders", Retention(47 * hour))
    shown = ask_for(ada, age="30h")
    console.store.set_retention("orders", Retention(26 * hour))

    answer = ada.send(RETENTION, hidden_fields(shown.text))

    assert ("younger than 47 h" in shown.text, "younger than 30 h" in shown.text) == (True, True)
    assert (answer.status_code, "younger than 26 h" in answer.text) == (200, True)
    assert console.store.retention("orders") == Retention(26 * hour)


def test_the_same_retention_is_no_change(console, ada):
    answer = ask_for(ada)

    assert answer.headers["Location"] == "/console/feeds/orders?done=same"
    assert acts(console) == []


@each_case(
    "rule",
    [
        Retention(),
        Retention(90_000, 3 << 20, ("a", "b/c"), None),
        Retention(1, 1, (), NAMES_MS, 180 * DAY),
        Retention(DAY * 30, 5 << 40, ("x",), 1_500),
        Retention(readers=("ware house", " a", "b,c")),
    ],
)
def test_a_form_keeps_a_retention_as_it_is(rule):
    assert retention_form.parsed(retention_form.texts(rule)) == rule


@each_case(
    "fields",
    [
        {"age": "30"},
        {"age": "0d"},
        {"age": "400000d"},
        {"size": "x"},
        {"names": "never"},
        {"producers": "never"},
        {"age": "9" * 400 + "d"},
        {"size": "9" * 30 + "t"},
        {"readers": "a\u202eb"},
        {"readers": "n" * 51},
    ],
)
def test_a_text_that_is_no_retention_is_refused(fields):
    with pytest.raises(StoreError):
        retention_form.parsed(fields)


def test_a_producer_is_deleted_once_its_name_is_typed(console, ada):
    path = "/feeds/orders/producers/test/delete"
    wrong = ada.post(path, name="tset")
    assert (wrong.status_code, console.store.producer("orders", "test").deleted) == (400, False)

    done = ada.post(path, name="test")
    again = ada.post(path, name="test")

    assert done.headers["Location"] == "/console/feeds/orders?done=producer"
    assert console.store.producer("orders", "test").deleted
    assert (again.status_code, "Nothing to delete" in again.text) == (200, True)
    assert acts(console) == [("ada", "delete-producer", "orders", "test")]


def test_a_change_of_retention_is_listed_with_what_it_changed(console, ada):
    console.store.set_retention("orders", Retention(30 * DAY, 10 << 30))
    console.store.set_retention("orders", Retention(7 * DAY, 10 << 30))

    page = ada.get("/acts").text

    assert re.findall(r"(\w+) <code>([^<]* → [^<]*)</code>", page) == [
        ("age", "30d → 7d"), ("age", "none → 30d"), ("size", "none → 10g"),
    ]  # fmt: skip


def test_the_changes_of_commands_and_of_the_console_are_listed_together(console, ada):
    path = "/feeds/orders/delete-cursor-set"
    ada.post(path, at=f"{path}?name=ware/house")
    page = ada.get("/acts").text

    assert "delete-cursor-set" in page
    assert "create-feed" in page
    assert ">read:*, consume:*/*, publish:*/*, audit:*<" in page.replace("</code>", "<")
    assert re.findall(r'<span>(\S+)<span class="small">console</span>', page) == ["ada"]


PATHS = (
    "/feeds/orders/delete-cursor-set",
    "/feeds/orders/producers/test/delete",
    RETENTION,
)


def test_whoever_is_no_administrator_is_neither_offered_a_change_nor_allowed_one(console):
    """Every right on one feed is not enough: a change concerns all who use it."""
    token = console.token(*(Grant(right, "orders") for right in Right))
    visitor = console.visitor(token)
    (key,) = set(re.findall(r'form_key" value="(\w+)"', visitor.get().text))
    page = visitor.get("/feeds/orders").text

    assert not re.search(r"/delete|/retention|/acts", page)
    assert visitor.get("/acts").status_code == 403
    for path in PATHS:
        assert visitor.get(path).status_code == 403
        assert visitor.send(path, {"form_key": key, "name": "test"}).status_code == 403
    assert acts(console) == []


def test_a_change_needs_the_key_of_its_session(console, ada):
    for path in PATHS:
        fields = {"name": "test", "age": "1d", "size": "", "readers": "", "names": ""}
        assert ada.send(path, fields).status_code == 403

    assert acts(console) == []


def test_without_tokens_nobody_signs_in_or_changes_anything():
    """Whoever is on this machine need not be who may open the store."""
    with site(tokens=False) as found:
        found.store.create("orders", 1)
        found.store.save_cursors("orders", "ledger", 1, {0: "0.00000000"})
        visitor = Visitor(found)
        overview = visitor.get()
        (key,) = set(re.findall(r'form_key" value="(\w+)"', visitor.get("/sign-in").text))

        answer = visitor.send(
            "/feeds/orders/delete-cursor-set", {"form_key": key, "name": "ledger"}
        )

        assert (overview.status_code, "No tokens: read-only" in overview.text) == (200, True)
        assert (answer.status_code, "token create NAME --admin" in answer.text) == (403, True)
        assert "/delete-cursor-set" not in visitor.get("/feeds/orders").text
        assert acts(found) == []
