"""The address of a dead letter feed, and its token: who answers there, and what it gets to see."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.fix_dead_letters import direct
from tests.fix_log_texts import check_documented
from tests.fix_raw_server import ok, refused
from zeh_spark.errors import (
    AccessError,
    OptionError,
    PublisherError,
    PublishError,
    ZeroEventHubError,
)

GOOD, BAD = '{"i":1}', '{"i":'


@pytest.mark.parametrize(
    "answer", [refused(404, "no such page"), ok(b"{}"), ok(b'{"cursor":"1","partition":0}\n')]
)
def test_a_dead_letter_feed_of_another_publisher_is_refused(answer, two, raw_server):
    """Before anything is sent, with its address."""
    raw_server.script(answer)

    with pytest.raises(PublisherError, match=r"zeh_spark") as raised:
        two.publish(0, [GOOD], deadLetterUrl=raw_server.url)

    assert raw_server.url in str(raised.value)
    assert 0 == two.main.count("PUT ")


def test_a_dead_letter_feed_that_is_not_there_is_named(two):
    """And how to make it."""
    with pytest.raises(PublishError, match=r"there is no feed 'nope'.*zeh-spark create") as raised:
        two.publish(0, [GOOD], deadLetterUrl=f"{two.dead.address}/nope")

    assert "the dead-letter feed" in str(raised.value)


def test_the_feed_itself_under_another_address_is_refused(two):
    """Readers would get the dead letters as events."""
    with pytest.raises(OptionError, match="leads to the feed of 'url'"):
        two.publish(0, [BAD], deadLetterUrl=direct(two.main, "orders"))

    assert [] == two.events()


def test_a_token_is_not_sent_to_another_origin(two, raw_server):
    """Nor a secret header; and who asks for one is answered with the option for it."""
    raw_server.script(refused(401, "who are you?"))
    secrets = {"token": "hush-secret", "http.secret.header.X-Key": "hush-secret"}

    with pytest.raises(AccessError, match="'deadLetterToken' or 'deadLetterTokenFile'"):
        two.publish(0, [GOOD], deadLetterUrl=raw_server.url, **secrets)

    (request,) = raw_server.requests
    assert not [value for value in request.headers.values() if "hush" in value]


def test_a_token_of_its_own_is_sent(two, raw_server, tmp_path):
    """From a file, and not the other one; a file that is not there is named by its option."""
    file = tmp_path / "token"
    more = {"token": "other-token", "deadLetterTokenFile": str(file)}
    with pytest.raises(OptionError, match="option 'deadLetterTokenFile': cannot read a token"):
        two.publish(0, [GOOD], deadLetterUrl=raw_server.url, **more)
    file.write_text("letters-token")
    raw_server.script(refused(403))

    with pytest.raises(AccessError):
        two.publish(0, [GOOD], deadLetterUrl=raw_server.url, **more)

    (request,) = raw_server.requests
    assert "Bearer letters-token" == request.headers["authorization"]


def test_tasks_that_disagree_about_dead_letters_are_refused(two):
    """As about the rows."""
    one, other = two.staged(0, [GOOD], [BAD])
    assert other.letters
    odd = replace(other, letters=replace(other.letters, partition_count=9))

    with pytest.raises(ZeroEventHubError, match="disagree about it"):
        two.commit(0, [one, odd])


def test_the_driver_says_how_many_rows_were_refused(two, caplog):
    """Once a batch, and nothing where there are none."""
    with caplog.at_level("INFO", "zeh_spark.sink"):
        two.publish(0, [GOOD, BAD], [BAD, '"' + "x" * 200_000 + '"'])
        two.publish(1, [GOOD])

    said = "batch 0 of producer p: 3 rows cannot be published and are dead letters in"
    warnings = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert [f"{said} {two.dead_url}"] == warnings
    check_documented(caplog.records, "cannot be published and")
    check_documented(caplog.records, "batch … of producer …: … events")
