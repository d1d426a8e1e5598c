"""The thread that writes to SQLite: turns, errors, its end, and how it keeps its log short."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import OperationalError

from tests.patience import Halt
from zeh_spark.errors import StoreError
from zeh_spark.service.sql.schema import VERSION
from zeh_spark.service.sqlite import writer as sqlite_writer
from zeh_spark.service.sqlite.store import _engine
from zeh_spark.service.sqlite.writer import ReaderBarrier, Writer, _sqlite

Work = Callable[[Connection], Any]


class Desk:
    """A writer on a file, and threads that write through it."""

    def __init__(self, directory: Path) -> None:
        self.log = directory / "test.db-wal"
        self.engine: Engine = _engine(directory / "test.db", "BEGIN IMMEDIATE")
        self.reading: Engine = _engine(directory / "test.db", None)
        with self.reading.connect() as connection:
            connection.exec_driver_sql("PRAGMA journal_mode = WAL")
            connection.exec_driver_sql(f"PRAGMA user_version = {VERSION}")
        self.gate = ReaderBarrier()
        self.writer = Writer(self.engine, self.log, self.gate)
        self.writer.write(lambda c: c.exec_driver_sql("CREATE TABLE t (name TEXT, body BLOB)"))
        self._threads = ThreadPoolExecutor(64)

    def insert(self, name: str, size: int = 0) -> Work:
        return lambda connection: connection.exec_driver_sql(
            "INSERT INTO t VALUES (?, zeroblob(?))", (name, size)
        )

    def later(self, work: Work, *, durable: bool = True) -> Future[Any]:
        """Queued when this returns."""
        queue = self.writer._durable if durable else self.writer._uploads
        before = len(queue)
        done = self._threads.submit(self.writer.write, work, durable=durable)
        while len(queue) == before and not done.done():
            pass
        return done

    @contextmanager
    def held(self) -> Iterator[None]:
        """The writer is at work meanwhile, and takes nothing else."""
        halt = Halt()
        holding = self._threads.submit(self.writer.write, halt, durable=False)
        halt.reached.wait(30)
        try:
            yield
        finally:
            halt.go.set()
            holding.result(30)

    def names(self) -> list[str]:
        with self.reading.connect() as connection:
            return list(connection.exec_driver_sql("SELECT name FROM t ORDER BY rowid").scalars())

    def close(self) -> None:
        self.writer.close()
        self._threads.shutdown()
        self.engine.dispose()
        self.reading.dispose()


def done(waiting: list[Future[Any]]) -> None:
    for each in waiting:
        each.result(30)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    desk.close()


def test_works_are_done_in_the_order_in_which_they_came(desk: Desk) -> None:
    """First come, first served, among commits and among uploads; and I get what I asked for."""
    assert 7 == desk.writer.write(lambda connection: desk.insert("a")(connection) and 7)
    assert ["a"] == desk.names()
    with desk.held():
        waiting = [desk.later(desk.insert(f"{number}")) for number in range(50)]
    done(waiting)
    assert ["a", *(f"{number}" for number in range(50))] == desk.names()


def test_commits_and_uploads_take_turns(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream of commits does not keep uploads out, nor the other way round."""
    monkeypatch.setattr(sqlite_writer, "_GROUP", 1)
    with desk.held():
        waiting = [desk.later(desk.insert(f"c{number}")) for number in range(3)]
        waiting += [desk.later(desk.insert(f"u{number}"), durable=False) for number in range(3)]
    done(waiting)
    assert ["c0", "u0", "c1", "u1", "c2", "u2"] == desk.names()


def test_work_that_fails_undoes_itself_alone(desk: Desk) -> None:
    """In one transaction with others, each has its own end."""

    def failing(connection: Connection) -> None:
        desk.insert("half")(connection)
        raise ValueError("no")

    with desk.held():
        waiting = [desk.later(work) for work in (desk.insert("a"), failing, desk.insert("b"))]
    assert ["None", "no", "None"] == [str(each.exception(30)) for each in waiting]
    assert ["a", "b"] == desk.names()


def test_nobody_hears_of_success_before_the_commit(desk: Desk) -> None:
    """While a transaction is under way, all that belong to it wait, and nobody sees a part."""
    halt = Halt()
    with desk.held():
        first = desk.later(desk.insert("a"))
        second = desk.later(halt)
    halt.reached.wait(30)
    assert (False, []) == (first.done(), desk.names())
    halt.go.set()
    second.result(30)
    first.result(30)
    assert ["a"] == desk.names()


def test_transaction_that_the_database_gives_up_fails_for_all(desk: Desk) -> None:
    """What SQLite rolled back as a whole is not acknowledged in part."""
    with desk.held():
        works = desk.insert("a"), lambda c: c.exec_driver_sql("ROLLBACK"), desk.insert("b")
        waiting = [desk.later(each) for each in works]
    assert all([each.exception(30) for each in waiting])
    desk.writer.write(desk.insert("c"))
    assert ["c"] == desk.names()


def test_a_full_disk_is_called_by_its_name(desk: Desk) -> None:
    """SQLite gives up the whole transaction then, with all savepoints: I read why."""
    desk.writer.write(lambda connection: _sqlite(connection).execute("PRAGMA max_page_count = 8"))
    with pytest.raises(OperationalError, match="database or disk is full"):
        desk.writer.write(desk.insert("a", 1 << 20))
    desk.writer.write(desk.insert("b"))
    assert ["b"] == desk.names()


def test_closing_does_what_was_asked_for_before(desk: Desk) -> None:
    """Nothing that is under way is dropped, and what comes later is refused."""
    with desk.held():
        waiting = [desk.later(desk.insert(f"{number}"), durable=number % 2) for number in range(9)]
        closing = threading.Thread(target=desk.writer.close)
        closing.start()
    closing.join(30)
    assert [None] * 9 == [each.exception(30) for each in waiting]
    with pytest.raises(StoreError, match="closed"):
        desk.writer.write(desk.insert("late"))
    assert 9 == len(desk.names())


@pytest.fixture
def short_log(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sqlite_writer, "LOG_BYTES", 1 << 18)
    monkeypatch.setattr(sqlite_writer, "_READERS_SECONDS", 0.05)
    return 1 << 18


def test_log_is_emptied_when_it_is_long(desk: Desk, short_log: int) -> None:
    """However much is written, the log stays short."""
    desk.writer._limit = short_log
    sizes = []
    for number in range(40):
        desk.writer.write(desk.insert(f"{number}", 100_000))
        desk.writer.write(lambda connection: None)  # behind it, the log was looked at
        sizes.append(desk.log.stat().st_size)
    assert max(sizes) <= short_log + 200_000
    assert 40 == len(desk.names())


def test_reader_in_the_way_delays_nobody_for_long(desk: Desk, short_log: int) -> None:
    """The log grows while somebody reads on and on, is tried again, and is emptied behind them."""
    desk.writer._limit = short_log
    with desk.gate.reader(), desk.reading.connect() as reader:
        reader.exec_driver_sql("BEGIN")
        reader.exec_driver_sql("SELECT count(*) FROM t").scalar_one()
        for number in range(8):
            desk.writer.write(desk.insert(f"{number}", 100_000))
        grown = desk.log.stat().st_size
        reader.exec_driver_sql("COMMIT")
    for number in range(8):
        desk.writer.write(desk.insert(f"{number}", 100_000))
    desk.writer.write(lambda connection: None)
    assert grown > 2 * short_log
    assert desk.log.stat().st_size <= short_log + 200_000


def test_gate_keeps_new_readers_out_and_waits_for_the_others() -> None:
    """Whoever reads may end; whoever comes waits."""
    gate, order = ReaderBarrier(), []
    entered, closed = threading.Event(), threading.Event()

    def late_reader() -> None:
        with gate.reader():
            order.append("late")

    def closer() -> None:
        closed.set()
        with gate.closed(30) as alone:
            order.append(f"alone: {alone}")
            late.start()
            late.join(0.1)  # it must not get in
            order.append("opens")

    late, closing = threading.Thread(target=late_reader), threading.Thread(target=closer)
    with gate.reader():
        entered.set()
        closing.start()
        closed.wait(30)
        order.append("reader ends")
    closing.join(30)
    late.join(30)
    assert ["reader ends", "alone: True", "opens", "late"] == order


def test_gate_gives_up_on_readers_that_stay() -> None:
    """A reader that hangs stops no writing; whatever goes wrong, nobody is locked out for ever."""
    gate = ReaderBarrier()
    with gate.reader():
        with gate.closed(0.01) as alone:
            assert not alone
        with gate.reader():
            pass
    with gate.closed(0.01) as alone:
        assert alone
    with pytest.raises(ValueError, match="no"), gate.closed(1):
        raise ValueError("no")
    with pytest.raises(ValueError, match="no"), gate.reader():
        raise ValueError("no")
    with gate.closed(0.01) as alone:
        assert alone
