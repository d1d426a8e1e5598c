"""What I do to a session from a terminal: `zeh-spark sessions end | release | retry | skip`."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("google.protobuf", reason="protobuf is not installed")

from tests.fix_cli import call, succeed
from tests.fix_lake import why_absent
from tests.fix_raw_server import NO_IDENTITY, ok, refused
from tests.fix_sessions import AT, needs_batches
from zeh_spark import sessions

KINDS = {"order": ["placed", "paid", "shipped"], "return": ["sent", "checked"]}


@pytest.mark.slow
def test_i_end_one_session_and_release_another(orders):
    """A session has two parts and a kind: the command takes the headers that the query reads. What
    is not named stays as it is. A command that I repeat says so, and publishes nothing. [SB-08]
    """
    options = {
        "session": ["headers['shop']", "headers['order']"],
        "kind": "headers['kind']",
        "steps": KINDS,
        "gap_timeout": None,
    }
    for order in ("a", "b", "c"):
        orders.add((order, "paid"), (order, "shipped"), shop="x", kind="order")
    orders.run(**options)
    assert ([], []) == (orders.named, orders.dead)

    broken = call("sessions", "end", orders.url, "--data", "{")
    assert (2, True) == (broken.returncode, "event cannot be published: " in broken.stderr)
    end = ("sessions", "end", orders.url, "shop=x", "order=a", "kind=order", "--key", "a")
    assert "Published close of shop=x order=a kind=order.\n" == succeed(*end)
    assert "Published before, at " in succeed(*end)
    succeed("sessions", "release", orders.url, "kind=order", "shop=x", "order=b")
    orders.run(**options)
    assert "Published before, at " in succeed(*end)
    orders.add(("a", "placed"), ("b", "placed"), ("c", "placed"), shop="x", kind="order")
    orders.run(**options)

    released = [("b", "paid"), ("b", "shipped")]
    assert released == orders.named[:2]
    assert [("c", each) for each in KINDS["order"]] == orders.named[2:]
    assert [("closed", each) for each in ("paid", "placed", "shipped")] == sorted(
        (each.dead.reason, each.headers["step"])
        for each in orders.dead
        if "1:a" in each.dead.session
    )
    assert 2 == orders.count("controls")
    controls = succeed("tail", orders.url, "--from", "first", "--no-follow", "--headers")
    words = [json.loads(line)["headers"].get("session-control") for line in controls.splitlines()]
    assert ["close", "release"] == sorted(filter(None, words))


class Theirs:
    """A feed of another publisher: steps of orders in one partition, without stamps."""

    def __init__(self, server):
        self.url, self._events = server.address, []
        server.respond = self._page

    def add(self, *steps, **headers):
        for order, step in steps:
            given = {"order": order, "step": str(step), "at": str(len(self._events)), **headers}
            self._events.append({"partition": 0, "headers": given, "data": {}})

    def _page(self, request):
        if "cursor0" not in request.query:
            return refused(404, "no such page") if "/producers/" in request.path else NO_IDENTITY
        at = {"_first": 0, "_last": len(self._events)}.get(cursor := request.query["cursor0"])
        at = int(cursor) if at is None else at
        lines = [*self._events[at:], {"partition": 0, "cursor": str(len(self._events))}]
        return ok("".join(f"{json.dumps(line)}\n" for line in lines).encode())


@pytest.mark.slow
@needs_batches
def test_i_decide_about_sessions_of_a_publisher_that_is_not_mine(processing, raw_server):
    """It takes no events of mine, so I have a control feed, which the query reads beside theirs. It
    does not hold the clock, and nothing of it is a dead letter. A decision is published once; one
    about another attempt does nothing. [SB-07, SB-08]
    """
    pytest.importorskip("delta", reason=why_absent())
    theirs, control = Theirs(raw_server), processing.orders.create("orders-control", 1)
    processing.options["on_failure"] = "hold"

    def run():
        spark = processing.orders.spark
        feed = spark.readStream.format("zeroeventhub").option("headers", "_all")
        shop = (
            feed.option("partitionCount", "1").load(theirs.url).selectExpr("*", "'shop' AS source")
        )
        mine = feed.load(control).selectExpr("*", "'by hand' AS source")
        frame = sessions.in_order(
            shop.unionByName(mine), "headers['order']", "headers['step']", time=AT,
            sources=["shop"], source="source", gap_timeout="100 seconds", processing=True,
        )  # fmt: skip
        processing.write(frame)

    theirs.add(("a", 0), ("s", 0), ("e", 1), ("g", 1))
    theirs.add(("a", 1), ("s", 1), fail="1")
    theirs.add(("a", 2), ("s", 2))
    run()
    assert [("a", 1), ("a", 2), ("s", 1), ("s", 2)] == [
        each[:2] for each in processing.unresolved()
    ]
    assert 4 == call("sessions", "retry", "http://127.0.0.1:1/x", "order=a", "--number", "step=1",
                     "--attempt", "1").returncode  # fmt: skip
    at_theirs = call("sessions", "end", theirs.url, "order=e")
    assert (1, True) == (
        at_theirs.returncode,
        "only a publisher of zeh_spark takes" in at_theirs.stderr,
    )

    retry = ("sessions", "retry", control, "order=a", "--number", "step=1", "--attempt")
    assert "Published retry of order=a.\n" == succeed(*retry, "7") == succeed(*retry, "1")
    told = json.loads(succeed(*retry, "1", "--json"))
    assert ("repeated", "retry") == (told["outcome"], told["headers"]["session-control"])
    succeed("sessions", "skip", control, "order=s", "--number", "step=1", "--attempt", "1")
    succeed("sessions", "end", control, "order=e")
    theirs.add(("a", 3), at="1000")
    run()

    assert [(0, 1), (1, 2), (2, 1), (3, 1)] == processing.done("a")
    assert [(1, "skipped", 1), (2, "ok", 1)] == processing.verdicts("s", "skipped", "ok")[1:]
    assert [] == processing.unresolved()
    dead = processing.table().where("status = 'dead'").select("dead.session", "dead.reason")
    assert [("e", "closed"), ("g", "gap")] == sorted(map(tuple, dead.collect()))
    ignored = "retry of number 1, attempt 7: the session is held by number 1, attempt 1"
    assert [ignored] == processing.details("ignored", "a")
