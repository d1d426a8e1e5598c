"""An address that never answered is soon taken for a wrong one; any other one is tried for long."""

from __future__ import annotations

from dataclasses import replace

import pytest
import requests

from tests.cases import each_case
from tests.fix_raw_server import ok
from tests.fix_stream import DECODER
from tests.ports import free_port
from zeh_spark.client.http.responses import TransientError, innermost
from zeh_spark.client.http.retry import Retry
from zeh_spark.client.http.transport import Transport
from zeh_spark.client.options.client_options import FIRST_CONTACT, ClientOptions
from zeh_spark.client.options.given import parse
from zeh_spark.errors import UnavailableError
from zeh_spark.publish import Producer
from zeh_spark.spark.source.options import SourceOptions
from zeh_spark.spark.source.stream import StreamReader

NOT_RUNNING = r"Is the publisher running\? .*check 'url', or set 'retryTimeout' to wait longer"


def soon(url: str, **given: str) -> ClientOptions:
    """Options whose first contact takes half a second, not 10; any other, longer than a test."""
    options = parse(ClientOptions, {"url": url, **given})
    if options.first_contact is None:
        return options
    return replace(options, first_contact=0.5, retry_timeout=3600)


def asked(transport: Transport) -> None:
    transport.retry().call(lambda: transport.request("GET").close())


@each_case("host", ["127.0.0.1:{port}", "no-such-host.invalid"])
def test_an_address_that_never_answered_fails_soon(host):
    """I mistyped it, or forgot to start the publisher: the error asks me."""
    url = f"http://{host.format(port=free_port())}/orders"

    with pytest.raises(UnavailableError, match=NOT_RUNNING) as caught:
        asked(Transport(soon(url)))

    assert url in str(caught.value)
    assert caught.value.help.endswith("#the-publisher-cannot-be-reached")


def test_what_was_handled_before_a_request_is_not_why_it_failed():
    """My program may repeat a request while it handles an error of its own."""
    with pytest.raises(requests.ConnectionError) as raised:
        try:
            raise KeyError("mine")
        except KeyError:
            requests.get(f"http://127.0.0.1:{free_port()}", timeout=9)

    assert isinstance(innermost(raised.value), ConnectionRefusedError)


def test_the_time_for_a_first_contact_is_10_seconds():
    """However long `retryTimeout` is by default."""
    now = [100.0]
    final = UnavailableError("?")
    retry = Retry(120, clock=lambda: now[0], sleep=lambda s: now.__setitem__(0, now[0] + s))

    def fail():
        raise TransientError(final, within=FIRST_CONTACT)

    with pytest.raises(UnavailableError):
        retry.call(fail)

    assert 104 < now[0] <= 110


def test_a_retry_timeout_that_is_set_counts_at_the_first_contact(caplog):
    """A job that starts together with its publisher sets it."""
    options = soon(f"http://127.0.0.1:{free_port()}/orders", retryTimeout="1200ms")

    with pytest.raises(UnavailableError, match=NOT_RUNNING):
        asked(Transport(options))

    assert options.first_contact is None
    assert "trying again" in caplog.text
    assert "for at most 1 s" in caplog.text


def test_after_an_answer_an_outage_is_retried(start_raw_server, caplog):
    """The same transport waits for a publisher that is being upgraded."""
    server = start_raw_server()
    server.respond = lambda request: ok(b"")
    transport = Transport(replace(soon(server.url), first_contact=0.0, retry_timeout=0.5))
    asked(transport)
    server.close()

    with pytest.raises(UnavailableError, match="Nothing is lost: start again"):
        asked(transport)

    assert "trying again" in caplog.text


@pytest.mark.parametrize(
    ("has_checkpoint", "match"), [(True, "Nothing is lost: start again"), (False, NOT_RUNNING)]
)
def test_a_query_with_a_checkpoint_waits_for_its_publisher(has_checkpoint, match):
    """Its address was right when it made its first batch, so a restart meets an outage."""
    url = f"http://127.0.0.1:{free_port()}/orders"
    options = replace(parse(SourceOptions, {"url": url}), retry_timeout=0.3, first_contact=0.1)
    reader = StreamReader(options, DECODER)
    known = {
        "version": 3,
        "feed": url,
        "id": "9f86d081884c7d65",
        "partitionCount": 1,
        "partitions": {"0": {"cursor": "3.0a1b2c3d", "events": 0, "bytes": 0}},
    }
    try:
        with pytest.raises(UnavailableError, match=match):
            reader.latestOffset(known if has_checkpoint else reader.initialOffset())
    finally:
        reader.stop()


def test_a_service_waits_for_its_publisher():
    """A `Producer` may start while the publisher is being upgraded."""
    producer = Producer(f"http://127.0.0.1:{free_port()}/orders", "till-7")

    assert producer._client._transport._options.first_contact is None
