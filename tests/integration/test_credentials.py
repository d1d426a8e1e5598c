"""Who gets the credentials, whom the client trusts, and that no secret is shown."""

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.cases import each_case
from tests.fix_client import BODY, ask, client, event, read
from tests.fix_raw_server import (
    Answer,
    ok,
    redirect,
    refused,
    reset,
    short,
)
from tests.ports import free_port
from zeh_spark.client.decoding.lines import Decoder
from zeh_spark.client.http.transport import Transport
from zeh_spark.client.options.client_options import ClientOptions
from zeh_spark.client.options.given import parse
from zeh_spark.errors import (
    AccessError,
    OptionError,
    PublisherError,
    UnavailableError,
    ZeroEventHubError,
)
from zeh_spark.spark.source.batch import BatchReader
from zeh_spark.spark.source.options import SourceOptions

HUSH = "hush-secret"


# Redirects and credentials


def test_a_redirect_on_the_same_origin_keeps_the_credentials(raw_server):
    """A feed that moved within its server gets my token (RFC 6750), and headers for gateways."""
    raw_server.script(redirect("/elsewhere?x=1"), ok(BODY))
    options = {"token": HUSH, "http.header.X-Tenant": "a", "http.secret.header.X-Key": "k"}

    assert [1, 2] == read(client(raw_server, **options).page(ask()))
    headers = [each.headers for each in raw_server.requests]
    assert [(f"Bearer {HUSH}", "a", "k")] * 2 == [
        (each["authorization"], each["x-tenant"], each["x-key"]) for each in headers
    ]
    assert "/elsewhere?x=1" == raw_server.requests[1].target
    raw_server.script(redirect("/elsewhere", 307), ok())
    Transport(parse(ClientOptions, {"url": raw_server.url})).request("PUT", "/x", "", b"e").close()
    assert [b"e"] * 2 == [each.body for each in raw_server.requests[2:]]


def test_another_origin_gets_no_credentials(raw_server, start_raw_server):
    """My token goes to the feed that I named, and to no one it points at."""
    other = start_raw_server()
    other.script(ok(BODY))
    raw_server.script(redirect(other.url))
    options = {"token": HUSH, "http.header.X-Tenant": "a", "http.secret.header.X-Key": HUSH}

    assert [1, 2] == read(client(raw_server, **options).page(ask()))
    assert not {"authorization", "x-tenant", "x-key"} & other.requests[0].headers.keys()


@pytest.mark.parametrize(
    "location",
    [  # the last three are those of another host, for every library
        "http://localhost:{evil}\\@localhost:{home}/x",
        "http://localhost:{evil}\\.localhost:{home}/x",
        "\\\\localhost:{evil}",
        "//localhost:{evil}\\@localhost:{home}/x",
        "http://localhost:{home}@localhost:{evil}",
        "http://user:secret@localhost:{home}/x",
        "http://localhost:{evil}\x0b@localhost:{home}/x",
        "http://localhost:{home}/x\ty",
        "http://localhost:{home}/a b",
        "http://localhost:{home}/\x9b",
        "http://localhost:{home}/\xe9",
        "http://localhost:{evil}#@localhost:{home}/x",
        "http://localhost:{evil}?@localhost:{home}/x",
        "http://localhost:{evil}/\u0040localhost:{home}/x",
    ],
)
def test_no_redirect_that_libraries_read_in_two_ways_gets_anything(
    raw_server, start_raw_server, location
):
    """My token, my headers and my events go to the host that I named, however an address is
    written: what is ambiguous is refused, and where the request is really sent is what counts.
    """
    other = start_raw_server()
    other.script(ok(BODY))
    moved = location.format(evil=other.port, home=raw_server.port).encode("latin-1")
    answer = redirect("LOCATION").pieces[0].replace(b"LOCATION", moved)
    options = {"url": raw_server.url, "token": HUSH, "http.secret.header.X-Key": HUSH}
    transport = Transport(parse(ClientOptions, options))
    for method, body in (("GET", None), ("PUT", b"events")):
        raw_server.script(Answer((answer,)), ok())
        with contextlib.suppress(PublisherError):
            transport.request(method, "/x", "", body).close()

    assert not any(HUSH in str(each) or each.body for each in other.requests)
    followed = location.partition("{evil}")[2][:1] in {"#", "?", "/"}
    assert (2, int(followed)) == (len(raw_server.requests), len(other.requests))


def test_what_is_published_goes_to_no_other_origin(raw_server, start_raw_server):
    """My events stay with the publisher that I named, whatever it answers."""
    other = start_raw_server()
    raw_server.script(redirect(other.url, 307))
    transport = Transport(parse(ClientOptions, {"url": raw_server.url}))

    with pytest.raises(PublisherError, match="another origin, and what is sent is not sent there"):
        transport.request("PUT", "/producers/p/batches/0/uploads/r.0.0.0", "", b"events")
    assert other.requests == []


def test_no_redirect_leaves_tls(start_raw_server, raw_server, authority):
    """What I read over TLS is not read over the open network."""
    secure = start_raw_server(authority.server_context())
    secure.script(redirect(raw_server.url))

    with pytest.raises(PublisherError, match="to an address without TLS"):
        read(client(secure, caFile=authority.ca_file).page(ask()))
    assert raw_server.requests == []


@each_case(
    ("location", "said"),
    [
        ("/feed/v1", "more than 10 redirects"),
        ("ftp://example.org/feed", "invalid address"),
        ("http://localhost:99999/feed", "invalid address"),
    ],
)
def test_a_redirect_to_itself_or_to_nowhere_is_an_error(raw_server, location, said):
    """Two servers that point at each other are no loop; what is no web address is not followed."""
    raw_server.script(redirect(location))

    with pytest.raises(PublisherError, match=said):
        read(client(raw_server).page(ask()))


@pytest.mark.parametrize(
    ("host", "secret", "warns"),
    [
        ("203.0.113.7", {"token": HUSH}, True),
        ("203.0.113.8", {"http.secret.header.X-Key": HUSH}, True),
        ("203.0.113.9", {"http.header.X-Tenant": "a"}, False),
        ("127.0.0.1", {"token": HUSH}, False),
        ("[::1]", {"token": HUSH}, False),
        ("localhost", {"token": HUSH}, False),
    ],
)
def test_a_token_that_leaves_the_machine_without_tls_is_a_warning(
    raw_server, host, secret, warns, caplog, monkeypatch
):
    """I hear once that anybody on the way can read my token, and never see it."""
    monkeypatch.setenv("http_proxy", raw_server.url)  # it stands for all other machines
    raw_server.respond = lambda request: ok(BODY)
    options = {"url": f"http://{host}:{free_port()}/feed?key={HUSH}", **secret}
    for _ in range(2):
        with Transport(parse(ClientOptions, options)).request("GET"):
            pass

    told = [each.getMessage() for each in caplog.records if "plain text" in each.getMessage()]
    assert int(warns) == len(told)
    assert HUSH not in caplog.text


@pytest.mark.parametrize(
    ("renewed", "good", "sent"),
    [
        ("new", "new", ["Bearer old", "Bearer new"]),
        ("old", "new", ["Bearer old"]),
        ("new", "another", ["Bearer old", "Bearer new"]),
    ],
)
def test_a_rotated_token_is_read_again_once(raw_server, tmp_path, renewed, good, sent):
    """Tokens expire while a query runs; the file's new one is used without a restart. One that
    nobody renewed, or that is refused, too, is an error at once.
    """
    file = tmp_path / "token"
    file.write_text("old\n")
    raw_server.respond = lambda request: (
        ok(BODY)
        if request.headers["authorization"] == f"Bearer {good}"
        else refused(401, "expired")
    )
    one = client(raw_server, tokenFile=str(file))
    file.write_text(f"{renewed}\n")
    if renewed == good:
        assert [1, 2] == read(one.page(ask()))
    else:
        said = r"401: expired \(.*\); check 'token' or 'tokenFile'"
        with pytest.raises(AccessError, match=said):
            read(one.page(ask()))

    assert sent == [each.headers["authorization"] for each in raw_server.requests]


def test_a_rotated_token_is_found_by_all_threads(raw_server, tmp_path):
    """Partitions are asked at the same time, and all of them with the old one."""
    file = tmp_path / "token"
    file.write_text("old\n")
    both = threading.Barrier(2, timeout=30)

    def respond(request):
        if request.headers["authorization"] == "Bearer new":
            return ok(BODY)
        both.wait()
        return refused(401, "expired")

    raw_server.respond = respond
    one = client(raw_server, tokenFile=str(file))
    file.write_text("new\n")

    with ThreadPoolExecutor(2) as pool:
        assert [[1, 2]] * 2 == list(pool.map(lambda _: read(one.page(ask())), range(2)))


@each_case("content", [None, b"", b" \n", b"\xff\xfe", f"{HUSH}\n{HUSH}".encode()])
def test_a_token_file_without_a_token_is_an_option_error(raw_server, tmp_path, content):
    """A wrong path shows before anything is asked, and no library prints what the file holds."""
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)

    with pytest.raises(OptionError, match="'tokenFile'") as caught:
        client(raw_server, tokenFile=str(file))
    assert HUSH not in str(caught.value)


def test_a_netrc_never_decides(raw_server, tmp_path, monkeypatch):
    """What lies in a home directory of the driver is not sent to a publisher."""
    netrc = tmp_path / "netrc"
    netrc.write_text("machine localhost login me password mine\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    raw_server.script(ok(BODY))

    read(client(raw_server).page(ask()))
    read(client(raw_server, token="t").page(ask()))

    assert [None, "Bearer t"] == [each.headers.get("authorization") for each in raw_server.requests]


# TLS


def test_a_certificate_of_strangers_is_refused_at_once(start_raw_server, authority):
    """If nobody vouches for it, its option is named; who answers has to be who I asked."""
    unknown = start_raw_server(authority.server_context())
    other = start_raw_server(authority.server_context(host="other.example"))

    with pytest.raises(PublisherError, match=r"TLS: .*certificate.*'caFile'"):
        read(client(unknown).page(ask()))
    with pytest.raises(PublisherError, match=r"TLS: .*localhost"):
        read(client(other, caFile=authority.ca_file).page(ask()))


def test_a_client_certificate_opens_the_door(start_raw_server, authority, tmp_path):
    """Mutual TLS: clientCertFile, with the key in the same file."""
    server = start_raw_server(authority.server_context(ask_client=True))
    server.script(ok(BODY))
    pair, both = authority.issue("client", "c@example.org"), tmp_path / "client.pem"
    both.write_bytes(b"".join(each.read_bytes() for each in (pair.cert, pair.key)))
    options = {"caFile": authority.ca_file, "clientCertFile": str(both)}

    assert [1, 2] == read(client(server, **options).page(ask()))


def test_https_to_a_plain_port_is_named_at_once(publisher):
    """`https:` where the publisher speaks HTTP."""
    url = publisher.url.replace("http:", "https:")

    with pytest.raises(PublisherError, match=r"should begin with http:"):
        read(client(None, url=url).page(ask()))


def test_http_to_a_tls_port_ends(start_raw_server, authority):
    """`http:` where the publisher wants TLS: it breaks off, and the error says where."""
    server = start_raw_server(authority.server_context())
    url = server.url.replace("https:", "http:")

    with pytest.raises(UnavailableError, match="does not answer, or broke off"):
        read(client(server, url=url, retryTimeout="0s").page(ask()))


@each_case(
    ("given", "said"),
    [
        ({"caFile": "/nowhere"}, "'caFile': cannot read '/nowhere'"),
        ({"clientCertFile": "/nowhere"}, "'clientCertFile': cannot read '/nowhere'"),
        ({"clientCertFile": "{empty}"}, r"'clientCertFile': cannot use .*PEM"),
        ({"clientCertFile": "{text}"}, r"'clientCertFile': cannot use .*PEM"),
        (
            {"clientCertFile": "{client}", "clientKeyFile": "{other}"},
            r"cannot use .*client\.pem' and its key .*other\.key'",
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_named(raw_server, authority, tmp_path, given, said):
    """It is my mistake, also if two do not belong together: it shows before anything is asked."""
    files = {name: str(tmp_path / name) for name in ("empty", "text")}
    (tmp_path / "empty").write_text("")
    (tmp_path / "text").write_text("no PEM")
    client_cert, other = authority.issue("client").cert, authority.issue("other").key
    files |= {"client": str(client_cert), "other": str(other)}

    with pytest.raises(OptionError, match=said):
        client(raw_server, **{name: file.format(**files) for name, file in given.items()})


# Secrets

FAULTS = {
    "refused": refused(401, "no"),
    "busy": refused(503, "later"),
    "reset": reset(),
    "cut": short(event(1)),
    "redirect": redirect("/feed/v1"),
    "away": redirect("nonsense://[::1"),
    "echo": refused(401, f"token {HUSH} is unknown"),
    "busy echo": refused(503, f"token {HUSH} is unknown"),
    "echo of a cursor": ok(b'{"cursor":{"token":"%b"}}\n' % HUSH.encode()),
    "echo in a line": ok(f"token {HUSH} is unknown".encode()),
    "echo in an unknown line": ok(b'{"error":"%b"}' % HUSH.encode()),
    "bad header": Answer((b"HTTP/1.1 503 x\r\nNo Header\r\nContent-Length: 0\r\n\r\n",)),
    "html": ok(b"<html>", content_type="text/html"),
    "bad line": ok(b'{"partition":9,"cursor":"x"}\n'),
    "closed port": None,
}


@pytest.mark.parametrize("answer", FAULTS.values(), ids=FAULTS)
def test_no_error_and_no_log_shows_a_secret(raw_server, caplog, answer):
    """Tokens, secret headers and the URL's query stay out of whatever somebody may paste."""
    caplog.set_level("DEBUG", "zeh_spark")
    caplog.set_level("DEBUG", "urllib3")
    if answer:
        raw_server.script(answer)
    else:
        raw_server.stop()
    given = {"url": f"{raw_server.url}?key={HUSH}", "token": HUSH, "retryTimeout": "0s"}
    given |= {"readTimeout": "1s", "wait": "0"}
    given |= {"http.secret.header.X-Key": HUSH, "partitionCount": "1"}
    reader = BatchReader(parse(SourceOptions, given), Decoder(("data",), "c", False))

    with pytest.raises(ZeroEventHubError) as caught:
        reader.partitions()

    assert HUSH not in caplog.text + str(caught.value) + repr(caught.value) + repr(reader._options)
