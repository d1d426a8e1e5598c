"""A producer's receipts: what follows from what, and what may come in between."""

from __future__ import annotations

from itertools import pairwise

import msgspec

from tests.cases import each_case
from zeh_spark.service.store.batches import StoredRange, StoredReceipt, chained
from zeh_spark.tools.audit.chain import Chain, ListedState, state_of


def receipts(*batches: int | None, **changes: object) -> list[StoredReceipt]:
    """One for each batch with so many events, in partition 0 at a position of its own; None is an
    empty batch. Oldest first. `changes`: of the second one, before it is hashed.
    """
    made: list[StoredReceipt] = []
    number = position = 0
    for at, events in enumerate(batches, 1):
        ranges: tuple[StoredRange, ...] = ()
        if events:
            position += 1
            ranges = (StoredRange(0, number, number + events - 1, f"{position}.00000000"),)
            number += events
        receipt = StoredReceipt(
            number=at, producer="p", incarnation="a", batch=at - 1, run="r", level=1,
            events=events or 0, digest="0" * 32, digest_version=1, partition_count=2,
            ranges=ranges, positions=(position, position) if events else None, time=at,
            previous=made[-1].hash if made else "",
        )  # fmt: skip
        if at == 2:
            receipt = msgspec.structs.replace(receipt, **changes)
        made.append(msgspec.structs.replace(receipt, hash=chained(receipt)))
    return made


def state(of: list[StoredReceipt], **changes: object) -> ListedState:
    """Of a producer with these receipts."""
    numbers = {each.partition: each.last + 1 for receipt in of for each in receipt.ranges}
    newest = of[-1]
    right = {
        "producer": "p", "incarnation": newest.incarnation, "lastBatch": newest.batch,
        "run": newest.run, "level": newest.level, "receipts": newest.number, "chain": newest.hash,
        "time": newest.time, "deleted": False,
        "nextSequences": {str(partition): each for partition, each in numbers.items()},
    }  # fmt: skip
    return state_of({**right, **changes})


def judged(
    told: ListedState, given: list[StoredReceipt], newest: int | None = None, head: int = 99
) -> Chain:
    """Through all of it; what is wrong is kept in `wrong`."""
    chain = Chain(told, head)
    found = [chain.add(each) for each in reversed(given)]
    found.append(chain.end(told.receipts if newest is None else newest))
    chain.wrong = [str(each) for each in found if each]  # type: ignore[attr-defined]
    return chain


def wrong(*given: object, **more: object) -> list[str]:
    found: list[str] = judged(*given, **more).wrong  # type: ignore[arg-type,attr-defined] # as judged takes them
    return found


@each_case(
    ("changes", "expected"),
    [
        ({"level": 2}, "position 2, batch 1 of producer 'p': the receipt's level: expected at most "
         "1, as later, found 2"),
        ({"time": 9}, "position 2, batch 1 of producer 'p': the receipt's time: expected at most "
         "3, as later, found 9"),
        ({"batch": 2}, "position 2, batch 2 of producer 'p': a batch number of incarnation 'a': "
         "expected one below 2, which came later, found 2"),
        ({"number": 1}, "position 2, batch 1 of producer 'p': the hash before the first receipt: "
         "expected none, found "),
        ({"events": 3}, "position 2, batch 1 of producer 'p': events by the receipt's ranges: "
         "expected 3, found 2"),
        ({"positions": None}, "position 3, batch 1 of producer 'p': the receipt's positions: "
         "expected some, found None"),
        ({"producer": "q"}, "position 2, batch 1 of producer 'q': the receipt's producer: expected "
         "p, found q"),
        ({"previous": "x"}, "position 1, batch 0 of producer 'p': the hash that receipt 2 names "
         "for this one: expected "),
    ],
)  # fmt: skip
def test_receipt_that_does_not_fit_is_named(changes, expected):
    """Though its own hash is right."""
    made = receipts(1, 2, 3, **changes)

    assert expected in " | ".join(wrong(state(made), made))


@each_case("name", ["incarnation", "lastBatch", "run", "level", "chain", "time"])
def test_state_is_that_of_its_newest_receipt(name):
    made = receipts(1, 2)
    other = 7 if name in ("lastBatch", "level", "time") else "x"

    (found,) = wrong(state(made, **{name: other}), made)

    assert f"batch 1 of producer 'p': the producer's {name}, which its newest receipt" in found


def test_missing_receipts_are_named():
    """In the middle, at the end, at the beginning; not where they have expired."""
    made = receipts(1, 1, 1, 1)
    told = state(made)
    for given, words in (
        ([made[0], made[3]], "expected 2, found 1, then 4"),
        (made[:2], "expected 4, found 2"),
        (made[1:], "expected 1, found none below 2"),
        ([], "expected 4, found none"),
    ):
        assert wrong(told, given)[0].endswith(words)
    assert [] == wrong(told, made[1:], newest=1001)


@each_case("read", range(1, 6))
@each_case("kept", range(1, 6))
def test_commits_between_the_questions_are_no_difference(read, kept):
    """State, next numbers and receipts may each be newer than the one before, or old ones go."""
    made = receipts(1, 2, None, 1, 3)
    told = state(made[:read])
    for newer in range(read, 6):
        numbers = state(made[:newer]).next_sequences
        now = msgspec.structs.replace(told, next_sequences=numbers)
        # with as many receipts kept as are left here, 1,000 - 5 + kept more have come
        assert [] == wrong(now, made[5 - kept :], newest=1000 + 5 - kept, head=read)


@each_case("numbers", [{"0": 5}, {"0": 3}, {}, {"0": 6, "1": 1}])
def test_next_numbers_are_those_after_a_receipt(numbers):
    """No others, and of no other partition."""
    made = receipts(1, 2, 3)

    (found,) = wrong(state(made, nextSequences=numbers), made)

    assert found.startswith("position 3, producer 'p': nextSequences, which the receipts tell: ")


def test_later_batches_are_not_counted():
    """An audit ends where the feed ended when it began."""
    made = receipts(1, None, 1, None, 1, None)
    counts = [(each.within, each.empty) for each in
              (judged(state(made), made, head=head) for head in (1, 2, 3))]  # fmt: skip

    assert [(2, 1), (4, 2), (6, 3)] == counts
    assert all(one <= other for one, other in pairwise(counts))
