"""A program that publishes the numbers 0, 1, 2, … and keeps no state. Not a test.

Usage: produce.py URL TOTAL counted|named|buffered. It learns from the publisher alone how far it
is: by how many events its producer has published, or by repeating named batches. Prints the number
of each event that it was told to be published.
"""

import sys

from zeh_spark.errors import PublishError
from zeh_spark.publish import Producer

EACH = 7


def counted(producer: Producer, total: int) -> None:
    while (begin := producer.last.events) < total:
        with producer.batch() as batch:
            for number in range(begin, min(begin + EACH, total)):
                batch.add(number, key=number)
        told(range(begin, begin + batch.receipt.events))


def named(producer: Producer, total: int) -> None:
    for begin in range(0, total, EACH):
        numbers = range(begin, min(begin + EACH, total))
        with producer.batch(f"from-{begin}") as batch:
            for number in numbers:
                batch.add(number, key=number)
        told(numbers)


def buffered(producer: Producer, total: int) -> None:
    begin = producer.last.events
    with producer.buffered(linger=0, max_events=EACH) as events:
        sent = [events.send(number, key=number) for number in range(begin, total)]
        for number, future in enumerate(sent, begin):
            future.result()
            told(range(number, number + 1))


def told(numbers: range) -> None:
    sys.stdout.write("".join(f"{number}\n" for number in numbers))
    sys.stdout.flush()


def main(url: str, total: int, way: str) -> None:
    while True:
        try:
            {"counted": counted, "named": named, "buffered": buffered}[way](
                Producer(url, "till-7"), total
            )
            return
        except PublishError as exc:
            if exc.problem != "number-taken":  # by a request of a start that was killed
                raise


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
