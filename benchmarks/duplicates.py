"""What a writer doubles when a share of the answers to it is lost.

Each event is sent alone, and again until its answer says that it is there. A writer that restarts
sends what it has no answer for by a new producer, as a program does after a crash.
"""

from __future__ import annotations

import logging
import random
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from benchmarks import kafka, queries
from benchmarks.feeds import serving
from benchmarks.rows import Row
from tests.ports import free_port
from zeh_spark.errors import OutcomeUnknownError, UnavailableError
from zeh_spark.publish import Producer
from zeh_spark.publisher import open_store
from zeh_spark.reading import reader

EVENTS, SHARE, SEED = 500, 0.1, 7

GIVES_UP = {
    "request.timeout.ms": "900", "delivery.timeout.ms": "1000", "linger.ms": "0",
    "reconnect.backoff.ms": "5000", "reconnect.backoff.max.ms": "5000",
}  # fmt: skip
"""Settings with which Kafka's producer gives up on an event whose answer is lost."""

Send = Callable[[int], object]
"""Publishes the event with this number, or raises one of LOST."""

LOST = (OutcomeUnknownError, UnavailableError, Py4JJavaError)


class LossyProxy:
    """Passes bytes on, and closes a share of the connections when an answer comes, instead of it.

    Attributes:
        share: The share of answers that are lost.
        lost: How many were.
        port: Where it listens, at 127.0.0.1.
    """

    def __init__(self, port: int, upstream: int) -> None:
        self.share, self.lost = 0.0, 0
        self._random = random.Random(SEED)
        self.port, self._upstream = port, upstream
        self._listener = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._upstream))
                for ends in ((client, server), (server, client)):
                    threading.Thread(target=self._pass, args=(*ends, server), daemon=True).start()

    def _pass(self, source: socket.socket, to: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):  # the other direction has closed it
            while data := source.recv(1 << 16):
                if source is server and self._random.random() < self.share:
                    self.lost += 1
                    break
                to.sendall(data)
        for each in (source, to):
            with suppress(OSError):  # it is closed already
                each.shutdown(socket.SHUT_RDWR)
            each.close()


def measured(work: Path, _events: int) -> Iterator[Row]:
    """Of EVENTS events, one batch each, the doubles in the feed."""
    logging.getLogger("zeh_spark").setLevel(logging.ERROR)  # each lost answer is a line
    for what, aim, sender in (
        ("a client that publishes again what has no answer", "", _unnamed),
        ("`Producer`", "0", _producer),
        ("named batches, a new `Producer` after each lost answer", "0", _named),
    ):
        store = f"sqlite:///{work / sender.__name__}.db"
        with closing(open_store(store)) as opened:
            opened.create("flights", 1)
        with serving(store) as (url, _):
            told = urlsplit(url)
            with closing(LossyProxy(free_port(), told.port or 0)) as proxy:
                send = sender(urlunsplit(told._replace(netloc=f"127.0.0.1:{proxy.port}")))
                _send_all(proxy, send)
            found = [each for page, _ in reader(url) for each in page.column("data").to_pylist()]
            yield _row(what, aim, proxy.lost, found)


def of_kafka(work: Path, _events: int) -> Iterator[Row]:
    """Yield the same for Kafka's own producer, which reaches its broker through the proxy."""
    spark = queries.session(jars=kafka.connector_jars())
    for what, aim, is_idempotent, is_new in (
        ("Kafka's producer, enable.idempotence=false", "", False, False),
        ("Kafka's producer, enable.idempotence=true", "", True, False),
        ("the same, a new producer after each lost answer", "", True, True),
    ):
        folder = work / f"kafka-{is_idempotent}-{is_new}"
        listening, advertised = free_port(), free_port()
        with (
            closing(LossyProxy(advertised, listening)) as proxy,
            kafka.broker(folder, listening, advertised),
        ):
            settings = {"enable.idempotence": str(is_idempotent).lower(), "acks": "all"}
            if is_new:
                settings |= GIVES_UP
            with _kafka_sender(spark, advertised, settings) as send:
                _send_all(proxy, send)
            found = kafka.batch(spark, f"127.0.0.1:{advertised}").select("data").collect()
            yield _row(what, aim, proxy.lost, [row.data for row in found])


def _send_all(proxy: LossyProxy, send: Send) -> None:
    send(0)
    proxy.share = SHARE
    for number in range(1, EVENTS):
        while True:
            try:
                send(number)
                break
            except LOST:
                continue  # it is sent again until there is an answer
    proxy.share = 0.0


def _row(what: str, aim: str, lost: int, found: list[str]) -> Row:
    missing = EVENTS - len(set(found))
    told = f"{len(found) - EVENTS + missing} doubles, {missing} missing; {lost} answers lost"
    return f"{what}, {EVENTS} events", told, aim


def _unnamed(url: str) -> Send:
    """As a POST that is tried again: each try is a batch of its own."""

    def send(number: int) -> None:
        with Producer(url, "shop", retryTimeout="1ms") as producer, producer.batch() as batch:
            batch.add({"number": number})

    return send


def _producer(url: str) -> Send:
    producer = Producer(url, "shop")

    def send(number: int) -> None:
        with producer.batch() as batch:
            batch.add({"number": number})

    return send


def _named(url: str) -> Send:
    def send(number: int) -> None:
        with (
            Producer(url, "shop", retryTimeout="1ms") as producer,
            producer.batch(f"event-{number}") as batch,
        ):
            batch.add({"number": number})

    return send


@contextmanager
def _kafka_sender(spark: SparkSession, port: int, settings: dict[str, str]) -> Iterator[Send]:
    jvm: Any = spark._jvm
    given = jvm.java.util.Properties()
    text = "org.apache.kafka.common.serialization.StringSerializer"
    for name, value in {
        "bootstrap.servers": f"127.0.0.1:{port}",
        "key.serializer": text,
        "value.serializer": text,
        **settings,
    }.items():
        given.setProperty(name, value)
    clients = jvm.org.apache.kafka.clients.producer
    opened = [clients.KafkaProducer(given)]

    def send(number: int) -> None:
        try:
            opened[0].send(clients.ProducerRecord("flights", f'{{"number": {number}}}')).get()
        except Py4JJavaError:
            opened[0].close()
            opened[0] = clients.KafkaProducer(given)
            raise

    yield send
    opened[0].close()
