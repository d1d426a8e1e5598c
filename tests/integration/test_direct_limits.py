"""Limits of plans and chunks: more is refused at once, and each gives its place back."""

import json
import threading
from contextlib import closing

import pytest
import requests

from tests.fix_publisher import Burst
from tests.patience import PATIENCE, eventually
from tests.scratch_store import ScratchStore
from zeh_spark.errors import StoreError
from zeh_spark.publisher import create_app
from zeh_spark.testing import publish, running_publisher

PLANS, ANSWERS = 48, 192
"""What one client has of the 64 and 256 that the documentation names: the rest is for others."""

MORE = 8


class HeldStore(ScratchStore):
    """A store whose readers are held unless `go` is set."""

    def __init__(self):
        super().__init__(orders=2)
        self.go = threading.Event()
        self.go.set()
        self.damaged = False
        publish(self, "orders", [1, 2, 3, 4])

    def before_read(self, what, feed):
        assert self.go.wait(PATIENCE)
        if what == "frames" and self.damaged:
            raise StoreError("a frame cannot be read")


@pytest.fixture
def store():
    return HeldStore()


@pytest.fixture
def base(store):
    with running_publisher(store, create_app(store, cache_bytes=0)) as base:
        yield base
        store.go.set()


def burst(base, what, body, count):
    """So many requests for a plan, or for chunks."""
    text = json.dumps(body)
    head = f"POST /orders/{what} HTTP/1.1\r\nHost: h\r\nContent-Length: {len(text)}\r\n\r\n"
    return closing(Burst(base, [(head + text).encode()] * count))


@pytest.fixture
def asked(base):
    """What to ask for, by path."""
    plan = {"n": 2, "cursors": {"0": "_first", "1": "_first"}}
    ranges = requests.post(f"{base}/orders/plan", json=plan, timeout=30).json()["ranges"]
    wanted = [{name: each[name] for name in ("partition", "from", "to")} for each in ranges]
    return {"plan": plan, "chunks": {"n": 2, "ranges": wanted}}


def held(store, base, what, body, most):
    """Hold as many as possible; return how many were answered, and some refusals."""
    store.go.clear()
    with burst(base, what, body, most + MORE) as sent:
        eventually(lambda: len(sent.answers(503)) >= MORE)
        store.go.set()
        eventually(lambda: len(sent.answers(200)) + len(sent.answers(503)) == most + MORE)
        return len(sent.answers(200)), sent.answers(503)


both = pytest.mark.parametrize(("what", "most"), [("plan", PLANS), ("chunks", ANSWERS)])


@both
def test_what_is_beyond_the_limit_is_refused_at_once(store, base, asked, what, most):
    """A busy publisher stays quick, and says when to come back; those under way go on. Mistakes of
    some clients do not take it away from others: what is refused gives its place back.
    """
    wrong = json.dumps(asked[what]).replace("0", "7").replace("_first", "1.00000000")
    with requests.Session() as session:
        for number in range(most + MORE):
            name, body = [("orders", wrong), ("orders", "{"), ("nowhere", "{}")][number % 3]
            answer = session.post(f"{base}/{name}/{what}", data=body, timeout=30)
            assert answer.status_code in {400, 404, 409}
    answered, refused = held(store, base, what, asked[what], most)
    assert (most, MORE) == (answered, len(refused))
    for each in refused:
        assert "\r\nretry-after: 1\r\n" in each.lower()
        assert "reads-busy" in each


@both
def test_those_that_break_off_give_their_places_back(store, base, asked, what, most):
    """Clients that die do not take the publisher away from others."""
    store.go.clear()
    with burst(base, what, asked[what], most + MORE) as sent:
        eventually(lambda: len(sent.answers(503)) >= MORE)
    store.go.set()
    eventually(lambda: held(store, base, what, asked[what], most)[0] == most)


def test_answers_that_the_store_breaks_off_give_their_places_back(store, base, asked):
    """A damaged range does not take the publisher away from readers of others."""
    store.damaged = True
    with burst(base, "chunks", asked["chunks"], ANSWERS) as sent:
        eventually(lambda: len(sent.answers()) == ANSWERS)
        assert 0 == len(sent.answers(503))
    store.damaged = False
    eventually(lambda: held(store, base, "chunks", asked["chunks"], ANSWERS)[0] == ANSWERS)


def test_plans_that_wait_leave_their_places_to_others(store, base, asked):
    """Idle streams do not take the publisher away from those that have something to read."""
    ends = requests.post(f"{base}/orders/plan", json=asked["plan"], timeout=30).json()["ends"]
    waiting = {"n": 2, "cursors": ends, "wait": 50}
    with burst(base, "plan", waiting, PLANS) as sent:
        eventually(lambda: held(store, base, "plan", asked["plan"], PLANS)[0] == PLANS)
        assert [] == sent.answers()
        publish(store, "orders", [5])
        eventually(lambda: len(sent.answers(200)) == PLANS)


def test_no_proxy_may_change_an_answer_with_chunks(base, asked):
    """A proxy that compresses would make an answer that tasks refuse."""
    answer = requests.post(f"{base}/orders/chunks", json=asked["chunks"], timeout=30)
    directives = {each.strip() for each in answer.headers["Cache-Control"].split(",")}
    assert {"no-store", "no-transform"} == directives
