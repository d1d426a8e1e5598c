"""Our client behind a network that loses, repeats, delays, reorders and cuts: each batch once."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from tests.fix_middlemen import (
    Fate,
    Gateway,
    Proxy,
    answer_cut,
    answer_lost,
    copied,
    held,
    lost,
    passed,
    request_cut,
    twice,
    twice_at_once,
)
from tests.fix_publish import events_of, publish_batch, rows
from tests.fix_publisher import Publisher
from zeh_spark.client.http.publish_client import BatchCall, PublishClient
from zeh_spark.client.options.client_options import ClientOptions
from zeh_spark.client.options.given import parse
from zeh_spark.errors import OutcomeUnknownError, UnavailableError

BATCH = BatchCall("p", "a", "r1", 0)

FATES: dict[str, Fate] = {
    "lost": lost,
    "answer lost": answer_lost,
    "twice": twice,
    "twice at once": twice_at_once,
    "held": held,
    "copied": copied,
    "cut before its first byte": request_cut(lambda request: 0),
    "cut in its first line": request_cut(lambda request: 9),
    "cut in its headers": request_cut(lambda request: request.head - 9),
    "cut behind its headers": request_cut(lambda request: request.head),
    "cut in its body": request_cut(lambda request: (request.head + len(request.raw)) // 2),
    "cut before its last byte": request_cut(lambda request: len(request.raw) - 1),
    "answer cut in its first line": answer_cut(lambda answer: 9),
    "answer cut behind its first line": answer_cut(lambda answer: answer.index(b"\r\n") + 2),
    "answer cut in its headers": answer_cut(lambda answer: answer.index(b"\r\n\r\n") - 5),
    "answer cut behind its headers": answer_cut(lambda answer: answer.index(b"\r\n\r\n") + 4),
    "answer cut in its body": answer_cut(lambda answer: len(answer) - 20),
    "answer cut before its last byte": answer_cut(lambda answer: len(answer) - 1),
}

names = itertools.count()

pytestmark = pytest.mark.usefixtures("impatient")


def client_of(address: str, patience: str = "20s") -> PublishClient:
    options = {"url": f"{address}/orders", "retryTimeout": patience}
    return PublishClient(parse(ClientOptions, options))


@pytest.fixture
def proxy(publisher: Publisher, start_proxy: Callable[[int], Proxy]) -> Proxy:
    return start_proxy(int(publisher.base.rpartition(":")[2]))


def publish(gateway: Gateway, batch: BatchCall = BATCH, *data: object) -> str:
    """Look up, upload, commit; what the commit answered."""
    return publish_batch(client_of(gateway.address), batch, rows(*data or (1, 2, 3))).status


# What goes wrong with one request


@pytest.mark.parametrize("kind", FATES)
@pytest.mark.parametrize("place", [0, 1, 2], ids=["look up", "upload", "commit"])
def test_batch_is_there_once_whatever_becomes_of_a_request(faulty, kind, place):
    """Lost, cut or repeated; half an answer is no answer: I ask again (EX-02, F5, DL-02)."""
    publisher, gateway = faulty
    producer = f"p{next(names)}"
    gateway.held.clear()
    gateway.script(*[passed] * place, FATES[kind])
    publish(gateway, BatchCall(producer, "a", "r1", 0))
    gateway.deliver()
    assert [b"1", b"2", b"3"] == events_of(publisher.store, producer=producer)
    assert 1 == publisher.store.producer("orders", producer).receipts


def test_answer_that_was_lost_is_recognised_as_my_own(gateway):
    """A commit that landed is not taken for somebody else's (DL-02, PU-09, EH-09)."""
    gateway.script(passed, passed, answer_lost)
    assert "already-committed" == publish(gateway)


def test_publisher_that_stays_away_is_an_error_with_a_name(publisher, proxy):
    """If it does not come back in time I am told, and the batch can be published later (F5)."""
    proxy.stop()
    with pytest.raises(UnavailableError, match=r"Is the publisher running\?"):
        client_of(proxy.address, "300ms").commit(BATCH, 2, [])
    proxy.restart()
    client_of(proxy.address).commit(BATCH, 2, [])
    assert 0 == publisher.store.producer("orders", "p").last


def test_who_cannot_repeat_is_told_how_to_find_out(proxy):
    """Publishing it again would double what has no name: I am not told to do so (PU-14)."""
    batch = BatchCall("till", "batch", "r1", 0, repeatable=False)
    proxy.stop()
    with pytest.raises(OutcomeUnknownError) as raised:
        client_of(proxy.address, "300ms").commit(batch, 2, [])
    said = str(raised.value)
    assert "whether 0 events were published is not known" in said
    assert f"zeh-spark producers {proxy.address}/orders 'till'" in said
    assert (batch.run in said, "start again" in said) == (True, False)
