"""What somebody has changed behind the publisher's back is named: where, whose, and how."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.fix_audit import Vandal, difference, seven_chunks, whole
from tests.fix_publisher import Publisher
from tests.store_contract.writers import call, commit, large, upload

Change = Callable[[Vandal], object]


def sql(statement: str) -> Change:
    return lambda vandal: vandal.run(statement)


def swapped(one: int, other: int) -> Change:
    """The payloads of two chunks."""
    return sql(
        f"UPDATE recent_chunks SET blob = (SELECT sum(blob) FROM recent_chunks "
        f"WHERE g IN ({one}, {other})) - blob WHERE g IN ({one}, {other})"
    )


def of_receipt(hashed: bool, **changes: object) -> Change:
    """Of batch 1 of p."""
    return lambda vandal: vandal.change_receipt("p", 2, hashed=hashed, **changes)


def lines(g: int, old: bytes, new: bytes) -> Change:
    return lambda vandal: vandal.change_lines(g, lambda before: before.replace(old, new, 1))


P = "(SELECT id FROM producers WHERE name = 'p')"


def added(stamps: str, producer: str) -> Change:
    """A chunk at position 8 with the lines of the one at 7."""
    copy = (
        "INSERT INTO recent_chunks SELECT feed, 8, partition, events, size, time, '00000008', "
        f"blob, {producer}, batch, {stamps} FROM recent_chunks WHERE g = 7"
    )
    head = "UPDATE feeds SET head = 8, events = events + 1"
    return lambda vandal: [vandal.run(copy), vandal.run(head)]


FIRST = "position 1, batch 0 of producer 'p': "
FOURTH = "position 4, batch 1 of producer 'p': "
FIFTH = "position 5, batch 1 of producer 'p': "
CONTENT = "content: expected 402 events with digest [0-9a-f]{32}, found 402 with [0-9a-f]{32}"
NO_RECEIPT = "receipt: expected one that claims this position, found none"
BY_NUMBER = "the producer's receipts by number: expected "
AT_LEAST_7 = "the feed's last position: expected 7 at least, found "
TAMPERED: dict[str, tuple[Change, str]] = {
    "byte": (lines(4, b'"data":4', b'"data":8'), FOURTH + CONTENT),
    "header": (lines(4, b'"headers":{}', b'"headers":{"h":"1"}'), FOURTH + "content: .*"),
    "event-doubled": (
        lambda vandal: vandal.change_lines(4, lambda old: old + old.partition(b"\n")[0] + b"\n"),
        FOURTH + "last sequence number in partition 0: expected 401, found 402"),
    "event-lost": (
        lambda vandal: vandal.change_lines(4, lambda old: old.partition(b"\n")[2]),
        FIFTH + "last sequence number in partition 0: expected 401, found 400"),
    "dropped": (
        sql("DELETE FROM recent_chunks WHERE g = 4"),
        FOURTH + "events: expected some, found no such position"),
    "dropped-last": (
        sql("DELETE FROM recent_chunks WHERE g = 7"),
        f"position 7, batch 0 of producer 'p#n': {AT_LEAST_7}6"),
    "restored": (
        sql("UPDATE feeds SET head = 5, events = events + 1"),
        f"position 6, batch 0 of producer 'p#n': {AT_LEAST_7}5"),
    "swapped": (swapped(1, 4), FIRST + "content: expected 402 events .*"),
    "sequence": (
        sql("UPDATE recent_chunks SET sequence = sequence + 1 WHERE g = 4"),
        FOURTH + "sequence number in partition 0: expected 201, found 202"),
    "batch": (
        sql("UPDATE recent_chunks SET batch = 0 WHERE g = 4"),
        FOURTH + "whose events stand here: expected its own, found batch 0 of producer 'p'"),
    "producer": (
        sql("UPDATE recent_chunks SET producer = 'q' WHERE g = 5"),
        FIFTH + "whose .* found batch 1 of producer 'q'"),
    "stamp-negative": (
        sql("UPDATE recent_chunks SET sequence = -1 WHERE g = 5"),
        FIFTH + "the lines: .* a line without the publisher's stamps: .*"),
    "time": (
        sql("UPDATE recent_chunks SET time = time + 1 WHERE g = 4"),
        FOURTH + r"zeh-time: expected \d+, found \d+"),
    "time-back": (
        sql("UPDATE recent_chunks SET time = 1 WHERE g = 4"),
        FOURTH + r"zeh-time: expected at least \d+, .*, found 1"),
    "cursor": (
        sql("UPDATE recent_chunks SET tag = '00000000' WHERE g = 4"),
        FOURTH + "cursor after partition 0: expected 4[.][0-9a-f]{8}, found 4.00000000"),
    "added": (
        added("sequence + events", "producer"),
        f"position 8, batch 0 of producer 'p#n': {NO_RECEIPT}"),
    "unknown-producer": (
        added("0", "'r'"),
        "position 8, batch 0 of producer 'r': producer: expected one that the publisher's list "
        "has, found none there"),
    "digest": (
        of_receipt(False, digest="0" * 32),
        FOURTH + "the receipt's hash: expected .*, found .*"),
    "digest-hashed": (of_receipt(True, digest="0" * 32), FOURTH + "the producer's chain, .*"),
    "first-receipt-hashed": (
        lambda vandal: vandal.change_receipt("p", 1, hashed=True, digest="0" * 32),
        FIRST + "the hash that receipt 2 names for this one: .*"),
    "number": (
        lambda vandal: vandal.change_receipt("p", 1, hashed=True, number=9),
        f"position 1, producer 'p': {BY_NUMBER}8, found none below 9"),
    "receipt-removed": (
        sql(f"DELETE FROM receipts WHERE producer = {P} AND number = 2"), FOURTH + NO_RECEIPT),
    "first-receipt-removed": (
        sql(f"DELETE FROM receipts WHERE producer = {P} AND number = 1"),
        f"position 4, producer 'p': {BY_NUMBER}1, found none below 2"),
    "producer-removed": (
        sql("DELETE FROM producers WHERE name = 'q'"),
        "position 3, batch 0 of producer 'q': producer: .* found none there"),
    "count": (
        sql("UPDATE producers SET receipts = 3 WHERE name = 'p'"),
        f"position 7, producer 'p': {BY_NUMBER}3, found 2"),
    "next": (
        sql(f"UPDATE sequences SET next = next + 1 WHERE producer = {P} AND partition = 1"),
        "position 5, producer 'p': nextSequences, .*: expected {0: 402, 1: 402}, found "
        "{0: 402, 1: 403}"),
}  # fmt: skip


@pytest.mark.parametrize("kind", TAMPERED)
def test_first_difference_is_named(publisher: Publisher, vandal: Vandal, kind: str) -> None:
    """I see where to look, what should be there and what is."""
    change, expected = TAMPERED[kind]
    seven_chunks(publisher.store)
    change(vandal)
    found = difference(publisher.url)
    assert re.fullmatch(expected, found), found


def test_lower_one_of_two_differences_is_named(publisher: Publisher, vandal: Vandal) -> None:
    """The first is what I look into first, whether receipts or events show it."""
    seven_chunks(publisher.store)
    whole(publisher.url)
    vandal.run("UPDATE producers SET chain = 'x' WHERE name = 'q'")
    vandal.run("UPDATE recent_chunks SET sequence = sequence + 1 WHERE g = 4")
    feed_first = difference(publisher.url)
    vandal.change_receipt("p", 1, hashed=False, digest="0" * 32)
    receipt_first = difference(publisher.url)
    assert feed_first.startswith("position 4, batch 1 of producer 'p': sequence number")
    assert receipt_first.startswith("position 1, batch 0 of producer 'p': the receipt's hash")


def test_other_producers_are_not_judged(publisher: Publisher, vandal: Vandal) -> None:
    """I audit my own events, whatever others have lost."""
    seven_chunks(publisher.store)
    vandal.run("DELETE FROM recent_chunks WHERE g = 3")
    vandal.run("UPDATE producers SET chain = 'x' WHERE name = 'q'")
    vandal.change_lines(6, lambda old: old.replace(b'"data":6', b'"data":7', 1))
    tally = whole(publisher.url, "p")
    assert (3, 2, 1005) == (tally.batches, tally.producers, tally.events)
    vandal.run("UPDATE recent_chunks SET producer = 'q' WHERE g = 5")
    assert "position 5, batch 1 of producer 'p': whose events" in difference(publisher.url, "p")


def test_number_is_the_receipts_where_no_other_is_left(
    publisher: Publisher, vandal: Vandal
) -> None:
    """The numbers before it were removed with their events."""
    seven_chunks(publisher.store)
    publisher.store.remove("orders", 3)
    expected = "position 4, batch 1 of producer 'p': sequence number in partition 0: expected 201, "
    for shift, found in ((-1, 200), (2, 202)):
        vandal.run("UPDATE recent_chunks SET sequence = sequence + ? WHERE g = 4", shift)
        assert f"{expected}found {found}" == difference(publisher.url)


def test_lost_middle_receipt_of_an_empty_batch_is_named(
    publisher: Publisher, vandal: Vandal
) -> None:
    """Also where no event shows it."""
    for batch, chunks in enumerate([[large(0)], [], [large(0)]]):
        commit(publisher.store, call(batch), *(upload(each) for each in chunks))
    vandal.run("DELETE FROM receipts WHERE number = 2")
    expected = "position 2, producer 'p': the producer's receipts by number: expected 2, found 1, "
    assert [expected + "then 3"] * 2 == [difference(publisher.url, only) for only in (None, "p")]


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("receipts", [2])
def test_without_receipts_batches_are_judged_by_their_numbers(
    publisher: Publisher, vandal: Vandal
) -> None:
    """A gap still shows, and the next number of a partition."""
    commit(publisher.store, call(0), upload(large(1)))
    for batch in range(1, 5):
        commit(publisher.store, call(batch), upload(large(0)))
    whole(publisher.url)
    vandal.run("UPDATE sequences SET next = next + 1 WHERE partition = 1")
    following = "producer 'p': nextSequences of partition 1: expected 200, found 201"
    assert f"position 5, {following}" == difference(publisher.url)
    vandal.change_lines(2, lambda old: old.partition(b"\n")[2])
    gap = "sequence number in partition 0: expected 199, found 200"
    assert f"position 3, batch 2 of producer 'p': {gap}" == difference(publisher.url)
