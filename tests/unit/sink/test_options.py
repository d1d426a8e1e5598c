"""What a sink may be told, and what it says about the rest."""

from __future__ import annotations

import re

import pytest

from tests.cases import each_case
from zeh_spark.errors import OptionError
from zeh_spark.options.declaring import declared
from zeh_spark.options.given import parse
from zeh_spark.sink.options import SinkOptions, sink_options

URL = "https://orders.example/orders"
REMEDIES = {
    "replaceIncarnation": "0a-1b@17:2c-3d",
    "keepFirst": "0a-1b:17:0123abcd",
}


def options(*, streaming=True, **given):
    named = {} if streaming else {"batchId": "day"}
    return sink_options({"url": URL, "producerId": "p", **named, **given}, streaming=streaming)


def test_a_sink_needs_little():
    """An address and who publishes."""
    found = options()

    assert ("p", None, None, 4 << 20, {}) == (
        found.producer_id,
        found.batch_id,
        found.partition_count,
        found.upload_bytes,
        found.overrides,
    )


def test_what_spark_adds_is_no_option():
    """Spark passes the checkpoint and the query's name on, in lower case."""
    found = sink_options(
        {"url": URL, "producerid": "p", "checkpointlocation": "/c", "queryname": "any name"},
        streaming=True,
    )

    assert "p" == found.producer_id


def test_a_querys_name_stands_in_for_the_producer():
    """A stream that has a name needs no other one."""
    found = sink_options({"url": URL, "queryName": "orders-2"}, streaming=True)

    assert "orders-2" == found.producer_id


def test_a_querys_name_has_to_be_fit_for_that():
    """Spark allows any text."""
    with pytest.raises(OptionError, match="'producerId' must be 1 to 100 letters"):
        sink_options({"url": URL, "queryName": "my orders"}, streaming=True)


@each_case("given", [{}, {"queryName": "q"}])
def test_a_write_without_a_producer_is_refused(given):
    """A write has no query whose name could stand in."""
    with pytest.raises(OptionError, match="'producerId' is missing") as raised:
        sink_options({"url": URL, "batchId": "day", **given}, streaming=False)

    assert "producerId" == raised.value.option


def test_a_write_without_a_name_is_refused():
    """On the driver, where the options are read: not in a task."""
    with pytest.raises(OptionError, match=r"'batchId' is missing.*batchId=stream") as raised:
        sink_options({"url": URL, "producerId": "p"}, streaming=False)

    assert "batchId" == raised.value.option


def test_a_streams_batches_have_sparks_numbers():
    """batchId is for df.write."""
    assert "2026-11-20" == options(streaming=False, batchId="2026-11-20").batch_id
    with pytest.raises(OptionError, match=r"'batchId' is for df\.write"):
        options(batchId="2026-11-20")


@each_case("name", ["", "a b", "a#b", "a/b", "é", "x" * 101])
@each_case("option", ["producerId", "batchId"])
def test_names_are_plain(option, name):
    """They stand in addresses and headers."""
    with pytest.raises(OptionError, match=f"'{option}' must be 1 to 100 letters"):
        options(streaming=False, **{option: name})


@each_case("text", ["None", "NONE", "null", "Null"])
@each_case("option", ["producerId", "batchId"])
def test_a_variable_without_a_value_is_no_name(option, text):
    """`str(None)` would add the rows at each write, as `none` does. Only that word counts."""
    with pytest.raises(OptionError, match=f"'{option}' must have a value.*got '{text}'"):
        options(streaming=False, **{option: text})


@each_case("size", ["64k", "65536", "4m", "32m"])
def test_uploads_have_bounds(size):
    """From 64 KiB to 32 MiB."""
    assert 64 << 10 <= options(uploadBytes=size).upload_bytes <= 32 << 20


@each_case("size", ["65535", "33m", "0", "much"])
def test_other_uploads_are_refused(size):
    with pytest.raises(OptionError, match=r"'uploadBytes' must be (from 64k to 32m|a number)"):
        options(uploadBytes=size)


@each_case("name", REMEDIES)
def test_remedies_travel_as_they_are_printed(name):
    """What an error says to set is passed on to the publisher, and nothing else is."""
    assert {name: REMEDIES[name]} == options(**{name: REMEDIES[name]}).overrides


@each_case("name", ["acceptGap", *REMEDIES])
@each_case("value", ["true", "accept", "", "3:4:5:6"])
def test_standing_permissions_are_refused(name, value):
    """A2: a remedy names the one state in which it applies."""
    with pytest.raises(OptionError, match=f"'{name}' must be <.*, copied from the error"):
        options(**{name: value})


def test_an_unknown_option_is_refused_with_the_likely_one():
    with pytest.raises(OptionError, match="unknown option 'producerd'; did you mean 'producerId'"):
        options(producerd="p")


def test_what_only_reads_is_passed_over_if_the_caller_says_so():
    """A table in SQL has one set of options, for reads and for writes."""
    given = {"url": URL, "producerId": "p", "batchId": "day", "startingCursors": "first"}

    assert "p" == sink_options(given, streaming=False, also={"startingCursors"}).producer_id
    with pytest.raises(OptionError, match="unknown option 'startingcursors'"):
        sink_options(given, streaming=False)


def test_a_token_is_not_shown():
    """Options are printed in logs."""
    found = parse(SinkOptions, {"url": f"{URL}?key=hush-1", "token": "hush-2"})

    assert "hush" not in repr(found)


# Dead letters

DEAD = "https://orders.example/dead"
SECRETS = {
    "token": "hush-1",
    "http.secret.header.X-Key": "hush-2",
    "http.header.X-Tenant": "a",
    "clientCertFile": "/c.pem",
    "caFile": "/ca.pem",
}


def letters(**given):
    """The options of the dead-letter feed."""
    found = options(**{"deadLetterUrl": DEAD, **given}).dead_letters
    assert found is not None
    return found


def credentials(found):
    return found.token, found.token_file, dict(found.http_headers), found.client_cert_file


def test_without_a_feed_for_them_there_are_no_dead_letters():
    """All stays as it is."""
    assert options().dead_letters is None


def test_the_dead_letter_feed_is_reached_as_the_other_one():
    """Patience and sizes are the same; the partition count is that of the rows' feed."""
    found = letters(retryTimeout="7s", uploadBytes="64k", partitionCount="3")

    assert (DEAD, 7.0, 64 << 10, None, None) == (
        str(found.url),
        found.retry_timeout,
        found.upload_bytes,
        found.partition_count,
        found.dead_letters,
    )


@each_case("same", [DEAD, "https://ORDERS.example:443/dead?x=1"])
def test_the_same_origin_gets_the_same_credentials(same):
    """Scheme, host and port, however they are written."""
    found = letters(**SECRETS, deadLetterUrl=same)

    assert ("hush-1", None, {"x-key": "hush-2", "x-tenant": "a"}, "/c.pem") == credentials(found)


@each_case(
    "other",
    [
        "http://orders.example/dead",
        "https://orders.example:8443/dead",
        "https://dead.example/orders",
        "https://orders.example.evil/dead",
    ],
)
def test_another_origin_gets_no_credentials(other):
    """My token is for the publisher that I gave it for; what it trusts is no secret."""
    found = letters(**SECRETS, deadLetterUrl=other)

    assert (None, None, {}, None) == credentials(found)
    assert frozenset() == found.secret_headers
    assert "/ca.pem" == found.ca_file


@each_case("url", [DEAD, "https://dead.example/orders"])
@each_case("token", ["deadLetterToken", "deadLetterTokenFile"])
@each_case(
    "own",
    [{"token": "t-1"}, {"tokenFile": "/t-1"}, {"http.secret.header.Authorization": "Basic t-1"}],
)
def test_a_token_of_its_own_takes_the_place_of_others(own, token, url):
    """At either origin."""
    found = letters(**own, **{token: "t-2"}, deadLetterUrl=url)

    expected = ("t-2", None) if token == "deadLetterToken" else (None, "t-2")
    assert (*expected, {}, None) == credentials(found)


@each_case("url", [URL, f"{URL}/", "https://Orders.example:443/orders", f"{URL}#dead"])
def test_a_feed_is_not_its_own_dead_letter_feed(url):
    """However its address is written."""
    with pytest.raises(OptionError, match="leads to the feed of 'url'") as raised:
        options(deadLetterUrl=url)

    assert "deadLetterUrl" == raised.value.option


@each_case(
    ("name", "value"),
    [
        ("deadLetterToken", "t"),
        ("deadLetterTokenFile", "/t"),
        ("deadLetterAcceptGap", "0a@1:3"),
        ("deadLetterReplaceIncarnation", REMEDIES["replaceIncarnation"]),
        ("deadLetterKeepFirst", REMEDIES["keepFirst"]),
    ],
)
def test_options_of_a_feed_that_is_not_there_are_refused(name, value):
    """A mistyped deadLetterUrl would otherwise go unnoticed."""
    with pytest.raises(OptionError, match=f"'{name}' needs 'deadLetterUrl'"):
        options(**{name: value})


@each_case(
    ("name", "of"),
    [
        ("deadLetterUrl", "url"),
        ("deadLetterToken", "token"),
        ("deadLetterTokenFile", "tokenFile"),
        ("deadLetterAcceptGap", "acceptGap"),
        ("deadLetterReplaceIncarnation", "replaceIncarnation"),
        ("deadLetterKeepFirst", "keepFirst"),
    ],
)
def test_options_for_dead_letters_are_those_of_the_sink_with_a_prefix(name, of):
    """What is right and wrong for the one is so for the other, in the same words."""
    own, prefixed = declared(SinkOptions)[of], declared(SinkOptions)[name]

    assert (own.parse, own.secret, own.query) == (prefixed.parse, prefixed.secret, prefixed.query)
    said = []
    for each in (name, of):
        with pytest.raises(OptionError) as raised:
            options(**{"deadLetterUrl": DEAD, each: ""})
        assert each == raised.value.option
        said.append(str(raised.value).replace(each, "NAME"))
    assert said[0] == said[1]


@each_case("name", ["deadLetterUploadBytes", "deadLetterRetryTimeout"])
def test_other_options_are_for_both_feeds(name):
    """One that has no prefix form is unknown, and the likely one is named."""
    with pytest.raises(OptionError, match=f"unknown option '{name.lower()}'"):
        options(**{"deadLetterUrl": DEAD, name: "64k"})


def test_two_tokens_for_dead_letters_are_refused():
    with pytest.raises(OptionError, match="'deadLetterToken' and 'deadLetterTokenFile' exclude"):
        letters(deadLetterToken="t", deadLetterTokenFile="/t")


def test_a_remedy_is_for_both_feeds_unless_one_has_its_own():
    """Both mostly are in the same state; where they are not, each remedy is for one of them."""
    both = {"acceptGap": "0a@1:3", "keepFirst": REMEDIES["keepFirst"]}

    found = options(**both, deadLetterUrl=DEAD, deadLetterAcceptGap="0a@2:3")

    assert both == found.overrides
    assert {**both, "acceptGap": "0a@2:3"} == found.dead_letters.overrides


def test_the_dead_letter_feeds_secrets_are_not_shown():
    """Not by its address, nor by its token, nor in what is said about a wrong one."""
    found = options(deadLetterUrl=f"{DEAD}?key=hush-1", deadLetterToken="hush-2")

    assert "hush" not in repr(found) + repr(found.dead_letters)
    for wrong in ({"deadLetterUrl": "ftp://h/?hush"}, {"deadLetterToken": "hush hush"}):
        with pytest.raises(OptionError) as raised:
            options(**{"deadLetterUrl": DEAD, **wrong})
        assert "hush" not in str(raised.value)


@each_case("name", ["deadLetterToken", "deadLetterTokenFile"])
def test_spark_hides_the_dead_letter_feeds_token(name):
    """By its name: what Spark takes for a secret."""
    assert re.search("(?i)secret|password|token", name)
