"""Process the events of sessions: each arrow of the flow chart of seed 003 (1.2), on Spark."""

from __future__ import annotations

import json
import threading
from functools import partial

import pytest

from tests.fix_datasource import read_plainly
from tests.fix_lake import why_absent
from tests.fix_spark import in_batches
from tests.patience import PATIENCE

pytest.importorskip("delta", reason=why_absent())
pytest.importorskip("google.protobuf", reason="protobuf is not installed")

from zeh_spark import sessions
from zeh_spark.errors import OptionError


def stuck(event: sessions.Event) -> None:
    """It never comes back."""
    threading.Event().wait()


@pytest.mark.slow
def test_every_arrow_of_the_chart(processing):
    """Next in sequence, deferred, last, failed to the dead letters, deferred found (003, 1.2); and
    a deferred event that fails, or is the last one. [SB-06, SB-07]

    Each kind has its handler: the seed's Processor1 and Processor2 by ActivityInfo (1.1); another
    kind fails. A query that fails commits nothing, and the batch is processed when it starts again;
    one that is committed, and that Spark forgets in a crash, calls nothing. Failed events, and
    those that cannot be ordered, go to a feed by a query of their own, from the table.
    """
    orders = processing.orders
    add = partial(orders.add, kind="pay")
    given = {"frame": {"last": "headers['last']"}, "activity": "headers['kind']"}
    handlers = {"pay": processing.shop, "ship": lambda event: "shipped"}
    add(("a", 1))  # deferred
    add(("b", 0))
    add(("b", 1), fail="9")  # fails: to the dead letters, and the session continues
    add(("b", 2))
    add(("c", 0), last="0")  # the last: the session is closed
    add(("c", 1))
    add(("d", 0), fail="9", last="0")  # the last one fails
    add(("e", 1), fail="9")  # deferred
    add(("e", 3), last="3")  # deferred, and the last one
    told = processing.fail(**given, handler={"pay": stuck}, timeout="1 second")
    assert "the handler took over timeout=1 seconds" in told
    processing.run(**given, handler=handlers)
    assert [[], []] == [processing.verdicts(name) for name in "ae"]
    add(("a", 0))  # the deferred one is found
    add(("e", 2), ("e", 0))  # the deferred ones are found: one fails, and the last one closes
    add(("e", 4), ("f", 0), ("f", 3))
    orders.add(("f", 1), kind="ship")
    orders.add(("f", 2), kind="fly", last="2")
    processing.run(**given, handler=handlers)
    orders.forget(1)
    processing.run(**given, handler=handlers)

    assert {
        "a": [(0, "ok", 1), (1, "ok", 1)],
        "b": [(0, "ok", 1), (1, "failed", 1), (2, "ok", 1)],
        "c": [(0, "ok", 1), (1, "dead", None)],
        "d": [(0, "failed", 1)],
        "e": [(0, "ok", 1), (1, "failed", 1), (2, "ok", 1), (3, "ok", 1), (4, "dead", None)],
        "f": [(0, "ok", 1), (1, "ok", 1), (2, "failed", 1), (3, "dead", None)],
    } == {name: processing.verdicts(name) for name in "abcdef"}
    calls = processing.shop.calls()
    assert {"a": [0, 1], "b": [0, 1, 2], "c": [0], "d": [0], "e": [0, 1, 2, 3], "f": [0]} == {
        name: [step for order, step, _ in calls if order == name] for name in "abcdef"
    }
    assert ['a0: {"order":"a"}', 'a1: {"order":"a"}'] == [
        row.result.replace('": ', '":') for row in processing.rows("a")
    ]
    assert ["shipped"] == [row.result for row in processing.rows("f", "ok")][1:]
    failed = [("b", 1), ("d", 0), ("e", 1), ("f", 2)]
    assert [(*each, "failed") for each in failed] == processing.unresolved()

    url = orders.create("dead")
    letters = orders.spark.readStream.format("delta").load(processing.at)
    letters = letters.where("status IN ('failed', 'dead')").select("headers", "data", "dead")
    query = in_batches(letters, sessions.to_feed(url, producerId="dead"), orders.folder / "dead")
    assert query.awaitTermination(PATIENCE)
    reasons = [json.loads(row["data"])["reason"] for row in read_plainly(url, "data")]
    closed, by_kind = sorted(each for each in reasons if "'f'" in each)
    assert closed.startswith("closed: session 'f', number 3, expected 3")
    assert by_kind == "failed: session 'f', number 2: no handler for 'fly'"
    assert 7 == len(reasons)


def test_wrong_arguments_are_named(processing):
    """Before anything runs."""
    given = {"table": "t", "name": "n", "checkpointLocation": "c"}
    for arguments, message in [
        ({"handler": 7}, "must be a function of an Event"),
        ({"handler": str, "activity": "data"}, "belong together"),
        ({"handler": {"a": str}}, "belong together"),
        ({"handler": str, "on_failure": "ignore"}, "on_failure='ignore' must be one of"),
        ({"handler": str, "result": "TEXTS"}, "result='TEXTS' must be a type"),
        ({"handler": str, "retries": -1}, "retries=-1"),
        ({"handler": str, "merge_keys": ["a"]}, "'merge_keys' is not for you"),
        ({"handler": threading.Lock().acquire}, "cannot be pickled"),  # as of an open connection
    ]:
        with pytest.raises(OptionError, match=message.replace("(", "\\(")):
            sessions.process(**{**given, **arguments})


def test_frames_without_processing_are_refused(processing, spark):
    """The frame has to say which event of which session each row is."""
    given = {"table": processing.at, "name": "n", "checkpointLocation": "c"}
    with pytest.raises(OptionError, match=r"in_order\(…, processing=True\)"):
        sessions.process(str, **given)(spark.sql("SELECT 'ordered' AS status, NULL AS dead"), 0)
