"""Options: what is understood, what is refused and in which words, and that secrets stay secret."""

from __future__ import annotations

import pickle

import pytest

from tests.cases import each_case
from zeh_spark.client.options.client_options import ClientOptions
from zeh_spark.client.options.given import parse
from zeh_spark.client.options.option_metadata import declared, option_name
from zeh_spark.errors import OptionError
from zeh_spark.spark.source.options import SourceOptions, refuse_of_other_query
from zeh_spark.wire.phrases import in_ranges

URL = "https://orders.example/feed/v1"
DECLARED = declared(SourceOptions)


def read(**options: str) -> SourceOptions:
    """The source's options, as Spark hands them over."""
    return parse(SourceOptions, {"url": URL, **options})


def refusal(options: dict[str, str]) -> OptionError:
    with pytest.raises(OptionError) as caught:
        parse(SourceOptions, {"url": URL, **options})
    return caught.value


@each_case("text", ["None", "null", " NULL "])
@each_case("option", ["headers", "stamps", "compression", "cursorSet", "feedId", "token"])
def test_a_variable_without_a_value_is_not_the_word_none(option, text):
    """`str(None)` would leave out headers and stamps, name a cursor set, or be sent as a token."""
    assert f"'{option}' must have a value" in str(refusal({option: text}))


# What is understood


@each_case(
    ("option", "text", "field", "value"),
    [
        ("partitionCount", "4", "partition_count", 4),
        ("partitionCount", " 4 ", "partition_count", 4),
        ("startingCursors", "first", "starting_cursors", "first"),
        ("startingCursors", "LAST", "starting_cursors", "last"),
        ("startingCursors", '{"0":"17","1":"_first"}', "starting_cursors", {0: "17", 1: "_first"}),
        ("startingCursors", '{"1":"b","0":"_last"}', "starting_cursors", {0: "_last", 1: "b"}),
        ("endingCursors", '{"0":"17"}', "ending_cursors", {0: "17"}),
        ("headers", "_all", "headers", ("_all",)),
        ("headers", "none", "headers", ()),
        ("headers", "ce_id, ce_type", "headers", ("ce_id", "ce_type")),
        ("maxBytesPerTrigger", "1048576", "max_bytes_per_trigger", 1 << 20),
        ("maxBytesPerTrigger", "64k", "max_bytes_per_trigger", 64 << 10),
        ("maxBytesPerTrigger", "32MB", "max_bytes_per_trigger", 32 << 20),
        ("maxBytesPerTrigger", "1 GiB", "max_bytes_per_trigger", 1 << 30),
        ("wait", "0", "wait", 0.0),
        ("wait", "20s", "wait", 20.0),
        ("pollInterval", "500ms", "poll_interval", 0.5),
        ("pollInterval", "1.5", "poll_interval", 1.5),
        ("retryTimeout", "5m", "retry_timeout", 300.0),
        ("retryTimeout", "1 h", "retry_timeout", 3600.0),
        ("failOnDataLoss", "False", "fail_on_data_loss", False),
        ("mode", "permissive", "mode", "PERMISSIVE"),
        ("replay", "ACCEPT", "replay", "accept"),
        ("compression", "GZip", "compression", "gzip"),
        ("stagingLocation", "/mnt/stage/", "staging_location", "/mnt/stage"),
        ("feedId", "orders", "feed_id", "orders"),
        ("MAXEVENTSPERTRIGGER", "7", "max_events_per_trigger", 7),
    ],
)
def test_an_option_is_understood(option, text, field, value):
    """As I would write it down for a colleague; names in any case, as everywhere in Spark."""
    assert value == getattr(read(**{option: text}), field)


@each_case(
    ("given", "same"),
    [
        ({"token": None}, {}),  # Spark passes None on for an option that was set to it
        ({"startingCursors": "earliest"}, {"startingCursors": "first"}),  # Kafka's words
        ({"startingCursors": "Latest"}, {"startingCursors": "last"}),
        ({"endingCursors": "latest"}, {"endingCursors": "last"}),
    ],
)
def test_what_is_written_in_two_ways_means_the_same(given, same):
    """I come from Kafka, or another language; `.load(url)` and `.option("url", url)` are alike."""
    assert read(**given) == read(**same)
    assert read() == parse(SourceOptions, {"path": URL}) == parse(SourceOptions, {"URL": URL})


@each_case("name", [name for name, each in DECLARED.items() if each.default is not None])
def test_a_default_is_what_its_text_says(name):
    """The default in the documentation is the one that is used."""
    assert read() == read(**{name: DECLARED[name].default})


def test_headers_for_the_publisher_are_kept():
    """I can send what a gateway in front of the publisher wants."""
    options = read(**{"http.header.X-Tenant": "a b", "http.secret.header.Authorization": "Basic x"})

    assert {"x-tenant": "a b", "authorization": "Basic x"} == options.http_headers


def test_the_feeds_own_query_is_part_of_its_identity_but_not_readable():
    """A key in the URL's query is sent to the publisher and written down nowhere. With feedId, a
    feed that moves to another address is still the same feed for my checkpoint.
    """
    url = read(url=f"{URL}?key=s3cret#part").url

    assert (f"{URL}?key=s3cret", URL) == (url.full, str(url))
    assert url.identity.startswith(f"{URL}?") and "s3cret" not in url.identity
    assert read(feedId="orders").feed == read(url="http://other/feed", feedId="orders").feed


# What is refused


@each_case(
    ("option", "text", "allowed"),
    [
        ("partitionCount", "0", "whole number greater than 0"),
        ("partitionCount", "four", "whole number greater than 0"),
        ("pageSizeHint", "-1", "whole number greater than 0"),
        ("maxEventsPerTrigger", "1e3", "whole number greater than 0"),
        ("maxEventsPerTrigger", "٣", "whole number greater than 0"),
        ("maxBytesPerTrigger", "128q", "number of bytes"),
        ("maxBytesPerTrigger", "0m", "greater than 0"),
        ("maxBytesPerTrigger", "1000001t", "at most a million TiB: 1000000t"),
        ("maxEventsPerTrigger", "9223372036854775808", "at most 9223372036854775807"),
        ("wait", "soon", "seconds, or a number with ms, s, m, h or d"),
        ("wait", "1.5", "whole seconds"),
        ("pollInterval", "3000000h", "at most 30 days"),
        ("partitionCount", "300000000", "at most 100000"),
        ("wait", "-1s", "seconds, or a number with ms, s, m, h or d"),
        ("pollInterval", "1w", "seconds, or a number with ms, s, m, h or d"),
        ("connectTimeout", "0", "longer than 0"),
        ("readTimeout", "0s", "longer than 0"),
        ("failOnDataLoss", "yes", "true or false"),
        ("mode", "DROPMALFORMED", "one of FAILFAST, PERMISSIVE"),
        ("compression", "br", "one of none, gzip"),
        ("stamps", "fields", "one of headers, columns, none"),
        ("headers", "a,,b", "different names with commas"),
        ("headers", "a,a", "different names with commas"),
        ("headers", "_all,a", "different names with commas"),
        ("stagingLocation", "stage", "absolute path"),
        ("stagingLocation", "ftp://h/stage", "file, s3, s3a, gs, abfs or abfss"),
        ("feedId", "", "not be empty"),
        ("startingCursors", "newest", "first, last, or JSON"),
        ("startingCursors", "[1]", "first, last, or JSON"),
        ("startingCursors", "{}", "for every partition"),
        ("startingCursors", '{"0":"a","00":"b"}', "for every partition"),
        ("partitions", "", "like 0-3 or 0,2,5-7"),
        ("partitions", "3-1", "like 0-3 or 0,2,5-7"),
        ("partitions", "-1", "like 0-3 or 0,2,5-7"),
        ("partitions", "all", "like 0-3 or 0,2,5-7"),
        ("partitions", "0-3,2", "names 2 twice"),
        ("startingCursors", '{"0":17}', "string that is not empty"),
        ("startingCursors", '{"0":""}', "string that is not empty"),
    ],
)
def test_a_bad_value_is_refused_with_what_is_allowed(option, text, allowed):
    """The error names the option, what I wrote, and what I could have written."""
    error = refusal({option: text})

    assert option == error.option
    assert all(part in str(error) for part in (repr(option), repr(text), allowed))


@each_case(
    ("given", "said"),
    [
        ({"startingCursors": '{"1":"a"}'}, "(1), but option 'partitions' is not set. Give one for"),
        ({"startingCursors": '{"0":"a","2":"b"}'}, "(0,2), but option 'partitions' is not set"),
        (
            {"startingCursors": '{"0":"a","1":"b"}', "partitions": "0-2"},
            "2 partitions (0-1), but option 'partitions' is 0-2. Give one for each of 0-2",
        ),
        ({"partitions": "2-4", "partitionCount": "4"}, "'partitions' is 2-4, but the feed"),
    ],
)
def test_partitions_and_cursors_have_to_fit(given, said):
    """I never read less than I think, and learn which cursors are needed."""
    assert said in str(refusal(given))


def test_partitions_are_numbers_and_ranges():
    options = parse(SourceOptions, {"url": "http://h/f", "partitions": "5 - 7, 0,2"})

    assert (0, 2, 5, 6, 7) == options.partitions
    assert "0,2,5-7" == in_ranges(options.partitions)


@each_case(
    "url",
    [
        *("", "orders", "/feed/v1", "ftp://orders.example/feed", "https://"),
        *("https://host:port/feed", "https://[::1/feed", "https://host:0/feed"),
    ],
)
def test_an_address_that_is_none_is_refused(url):
    """I see what an address looks like; without one I am told both ways to give it."""
    assert "like https://orders.example/feed/v1" in str(refusal({"url": url}))
    with pytest.raises(OptionError, match=r"'url' is missing.*\.load\(url\)"):
        parse(SourceOptions, {})


@each_case(
    ("given", "meant"),
    [
        ("maxEventPerTrigger", "did you mean 'maxEventsPerTrigger'?"),
        ("maxOffsetsPerTrigger", "did you mean 'maxEventsPerTrigger'?"),  # Spark's Kafka source
        ("startingOffsets", "did you mean 'startingCursors'?"),
        ("zzz", ". Known: "),
    ],
)
def test_an_unknown_option_is_refused_with_the_one_that_was_meant(given, meant):
    """A typing mistake does not go unnoticed; I see the whole choice if nothing is similar."""
    error = refusal({given: "1"})

    assert (given.lower(), True) == (error.option, meant in str(error))
    others = [name for name in DECLARED if name not in meant]
    assert {meant.startswith(".")} == {f"{name}, " in str(error) for name in others}


TWO = {"partitionCount": "2"}


@each_case(
    ("options", "option", "words"),
    [
        ({"token": "t", "tokenFile": "/t"}, "tokenFile", "exclude each other"),
        ({"token": "t", "http.secret.header.authorization": "x"}, "token", "exclude each other"),
        ({"clientKeyFile": "/k"}, "clientKeyFile", "needs 'clientCertFile'"),
        ({"path": "http://other/"}, "url", "different feeds"),
        ({"stamps": "columns", "headers": "zeh-time"}, "headers", "stamps=columns leaves out"),
        ({"paths": '["http://a/"]'}, "url", "one feed"),
        ({"endingCursors": "first"}, "endingCursors", "must be last"),
        ({"endingCursors": '{"0":"_last"}'}, "endingCursors", "real cursors"),
        ({"startingCursors": '{"0":"a"}', **TWO}, "startingCursors", "each of 0-1"),
        ({"endingCursors": '{"0":"a"}', **TWO}, "endingCursors", "each of 0-1"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options, option, words):
    """I hear of it when the query is built, not when it runs."""
    error = refusal(options)

    assert option == error.option
    assert words in str(error)


def test_a_stream_waits_longer_for_an_answer_than_the_publisher_for_an_event():
    """A batch read does not wait, so it may have any readTimeout."""
    found = read(readTimeout="10s", wait="10s")

    with pytest.raises(OptionError, match=r"'readTimeout'.*must be more than 'wait'"):
        found.check_stream()


STREAMING = [name for name, each in DECLARED.items() if each.query == "streaming"]


@each_case(("names", "streaming"), [(STREAMING, False), (["endingCursors"], True)])
def test_an_option_without_effect_is_refused_by_its_name(names, streaming):
    """I do not believe that spark.read keeps to maxEventsPerTrigger."""
    for name in names:
        with pytest.raises(OptionError, match=f"option '{name}' is for spark.read") as raised:
            refuse_of_other_query({"url": URL, name.lower(): "1"}, streaming=streaming)
        assert name == raised.value.option
        refuse_of_other_query({name: "1"}, streaming=not streaming)


# Secrets

SECRET = "s3cret value\n"


@each_case(
    "options",
    [
        {"token": SECRET},
        {"http.secret.header.X-Key": SECRET},
        {"http.header.Authorization": SECRET.strip()},
        {"http.header.Cookie": SECRET.strip()},
        {"url": f"https://user:{SECRET.strip()}@h/feed"},
        {"url": f"ftp://h/feed?key={SECRET.strip()}"},
        {"token": "s3cret", "tokenFile": "/t"},
        {"path": "http://other/?key=s3cret"},
    ],
)
def test_an_error_never_shows_a_secret(options):
    """I can paste an error into a ticket."""
    error = refusal(options)

    assert "s3cret" not in f"{error} {error!r} {vars(error)}"


def test_options_never_show_a_secret():
    """Nor does a log that prints them. Batch reads send them to their tasks on executors."""
    secrets = {"token": "s3cret", "http.secret.header.X-Key": "s3cret", "url": f"{URL}?k=s3cret"}
    options = read(**secrets, startingCursors='{"0":"a"}')

    assert "s3cret" not in repr(options)
    assert options == pickle.loads(pickle.dumps(options))


@each_case("name", [name for name, each in DECLARED.items() if each.secret])
def test_spark_hides_what_we_hide(name):
    """Spark leaves options with such names out of plans and its pages."""
    assert any(word in name.lower() for word in ("token", "secret", "password"))


def test_names_are_those_of_the_fields():
    """One rule leads from the option's name to the code."""
    assert "columnNameOfCorruptRecord" == option_name("column_name_of_corrupt_record")
    assert declared(ClientOptions).keys() < DECLARED.keys()


@each_case("bad", ["\\", " ", "\t", "\n", "\x00", "\x1b", "\x7f", "\x9b", "\u2028"])
@each_case("option", ["url", "oauth.tokenUrl"])
def test_an_address_that_libraries_read_in_two_ways_is_refused(option, bad):
    """What I name is where my token goes, in every library."""
    usual = {"url": URL, "oauth.clientId": "c", "oauth.clientSecret": "s" * 9}
    for address in (f"https://evil{bad}.home.example/feed", f"{bad}https://home.example/feed"):
        with pytest.raises(OptionError, match=f"option '{option}' must be .* address"):
            parse(ClientOptions, {**usual, option: address})
