"""A feed with a bit of everything, its audit, and somebody who changes the store's file."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing

import msgspec
import pytest

from tests.fix_publisher import Publisher
from tests.store_contract.writers import call, commit, large, upload
from zeh_spark.publisher import Store
from zeh_spark.service.store.batches import StoredReceipt, chained
from zeh_spark.tools.audit.auditing import Audit
from zeh_spark.tools.audit.findings import Difference, Tally
from zeh_spark.wire.upload_format import Chunker, StagedChunk, frame_of, lines_of


def audited(url: str, only: str | None = None) -> Difference | Tally:
    return Audit(url, only).run()


def whole(url: str, only: str | None = None) -> Tally:
    """What was checked, where nothing may be wrong."""
    found = audited(url, only)
    assert isinstance(found, Tally), str(found)
    return found


def difference(url: str, only: str | None = None) -> str:
    found = audited(url, only)
    assert isinstance(found, Difference), str(found)
    return str(found)


def events(partition: int, *given: tuple[Mapping[str, str], bytes]) -> StagedChunk:
    """Events with headers, as a chunk."""
    chunker = Chunker()
    for headers, data in given:
        assert not chunker.add(partition, headers, data)
    (only,) = chunker.close()
    return only


def seven_chunks(store: Store) -> None:
    """Positions 1, 2: batch 0 of p; 3: batch 0 of q; 4, 5: batch 1 of p; 6: batch 1 of q; 7: p#n.
    Even batches of p are in both partitions, 200 and some events in each.
    """
    commit(store, call(0), upload(large(0, b"1"), large(1, b"2")))
    commit(store, call(0, producer="q"), upload(large(0, b"3")))
    commit(store, call(1), upload(large(0, b"4"), large(1, b"5")))
    commit(store, call(1, producer="q"), upload(large(0, b"6")))
    commit(store, call(0, producer="p#n", incarnation="batch"), upload(large(1, b"7")))


class Vandal:
    """Writes to a store's file as no publisher would."""

    def __init__(self, file: str) -> None:
        self._database = sqlite3.connect(file, isolation_level=None, timeout=30)

    def run(self, statement: str, *values: object) -> list[tuple[object, ...]]:
        return self._database.execute(statement, values).fetchall()

    def change_lines(self, g: int, change: Callable[[bytes], bytes]) -> None:
        """Of the chunk at a position, whose row tells their size: others would not be served."""
        blob = "SELECT blob FROM recent_chunks WHERE g = ?"
        ((frame,),) = self.run(f"SELECT frame FROM blobs WHERE id = ({blob})", g)
        assert isinstance(frame, bytes)
        before = lines_of(frame)
        after = change(before)
        assert before != after
        self.run(f"UPDATE blobs SET frame = ? WHERE id = ({blob})", frame_of(after), g)
        self.run("UPDATE recent_chunks SET size = ? WHERE g = ?", len(after), g)

    def change_receipt(
        self, producer: str, number: int, /, *, hashed: bool, **changes: object
    ) -> None:
        """Its document; with the hash of the changed one if it is to be `hashed`."""
        here = "producer = (SELECT id FROM producers WHERE name = ?) AND number = ?"
        ((document,),) = self.run(f"SELECT document FROM receipts WHERE {here}", producer, number)
        assert isinstance(document, bytes)
        receipt = msgspec.structs.replace(
            msgspec.json.decode(document, type=StoredReceipt), **changes
        )
        if hashed:
            receipt = msgspec.structs.replace(receipt, hash=chained(receipt))
        changed = msgspec.json.encode(receipt)
        assert changed != document
        statement = f"UPDATE receipts SET document = ? WHERE {here}"
        self.run(statement, changed, producer, number)

    def close(self) -> None:
        self._database.close()


@pytest.fixture
def vandal(publisher: Publisher) -> Iterator[Vandal]:
    """At the store of the test's publisher."""
    with closing(Vandal(publisher.store_url.removeprefix("sqlite:///"))) as vandal:
        yield vandal


@pytest.fixture
def kept(receipts: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many receipts the test's publisher keeps; the audit holds that, too."""
    monkeypatch.setattr("zeh_spark.tools.audit.chain.RECEIPTS", receipts)
    return receipts
