"""What brokers answer to repeated, missing and late batches: `tests/data/broker_answers.json`.

    pip install --target .cache/pulsar-client pulsar-client==3.13.0
    PYTHONPATH=.cache/pulsar-client python -m benchmarks.broker_answers > FILE

It takes five minutes, and needs `mvn`. An answer is what the broker says to the last call of a
scenario, and how many events this call has added. `tests/integration/test_broker_scenarios.py` has
the same scenarios for our publisher.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import kafka, pulsar
from benchmarks.kafka_wire import Kafka, Who

TOPIC = "flights"
FORGETS = "producer.id.expiration.ms=2000\nproducer.id.expiration.check.interval.ms=500"
FORGOTTEN_AFTER = 10
"""Seconds after which a broker with these settings has forgotten a producer."""

Told = tuple[str, tuple[str, int]]
"""A scenario, and its answer."""


class KafkaProducer:
    """Sends event N as the batch with the number N."""

    def __init__(self, broker: Kafka, name: str | None = None) -> None:
        self._broker, self._name = broker, name
        self.who = broker.init_producer(name)

    def sent(self, *numbers: int) -> KafkaProducer:
        for number in numbers:
            self.send(number)
        return self

    def send(self, number: int, *more: int, data: str = "") -> tuple[str, int]:
        broker, who, name = self._broker, self.who, self._name
        before = broker.end(TOPIC)
        if name:
            broker.join_transaction(name, who, TOPIC)
        events = [data or f"event {each}" for each in (number, *more)]
        said, offset = broker.produce(TOPIC, who, number, *events, transactional=name)
        added = len(events) if said == "NONE" and offset >= before else 0
        if name and said == "NONE":
            broker.commit_transaction(name, who)
        return said, added


def of_kafka(work: Path) -> Iterator[Told]:
    """Yield what Kafka answers: producers with an id of their own, or with a transactional id."""
    with kafka.broker(work) as (address, process):
        broker = Kafka(int(address.rpartition(":")[2]))

        def new(name: str | None = None) -> KafkaProducer:
            return KafkaProducer(broker, name)

        yield "the last batch again", new().sent(0, 1).send(1)
        yield "one of the last five again", new().sent(*range(6)).send(1)
        yield "one older than the last five again", new().sent(*range(6)).send(0)
        yield "one older than all that are known again", new().sent(*range(11)).send(0)
        yield "the same number with other content", new().sent(0, 1).send(1, data="other")
        yield "a gap", new().sent(0).send(2)
        yield "what the gap left out, later", new().sent(0, 2).send(1)
        yield "old and new events in one batch", new().sent(0, 1).send(1, 2)
        yield "a first number that is not 0", new().send(5)
        first, second = new("shop").sent(0), new("shop")
        yield "a second producer takes over", second.send(0, data="event 1")
        yield "the first one after that", first.send(1)
        new("till").sent(0)
        yield "restart with the name, the last batch again", new("till").send(0)
        new().sent(0)
        yield "restart without a name, the last batch again", new().send(0)
        last = new().sent(0, 1).who
        os.kill(process, signal.SIGKILL)
    with kafka.broker(work) as (address, _):
        broker = Kafka(int(address.rpartition(":")[2]))
        yield "broker killed, the last batch again", _of(broker, last).send(1)
    with kafka.broker(work, settings=FORGETS) as (address, _):
        broker = Kafka(int(address.rpartition(":")[2]))
        left = new().sent(0, 1)
        time.sleep(FORGOTTEN_AFTER)
        yield "producer forgotten, the last batch again", left.send(1)


def _of(broker: Kafka, who: Who) -> KafkaProducer:
    producer = KafkaProducer(broker)
    producer.who = who
    return producer


class PulsarProducer:
    """Sends event N as the message with the sequence id N."""

    def __init__(
        self, client: Any, topic: str, name: str | None = "shop", mode: str = "Shared"
    ) -> None:
        import pulsar as library

        self._client, self._topic, self._earliest = client, topic, library.MessageId.earliest
        self._producer = client.create_producer(
            topic,
            producer_name=name,
            access_mode=getattr(library.ProducerAccessMode, mode),
            batching_enabled=True,
            batching_max_publish_delay_ms=500,
        )

    def sent(self, *numbers: int) -> PulsarProducer:
        for number in numbers:
            self.send(number)
        return self

    def send(self, number: int, *more: int, data: str = "") -> tuple[str, int]:
        before, said = self._count(), set()

        def note(result: Any, message: Any) -> None:
            is_there = message is not None and message.ledger_id() >= 0
            said.add("a message id" if is_there else f"{result.name} -1:-1")

        for each in (number, *more):
            event = (data or f"event {each}").encode()
            self._producer.send_async(event, note, sequence_id=each)
        try:
            self._producer.flush()
        except Exception as exc:  # noqa: BLE001 - whatever it is is the answer
            said = {type(exc).__name__}
        return ", ".join(sorted(said)), self._count() - before

    def close(self) -> None:
        self._producer.close()

    def _count(self) -> int:
        reader, count = self._client.create_reader(self._topic, self._earliest), 0
        while reader.has_message_available():
            reader.read_next(10_000)
            count += 1
        reader.close()
        return count


def of_pulsar(work: Path) -> Iterator[Told]:
    """Yield what Pulsar answers, with deduplication, to producers that number their messages."""
    import pulsar as library

    with pulsar.broker(work) as (address, process):
        client = library.Client(
            address, logger=library.FileLogger(library.LoggerLevel.Error, os.devnull)
        )
        topics = iter(range(100))

        def new(*given: str | None) -> PulsarProducer:
            return PulsarProducer(client, f"{TOPIC}-{next(topics)}", *given)

        idle = new().sent(0, 1)
        idle.close()
        began = time.monotonic()
        yield "the last batch again", new().sent(0, 1).send(1)
        yield "one of the last five again", new().sent(*range(6)).send(1)
        yield "one older than the last five again", new().sent(*range(6)).send(0)
        yield "one older than all that are known again", new().sent(*range(11)).send(0)
        yield "the same number with other content", new().sent(0, 1).send(1, data="other")
        yield "a gap", new().sent(0).send(2)
        yield "what the gap left out, later", new().sent(0, 2).send(1)
        yield "old and new events in one batch", new().sent(0, 1).send(1, 2)
        yield "a first number that is not 0", new().send(5)
        first = new().sent(0)
        yield "a second producer of the name", _refused(client, first)
        first = new("shop", "Exclusive").sent(0)
        second = PulsarProducer(client, first._topic, "shop", "ExclusiveWithFencing")
        yield "a second producer takes over", second.send(1)
        yield "the first one after that", first.send(2)
        named = new().sent(0, 1)
        named.close()
        again = PulsarProducer(client, named._topic)
        yield "restart with the name, the last batch again", again.send(1)
        unnamed = new(None).sent(0)
        unnamed.close()
        again = PulsarProducer(client, unnamed._topic, None)
        yield "restart without a name, the last batch again", again.send(0)
        time.sleep(max(0, began + 60 * pulsar.IDLE_MINUTES + 70 - time.monotonic()))
        again = PulsarProducer(client, idle._topic)
        yield "producer forgotten, the last batch again", again.send(1)
        last = new().sent(0, 1)
        process.kill()
        process.wait()
    with pulsar.broker(work) as (address, _):
        client = library.Client(
            address, logger=library.FileLogger(library.LoggerLevel.Error, os.devnull)
        )
        again = PulsarProducer(client, last._topic)
        yield "broker killed, the last batch again", again.send(1)
        client.close()


def _refused(client: Any, first: PulsarProducer) -> tuple[str, int]:
    try:
        return PulsarProducer(client, first._topic).send(1)
    except Exception as exc:  # noqa: BLE001 - whatever it is is the answer
        return type(exc).__name__, 0


def main() -> None:
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as work:
        for name, version, told in (
            ("kafka", kafka.BROKER["org.apache.kafka:kafka_2.13"], of_kafka(Path(work, "kafka"))),
            ("pulsar", pulsar.VERSION, of_pulsar(Path(work, "pulsar"))),
        ):
            answers = {}
            for scenario, answer in told:
                print(name, scenario, *answer, sep=" | ", file=sys.stderr)
                answers[scenario] = list(answer)
            found[name] = {"version": version, "answers": answers}
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
