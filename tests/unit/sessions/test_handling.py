"""What tasks do with a handler, without Spark: Arrow batches in, verdicts out."""

from __future__ import annotations

import datetime
import threading
from dataclasses import replace
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark import cloudpickle
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

from tests.unit.sessions.tasks import PLAN, batch, verdicts
from zeh_spark.errors import ProcessingError
from zeh_spark.sessions.calling import Retry
from zeh_spark.sessions.handling import Past, task

PAIR = StructType([StructField("a", IntegerType()), StructField("b", StringType())])
ARROW_PAIR = pa.struct([("a", pa.int32()), ("b", pa.string())])
UTC = datetime.timezone.utc
KIND = pa.field("kind", pa.string())


@pytest.mark.parametrize(
    ("kind", "arrow", "value", "expected"),
    [
        (StringType(), pa.string(), "text", "text"),
        (StringType(), pa.string(), None, None),
        (LongType(), pa.int64(), 7, 7),
        (DoubleType(), pa.float64(), 1.5, 1.5),
        (DecimalType(4, 2), pa.decimal128(4, 2), Decimal("1.25"), Decimal("1.25")),
        (PAIR, ARROW_PAIR, {"a": 1}, {"a": 1, "b": None}),
        (ArrayType(PAIR), pa.list_(ARROW_PAIR), [None, {"b": "x"}], [None, {"a": None, "b": "x"}]),
        (
            MapType(StringType(), LongType()),
            pa.map_(pa.string(), pa.int64()),
            {"a": 1},
            [("a", 1)],
        ),
        (
            TimestampType(),
            pa.timestamp("us", "UTC"),
            datetime.datetime(2026, 1, 1, tzinfo=UTC),
            datetime.datetime(2026, 1, 1, tzinfo=UTC),
        ),
    ],
)
def test_results_of_the_promised_type_are_kept(kind, arrow, value, expected):
    (row,) = verdicts(lambda event: value, kind, arrow, [("ordered", "a", 0)])

    assert ("ok", expected) == (row["status"], row["result"])


@pytest.mark.parametrize(
    ("kind", "arrow", "value", "why"),
    [
        (StringType(), pa.string(), 7, "int for a STRING"),
        (StringType(), pa.string(), "\ud800", "surrogates not allowed"),
        (LongType(), pa.int64(), 2**70, "VALUE_OUT_OF_BOUNDS"),
        (LongType(), pa.int64(), 1.5, "can not accept object"),
        (DecimalType(4, 2), pa.decimal128(4, 2), Decimal("1.255"), "data loss"),
        (PAIR, ARROW_PAIR, {"a": 1, "c": 2}, "no member 'c'"),
        (PAIR, ARROW_PAIR, (1, "x"), "tuple for a STRUCT"),
        (
            TimestampType(),
            pa.timestamp("us", "UTC"),
            datetime.datetime(2026, 1, 1),
            "without a time zone",
        ),
        (
            TimestampNTZType(),
            pa.timestamp("us"),
            datetime.datetime(2026, 1, 1, tzinfo=UTC),
            "with a time zone for a TIMESTAMP_NTZ",
        ),
        (DateType(), pa.date32(), datetime.datetime(2026, 1, 1, 12), "a datetime for a DATE"),
    ],
)
def test_a_result_of_another_type_fails_the_event_alone(kind, arrow, value, why):
    """Nothing of it is cut, rounded or guessed."""
    rows = verdicts(lambda event: value, kind, arrow, [("ordered", "a", 0)], retries=3)

    assert [("failed", 1, None)] == [(row["status"], row["attempt"], row["result"]) for row in rows]
    assert why in rows[0]["detail"]


def test_columns_pass_over_the_borders_of_batches():
    """What waits came in one Arrow batch, what releases it in another."""
    stored = [("failed", "a", 0), ("waiting", "a", 1)]
    replay = batch([("ordered", "a", 0)], pa.string()).to_pydict()
    replay = {**replay, "control": ["replay"], "event": [{"data": "new", "headers": []}]}
    schema = batch(stored, pa.string()).schema

    plan = replace(
        PLAN,
        handlers=cloudpickle.dumps({None: lambda event: f"{event.data}{event.headers}"}),
        on_failure="hold",
        held={"a": (0, 0, 1)},
        past={("a", 0): {0: Past("failed", 1, "k")}},
    )
    batches = [batch(stored, pa.string()), pa.RecordBatch.from_pydict(replay, schema)]
    rows = [row for out in task(plan)(iter(batches)) for row in out.to_pylist()]

    assert [(0, "ok", 2, "new{}", "new"), (1, "ok", 1, "a1{'h': '1'}", "a1")] == [
        (row["number"], row["status"], row["attempt"], row["result"], row["event"]["data"])
        for row in rows
    ]
    assert [False, False] == [row["held"] for row in rows]


def test_an_error_of_many_lines_becomes_one_that_every_store_takes():
    def handler(event):
        raise ValueError("first\nsecond\x00\ud800" + "x" * 5_000)

    (row,) = verdicts(handler, StringType(), pa.string(), [("ordered", "a", 0)])

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

    (row,) = verdicts(handler, StringType(), pa.string(), [("ordered", "a", 0)], retries=2)

    assert ("ok", 2, "1k 2k ") == (row["status"], row["attempt"], log.read_text())


def refusing(event):
    raise Retry("the shop is closed")


def broken(event):
    raise ValueError("broken")


@pytest.mark.parametrize(
    ("handler", "options", "message"),
    [
        (refusing, {}, "session 'a', number 0, attempt 1: Retry: the shop is closed. The batch"),
        (broken, {"on_failure": "fail"}, "attempt 1: ValueError: broken. on_failure='fail' stops"),
        (broken, {"retries": 9, "retry_seconds": 0.1}, "took over retry_time=0.1 seconds"),
        (broken, {"max_failures": 1}, "more than max_failures=1 events of a batch failed"),
        (
            lambda event: threading.Event().wait(),
            {"timeout": 0.1},
            "the handler took over timeout=0.1",
        ),
    ],
)
def test_faults_that_are_not_the_events_end_the_task(handler, options, message):
    """No verdict leaves it, so that nothing is committed."""
    with pytest.raises(ProcessingError) as raised:
        verdicts(
            handler,
            StringType(),
            pa.string(),
            [("ordered", "a", 0), ("ordered", "a", 1)],
            **options,
        )
    assert message in str(raised.value)


@pytest.mark.parametrize("timeout", [None, 60.0])
def test_a_handler_is_opened_used_and_closed_in_one_thread(tmp_path, timeout):
    """Once in a task: connections of many libraries belong to the thread that opened them."""
    log = tmp_path / "life"

    class Connected:
        def open(self):
            self.thread = threading.get_ident()
            self.write("open")

        def __call__(self, event):
            self.write(f"{event.number}")

        def close(self):
            self.write("close")

        def write(self, text):
            with log.open("a") as file:
                file.write(f"{text} " if threading.get_ident() == self.thread else "elsewhere ")

    rows = [("ordered", "a", 0), ("ordered", "a", 1)]
    verdicts(Connected(), StringType(), pa.string(), rows, [("ordered", "b", 2)], timeout=timeout)

    assert "open 0 1 2 close " == log.read_text()


def test_a_handler_of_several_kinds_is_opened_and_closed_once(tmp_path):
    log = tmp_path / "life"

    class Connected:
        def open(self):
            self.write("open")

        def __call__(self, event):
            self.write("call")

        def close(self):
            self.write("close")

        def write(self, text):
            with log.open("a") as file:
                file.write(f"{text} ")

    given = batch([("ordered", "a", 0), ("ordered", "a", 1)], pa.string())
    kinds = pa.RecordBatch.from_pydict(
        {**given.to_pydict(), "kind": ["pay", "ship"]}, given.schema.set(6, KIND)
    )
    one = Connected()
    run = task(replace(PLAN, handlers=cloudpickle.dumps({"pay": one, "ship": one})))
    assert 2 == sum(out.num_rows for out in run(iter([kinds])))
    assert "open call call close " == log.read_text()


def test_an_event_without_a_kind_fails_by_name():
    """As one that was held before its column was added."""
    run = task(replace(PLAN, handlers=cloudpickle.dumps({"pay": str})))

    (row,) = (row for out in run(iter([batch([("ordered", "a", 0)], pa.string())]))
              for row in out.to_pylist())  # fmt: skip

    assert ("failed", "no handler for None") == (row["status"], row["detail"])


def test_a_handler_is_closed_after_a_failure_of_its_task(tmp_path):
    class Connected:
        def __call__(self, event):
            raise Retry("the shop is closed")

        def close(self):
            (tmp_path / "closed").touch()

    with pytest.raises(ProcessingError):
        verdicts(Connected(), StringType(), pa.string(), [("ordered", "a", 0)])
    assert (tmp_path / "closed").exists()
