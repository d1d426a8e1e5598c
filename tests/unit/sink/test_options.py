"""What a sink may be told, and what it says about the rest."""

import re

import pytest

from tests.cases import each_case
from zeh_spark.client.options.option_metadata import declared
from zeh_spark.errors import OptionError
from zeh_spark.spark.sink.options import SinkOptions, sink_options

URL = "https://orders.example/orders"
DEAD = "https://orders.example/dead"
REMEDIES = {
    "acceptGap": "0a@1:3",
    "replaceIncarnation": "0a-1b@17:2c-3d",
    "keepFirst": "0a-1b:17:0123abcd",
}


def options(*, streaming=True, **given):
    named = {} if streaming else {"batchId": "day"}
    return sink_options({"url": URL, "producerId": "p", **named, **given}, streaming=streaming)


@each_case(
    ("given", "producer"),
    [
        ({"producerid": "p", "checkpointlocation": "/c", "queryname": "any name"}, "p"),
        ({"queryName": "orders-2"}, "orders-2"),
    ],
)
def test_what_spark_adds_is_no_option(given, producer):
    """The checkpoint, and the query's name, which stands in for the producer."""
    assert producer == sink_options({"url": URL, **given}, streaming=True).producer_id


@each_case(
    ("given", "streaming", "option", "why"),
    [
        ({"queryName": "my orders"}, True, "producerId", "must be 1 to 100 letters"),
        ({}, False, "producerId", "is missing"),
        ({"queryName": "q"}, False, "producerId", "is missing"),
        ({"producerId": "p"}, False, "batchId", "is missing.*batchId=stream"),
        ({"producerId": "p", "batchId": "2026-11-20"}, True, "batchId", r"is for df\.write"),
        *(
            (
                {"producerId": "p", "batchId": name, "startingSequence": "0:1"},
                False,
                "startingSequence",
                "is for the batches of a stream",
            )
            for name in ("day", "none")
        ),
    ],
)
def test_names_are_wanted_where_the_options_are_read(given, streaming, option, why):
    """On the driver: not in a task. A write has no query whose name, which may be any text, could
    stand in; a stream's batches have Spark's numbers.
    """
    with pytest.raises(OptionError, match=f"'{option}' {why}") as raised:
        sink_options({"url": URL, **given}, streaming=streaming)

    assert option == raised.value.option


@each_case("name", ["", "a b", "a#b", "a/b", "é", "x" * 101])
@each_case("option", ["producerId", "batchId"])
def test_names_are_plain(option, name):
    """They stand in addresses and headers."""
    assert "2026-11-20" == options(streaming=False, batchId="2026-11-20").batch_id
    with pytest.raises(OptionError, match=f"'{option}' must be 1 to 100 letters"):
        options(streaming=False, **{option: name})


@each_case("text", ["None", "NONE", "null", "Null"])
@each_case("option", ["producerId", "batchId"])
def test_a_variable_without_a_value_is_no_name(option, text):
    """`str(None)` would add the rows at each write, as `none` does. Only that word counts."""
    with pytest.raises(OptionError, match=f"'{option}' must have a value.*got '{text}'"):
        options(streaming=False, **{option: text})


def test_uploads_have_bounds():
    """From 64 KiB to 32 MiB."""
    sizes = {"64k": 64 << 10, "65536": 64 << 10, "4m": 4 << 20, "32m": 32 << 20}
    assert sizes == {text: options(uploadBytes=text).upload_bytes for text in sizes}
    for text in ("65535", "33m", "0", "much"):
        with pytest.raises(OptionError, match=r"'uploadBytes' must be (from 64k to 32m|a number)"):
            options(uploadBytes=text)


@each_case("name", REMEDIES)
@each_case("value", ["true", "accept", "", "3:4:5:6"])
def test_standing_permissions_are_refused(name, value):
    """A2: a remedy names the one state in which it applies. What an error says to set is passed on
    to the publisher as it is printed, and nothing else is.
    """
    with pytest.raises(OptionError, match=f"'{name}' must be <.*, copied from the error"):
        options(**{name: value})
    assert REMEDIES == options(**REMEDIES).overrides


def test_what_only_reads_is_passed_over_if_the_caller_says_so():
    """A table in SQL has one set of options, for reads and for writes."""
    given = {"url": URL, "producerId": "p", "batchId": "day", "startingCursors": "first"}

    assert "p" == sink_options(given, streaming=False, also={"startingCursors"}).producer_id
    with pytest.raises(OptionError, match="unknown option 'startingcursors'"):
        sink_options(given, streaming=False)


# Dead letters

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


OWN = ("hush-1", None, {"x-key": "hush-2", "x-tenant": "a"}, "/c.pem")
NONE = (None, None, {}, None)


@each_case(
    ("url", "expected", "secret"),
    [
        (DEAD, OWN, {"x-key"}),
        ("https://ORDERS.example:443/dead?x=1", OWN, {"x-key"}),
        ("http://orders.example/dead", NONE, set()),
        ("https://orders.example:8443/dead", NONE, set()),
        ("https://dead.example/orders", NONE, set()),
        ("https://orders.example.evil/dead", NONE, set()),
    ],
)
def test_another_origin_gets_no_credentials(url, expected, secret):
    """My token is for one scheme, host and port, however written; what I trust is no secret."""
    found = letters(**SECRETS, deadLetterUrl=url)

    assert (expected, secret) == (credentials(found), found.secret_headers)
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


PREFIXED = {
    "deadLetterToken": ("token", "t"),
    "deadLetterTokenFile": ("tokenFile", "/t"),
    "deadLetterAcceptGap": ("acceptGap", REMEDIES["acceptGap"]),
    "deadLetterReplaceIncarnation": ("replaceIncarnation", REMEDIES["replaceIncarnation"]),
    "deadLetterKeepFirst": ("keepFirst", REMEDIES["keepFirst"]),
}


@each_case(
    ("given", "option", "why"),
    [
        # A mistyped deadLetterUrl would otherwise go unnoticed.
        *(
            ({name: value}, name, f"'{name}' needs 'deadLetterUrl'")
            for name, (_, value) in PREFIXED.items()
        ),
        # A feed is not its own dead-letter feed, however its address is written.
        *(
            ({"deadLetterUrl": url}, "deadLetterUrl", "leads to the feed of 'url'")
            for url in (URL, f"{URL}/", "https://Orders.example:443/orders", f"{URL}#dead")
        ),
        *(
            ({"startingSequence": text}, "startingSequence", "must be partitions with their first")
            for text in ("0", "0:-1", "0:1,0:2", "a:1", "0:1;1:2", "1000")
        ),
        # What has no prefixed form is for both feeds.
        *(
            ({name: "64k"}, name.lower(), f"unknown option '{name.lower()}'")
            for name in ("deadLetterUploadBytes", "deadLetterRetryTimeout")
        ),
        ({"producerd": "p"}, "producerd", "unknown option 'producerd'; did you mean 'producerId'"),
        (
            {"deadLetterUrl": DEAD, "deadLetterToken": "t", "deadLetterTokenFile": "/t"},
            "deadLetterTokenFile",
            "'deadLetterToken' and 'deadLetterTokenFile' exclude",
        ),
    ],
)
def test_options_that_mean_nothing_here_are_refused(given, option, why):
    with pytest.raises(OptionError, match=why) as raised:
        options(**given)

    assert option == raised.value.option


@each_case(
    ("name", "of"),
    [("deadLetterUrl", "url"), *((name, of) for name, (of, _) in PREFIXED.items())],
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


def test_a_remedy_is_for_both_feeds_unless_one_has_its_own():
    """Both mostly are in the same state; where they are not, each remedy is for one of them."""
    both = {"acceptGap": "0a@1:3", "keepFirst": REMEDIES["keepFirst"]}

    found = options(**both, deadLetterUrl=DEAD, deadLetterAcceptGap="0a@2:3")

    assert both == found.overrides
    assert {**both, "acceptGap": "0a@2:3"} == found.dead_letters.overrides


def test_secrets_are_not_shown():
    """Options are printed in logs, and Spark hides a token by its name. A secret is not shown by
    its address, nor by its token, nor in what is said about a wrong one.
    """
    given = {"url": f"{URL}?key=hush-1", "token": "hush-2"}
    found = options(**given, deadLetterUrl=f"{DEAD}?key=hush-1", deadLetterToken="hush-2")

    assert "hush" not in repr(found) + repr(found.dead_letters)
    assert all(re.search("(?i)secret|password|token", name) for name in [*PREFIXED][:2])
    for wrong in ({"deadLetterUrl": "ftp://h/?hush"}, {"deadLetterToken": "hush hush"}):
        with pytest.raises(OptionError) as raised:
            options(**{"deadLetterUrl": DEAD, **wrong})
        assert "hush" not in str(raised.value)
