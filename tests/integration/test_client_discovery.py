"""What the client learns from a feed's address: the partition count, and which feed it is."""

import json

import pytest

from tests.fix_client import BODY, ask, client, read
from tests.fix_raw_server import Answer, head, ok, refused, reset
from zeh_spark.client.http.discovery import Discovered, discover
from zeh_spark.errors import AccessError, OptionError, PublisherError, UnavailableError
from zeh_spark.wire.feed_identity import Epoch, FeedIdentity, untold
from zeh_spark.wire.problems import URN as PROBLEM

# The partition count


def test_a_partition_count_of_another_size_is_told_once(raw_server, caplog):
    """A number that I mistyped loses nothing, and I see why some partitions are empty."""
    raw_server.respond = lambda request: TOLD
    for count in (7, 8, 8, 2):
        assert count == discover(client(raw_server).transport, count).partition_count
    wide, narrow = caplog.messages
    assert wide.endswith(
        "works with 8 partitions, and the feed has 7. The reader's partitions from 7 on stay empty"
    )
    assert narrow.endswith(
        "works with 2 partitions, and the feed has 7. "
        "Each partition of the reader then has the events of several"
    )


def test_the_partition_count_is_learned_from_the_problem_document(raw_server):
    """It spares me the option (D10), also if the publisher restarts while my query begins."""
    raw_server.script(
        refused(503), reset(), refused(400, '{"detail":"n is missing","partitionCount":7}')
    )

    assert Discovered(7) == discover(client(raw_server).transport)
    assert {"/feed/v1"} == {each.target for each in raw_server.requests}


# Which feed it is

IDENTITY = FeedIdentity(
    "9f86d081884c7d65", (Epoch("9f86d081884c7d65"), Epoch("9f86d081884c7d65~1", 1764000000000))
)


def problem(status=400, name="partition-count-missing", **members):
    """A problem document of our publisher."""
    return refused(status, json.dumps({"type": f"{PROBLEM}{name}", **members}))


TOLD = problem(partitionCount=7, feed=IDENTITY.document())


@pytest.mark.parametrize("count", [None, 7])
def test_a_publisher_tells_which_feed_it_serves(raw_server, count):
    """Its id and its epochs, also if I gave the number of partitions."""
    raw_server.script(TOLD)

    assert Discovered(7, IDENTITY) == discover(client(raw_server).transport, count)


SAYS_NOTHING = {
    "Go": refused(400, "handshake error: partition count missing\n"),
    "FastAPI": refused(422, '{"detail":[{"loc":["query","n"],"msg":"field required"}]}'),
    "another feed member": refused(400, '{"feed":"orders","detail":"n is missing"}'),
    "our older publisher": problem(partitionCount=2),
    "no such page": refused(404, "no"),
    "no such method": refused(405, "no"),
    "a page": ok(BODY),
    "an endless page": Answer((head(200, content_length=10**9), BODY), "close"),
    "a web page": ok(b"<html>", content_type="text/html"),
    "a framework's error": refused(500, "Internal Server Error"),
    "not implemented": refused(501, "no"),
}


@pytest.mark.parametrize("answer", SAYS_NOTHING.values(), ids=SAYS_NOTHING)
@pytest.mark.parametrize("patience", ["20s", "0s"])
def test_a_feed_whose_publisher_tells_no_identity_is_named_by_its_url(raw_server, answer, patience):
    """Whatever other publishers answer to a request that they do not expect; no option changes."""
    raw_server.script(answer)

    found = discover(client(raw_server, retryTimeout=patience).transport, 2)

    assert Discovered(2) == found
    assert untold("orders") == found.named("orders")


PASSING = {
    "reset": reset(),
    "closed": Answer((), "close"),
    "cut": Answer((head(400, content_length=99), b'{"type":'), "close"),
    "cut in its headers": Answer((head(400, content_length=99)[:30],), "close"),
    **{str(status): refused(status, "later") for status in (408, 425, 429, 502, 503, 504)},
    "a failed store": problem(500, "store-failed"),
}


@pytest.mark.parametrize("failure", PASSING.values(), ids=PASSING)
def test_a_publisher_that_is_down_for_a_moment_does_not_look_like_another_feed(raw_server, failure):
    """It is asked again, and told by name if it stays away."""
    raw_server.script(failure, failure, failure, TOLD)

    assert IDENTITY == discover(client(raw_server).transport, 7).identity

    raw_server.script(failure)
    with pytest.raises(UnavailableError):
        discover(client(raw_server, retryTimeout="0s").transport, 7)


@pytest.mark.parametrize(
    "error",
    [
        refused(500, "Internal Server Error"),
        refused(404, "no such route"),
        ok(b"<html>down</html>", content_type="text/html"),
        Answer((head(400), b'{"type":'), "close"),
    ],
    ids=["500", "404", "a web page", "cut, without a length"],
)
def test_a_web_servers_error_in_front_of_our_publisher_passes(raw_server, error):
    """Only if it repeats is no identity told, and never for a feed that told one before."""
    raw_server.script(error, error, TOLD)
    assert IDENTITY == discover(client(raw_server).transport, 7).identity

    raw_server.script(*[error] * 9, TOLD)
    assert IDENTITY == discover(client(raw_server).transport, 7, has_identity=True).identity


def test_an_answer_without_a_length_tells_the_identity(raw_server):
    """A proxy of HTTP/1.0 leaves lengths out; the document shows by itself that it is whole."""
    document = TOLD.pieces[0].partition(b"\r\n\r\n")[2]
    raw_server.script(Answer((head(400) + document,), "close"))

    assert IDENTITY == discover(client(raw_server).transport, 7).identity


@pytest.mark.parametrize(
    ("count", "answer", "kind", "match"),
    [
        (None, refused(401, "no"), AccessError, "401: no"),
        (None, refused(404, "no"), PublisherError, "404: no"),
        *(  # the error names the option that is needed then
            (None, refused(status, said), OptionError, "'partitionCount'")
            for status, said in [
                (400, "handshake error: partition count missing\n"),
                (400, '{"detail":"Parameter n not found"}'),
                (422, '{"detail":[{"loc":["query","n"],"msg":"field required"}]}'),
                *((400, f'{{"partitionCount":{count}}}') for count in ('"7"', "true", "0")),
            ]
        ),
        (7, refused(401, "no"), AccessError, "401: no"),
        (7, refused(403, "no"), AccessError, "403: no"),
        (7, problem(404, "unknown-feed"), PublisherError, "404 unknown-feed"),
        (
            7,
            problem(partitionCount=7, feed={"id": "new-style", "epochs": []}),
            PublisherError,
            r"'new-style'.*Upgrade zeh-spark",
        ),
    ],
)
def test_a_refusal_is_no_sign_of_another_publisher(raw_server, count, answer, kind, match):
    """A wrong URL is not mistaken for a publisher that tells no partition count; a refused token, a
    feed that is not there, or a newer publisher's identity not for a feed without one.
    """
    raw_server.script(answer)

    with pytest.raises(kind, match=match):
        discover(client(raw_server).transport, count)


V2 = (
    b'{"token":"the-token","partitions":[{"id":"0"},{"id":"16000","startsAfterPartition":"0"}],'
    b'"exactlyOnce":true}'
)


def test_the_successor_of_the_protocol_is_refused_by_name(raw_server):
    """FeedAPI 2 answers a request without parameters with its partitions (D20)."""
    raw_server.script(ok(V2, content_type="text/plain"))

    with pytest.raises(PublisherError, match=r"speaks FeedAPI 2 here.*listed: 2\)") as caught:
        discover(client(raw_server).transport)

    assert caught.value.anchor == "the-publisher-speaks-feedapi-2"


def test_both_versions_at_one_address_are_read(raw_server):
    """feedapi-go serves version 1 to a reader that sends n (D20)."""
    raw_server.respond = lambda request: (
        ok(V2)
        if "n" not in request.query
        else ok(b'{"partition":0,"data":1}\n{"partition":0,"cursor":"c1"}\n')
    )

    assert 7 == discover(client(raw_server).transport, 7).partition_count
    assert read(client(raw_server).page(ask()))
