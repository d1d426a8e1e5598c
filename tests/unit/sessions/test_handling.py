"""What tasks do with a handler, without Spark: Arrow batches in, verdicts out."""

import datetime
import threading
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from tests.cases import each_case
from tests.unit.sessions.tasks import batch, ran
from zeh_spark.errors import ProcessingError
from zeh_spark.spark.sessions.calling import Retry
from zeh_spark.spark.sessions.handling import Past

PAIR = StructType([StructField("a", IntegerType()), StructField("b", StringType())])
ARROW_PAIR = pa.struct([("a", pa.int32()), ("b", pa.string())])
LOCAL = datetime.datetime(2026, 1, 1, 12)
IN_UTC = LOCAL.replace(tzinfo=datetime.timezone.utc)
ONE, TWO = [("ordered", "a", 0)], [("ordered", "a", 0), ("ordered", "a", 1)]


@each_case(
    ("kind", "arrow", "value", "expected"),
    [
        (StringType(), pa.string(), "text", "text"),
        (StringType(), pa.string(), None, None),
        (LongType(), pa.int64(), 7, 7),
        (DoubleType(), pa.float64(), 1.5, 1.5),
        (DecimalType(4, 2), pa.decimal128(4, 2), Decimal("1.25"), Decimal("1.25")),
        (PAIR, ARROW_PAIR, {"a": 1}, {"a": 1, "b": None}),
        (ArrayType(PAIR), pa.list_(ARROW_PAIR), [None, {"b": "x"}], [None, {"a": None, "b": "x"}]),
        (MapType(StringType(), LongType()), pa.map_(pa.string(), pa.int64()), {"a": 1}, [("a", 1)]),
        (TimestampType(), pa.timestamp("us", "UTC"), IN_UTC, IN_UTC),
    ],
)
def test_results_of_the_promised_type_are_kept(kind, arrow, value, expected):
    (row,) = ran(lambda event: value, batch(ONE, arrow), result=kind)

    assert ("ok", expected) == (row["status"], row["result"])


@each_case(
    ("kind", "arrow", "value", "why"),
    [
        (StringType(), pa.string(), 7, "int for a STRING"),
        (StringType(), pa.string(), "\ud800", "surrogates not allowed"),
        (LongType(), pa.int64(), 2**70, "VALUE_OUT_OF_BOUNDS"),
        (LongType(), pa.int64(), 1.5, "can not accept object"),
        (DecimalType(4, 2), pa.decimal128(4, 2), Decimal("1.255"), "data loss"),
        (PAIR, ARROW_PAIR, {"a": 1, "c": 2}, "no member 'c'"),
        (PAIR, ARROW_PAIR, (1, "x"), "tuple for a STRUCT"),
        (TimestampType(), pa.timestamp("us", "UTC"), LOCAL, "without a time zone"),
        (TimestampNTZType(), pa.timestamp("us"), IN_UTC, "with a time zone for a TIMESTAMP_NTZ"),
        (DateType(), pa.date32(), LOCAL, "a datetime for a DATE"),
    ],
)
def test_a_result_of_another_type_fails_the_event_alone(kind, arrow, value, why):
    """Nothing of it is cut, rounded or guessed."""
    rows = ran(lambda event: value, batch(ONE, arrow), result=kind, retries=3)

    assert [("failed", 1, None)] == [(row["status"], row["attempt"], row["result"]) for row in rows]
    assert why in rows[0]["detail"]


def test_columns_pass_over_the_borders_of_batches():
    """What waits came in one Arrow batch, what releases it in another."""
    rows = ran(
        lambda event: f"{event.data}{event.headers}",
        batch([("failed", "a", 0), ("waiting", "a", 1)]),
        batch(ONE, control=["replay"], event=[{"data": "new", "headers": []}]),
        on_failure="hold",
        held={"a": (0, 0, 1)},
        past={("a", 0): {0: Past("failed", 1, "k")}},
    )

    assert [(0, "ok", 2, "new{}", "new"), (1, "ok", 1, "a1{'h': '1'}", "a1")] == [
        (row["number"], row["status"], row["attempt"], row["result"], row["event"]["data"])
        for row in rows
    ]
    assert [False, False] == [row["held"] for row in rows]


def test_an_error_of_many_lines_becomes_one_that_every_store_takes():
    def handler(event):
        raise ValueError("first\nsecond\x00\ud800" + "x" * 5_000)

    (row,) = ran(handler, batch(ONE))

    assert row["detail"].startswith("ValueError: first second ?xxx")
    assert 1_000 == len(row["detail"])


def test_a_call_is_repeated_at_once_with_the_same_key(tmp_path):
    """A passing fault needs nobody."""
    log = tmp_path / "calls"

    def handler(event):
        with log.open("a") as file:
            file.write(f"{event.attempt}{event.key} ")
        if event.attempt <= 1:
            raise ValueError("not yet")
        return "done"

    (row,) = ran(handler, batch(ONE), retries=2)

    assert ("ok", 2, "1k 2k ") == (row["status"], row["attempt"], log.read_text())


def refusing(event):
    raise Retry("the shop is closed")


def broken(event):
    raise ValueError("broken")


def stuck(event):
    threading.Event().wait()


@pytest.mark.parametrize(
    ("handler", "options", "message"),
    [
        (refusing, {}, "session 'a', number 0, attempt 1: Retry: the shop is closed. The batch"),
        (broken, {"on_failure": "fail"}, "attempt 1: ValueError: broken. on_failure='fail' stops"),
        (broken, {"retries": 9, "retry_seconds": 0.1}, "took over retry_time=0.1 seconds"),
        (broken, {"max_failures": 1}, "more than max_failures=1 events of a batch failed"),
        (stuck, {"timeout": 0.1}, "the handler took over timeout=0.1"),
    ],
)
def test_faults_that_are_not_the_events_end_the_task(handler, options, message):
    """No verdict leaves it, so that nothing is committed."""
    with pytest.raises(ProcessingError) as raised:
        ran(handler, batch(TWO), **options)
    assert message in str(raised.value)


class Connected:
    """A handler that writes down how it is called, and whether in the thread that opened it."""

    def __init__(self, log, fault=None):
        self.log, self.fault = log, fault

    def open(self):
        self.thread = threading.get_ident()
        self.write("open")

    def __call__(self, event):
        self.write(f"{event.number}")
        if self.fault:
            raise self.fault

    def close(self):
        self.write("close")

    def write(self, text):
        with self.log.open("a") as file:
            file.write(f"{text} " if threading.get_ident() == self.thread else "elsewhere ")


@pytest.mark.parametrize("timeout", [None, 60.0])
def test_a_handler_is_opened_used_and_closed_in_one_thread(tmp_path, timeout):
    """Once in a task, as many libraries need it; of several kinds too, and after a failure."""
    log = tmp_path / "life"
    one = Connected(log)
    for handlers in (one, {"pay": one, "ship": one}):
        batches = batch(TWO, kind=["pay", "ship"]), batch([("ordered", "b", 2)], kind=["pay"])
        assert 3 == len(ran(handlers, *batches, timeout=timeout))
    with pytest.raises(ProcessingError):
        ran(Connected(log, Retry("the shop is closed")), batch(ONE), timeout=timeout)

    assert "open 0 1 2 close " * 2 + "open 0 close " == log.read_text()


def test_an_event_without_a_kind_fails_by_name():
    """As one that was held before its column was added."""
    (row,) = ran({"pay": str}, batch(ONE))

    assert ("failed", "no handler for None") == (row["status"], row["detail"])


# Replays of events that tasks processed before, beside decisions and in sessions that are held


def replayed(*rows, past, held=None, on_failure="hold", handler=lambda event: "done"):
    """(number, status, attempt) of what comes of (status, number, control, attempts) rows."""
    given = batch(
        [(each[0], "a", each[1]) for each in rows],
        control=[each[2] for each in rows],
        attempts=[each[3] for each in rows],
        attempt=[1 if each[0] == "control" else None for each in rows],
    )
    found = ran(
        handler,
        given,
        on_failure=on_failure,
        held={"a": held} if held else {},
        past={("a", number): {0: said} if said else {} for number, said in past.items()},
    )
    return [(row["number"], row["status"], row["attempt"]) for row in found]


def from_the_fifth(event):
    if event.attempt < 5:
        raise ValueError("not yet")
    return "done"


@each_case(
    ("rows", "options", "expected"),
    [
        # one beside a decision is ignored, which comes first and processes what waits
        *(([("failed", 1, "", 1), ("waiting", 2, "", 0), ("control", 1, word, 0),
            ("ordered", 1, "replay", 0), ("ordered", 2, "replay", 0)],
           {"held": (0, 1, 1), "past": {1: Past("failed", 1, "k"), 2: Past("waiting", 0, "k")}},
           [(1, "control", None), (1, *first), (2, "ok", 1), (1, "ignored", None),
            (2, "ignored", None)])
          for word, first in (("retry", ("ok", 2)), ("skip", ("skipped", 1)))),
        # a replay that waits is processed when its session is released, also in the same batch
        ([("failed", 3, "", 1), ("waiting", 4, "", 0), ("ordered", 1, "replay", 0),
          ("ordered", 3, "replay", 0)],
         {"held": (0, 3, 1), "past": {3: Past("failed", 1, "k")}},
         [(1, "waiting", 0), (3, "ok", 2), (4, "ok", 1), (1, "ok", 1)]),
        # each replay continues the attempts of the one before, so that the newest verdict has the
        # highest
        ([("ordered", 1, "replay", 0)] * 3,
         {"past": {1: Past("failed", 3, "k")}, "on_failure": "dead-letter",
          "handler": from_the_fifth},
         [(1, "failed", 4), (1, "ok", 5), (1, "ignored", None)]),
        # an event and its replay in one batch are processed once: the first processing is noted for
        # the replays that come after it
        ([("ordered", 1, "", 0), ("ordered", 1, "replay", 0)],
         {"past": {1: None}, "on_failure": "dead-letter"}, [(1, "ok", 1), (1, "ignored", None)]),
    ],
)  # fmt: skip
def test_what_comes_of_replays(rows, options, expected):
    assert expected == replayed(*rows, **options)
