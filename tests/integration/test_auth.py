"""Sources of tokens by name: registered in a program, or installed with a package."""

import pickle
import subprocess
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
from pyspark import cloudpickle

from tests.cases import each_case
from tests.fix_client import BODY, ask, client, read
from tests.fix_oauth import TokenServer
from tests.fix_raw_server import ok, refused
from zeh_spark import register_auth
from zeh_spark.client.http.credentials import masked
from zeh_spark.client.http.tokens import ClientCredentials, Tokens
from zeh_spark.client.http.transport import Transport
from zeh_spark.client.options.auth import REGISTERED
from zeh_spark.client.options.client_options import ClientOptions
from zeh_spark.client.options.given import parse
from zeh_spark.errors import AccessError, OptionError
from zeh_spark.publish import Producer
from zeh_spark.spark.sink.options import SinkOptions

URL = "http://127.0.0.1:8080/orders"


@dataclass
class Source:
    """Gives the tokens of the token server as azure-identity does, or what `given` has."""

    server: TokenServer
    given: object = None

    def get_token(self, *scopes: str) -> object:
        if isinstance(self.given, Exception):
            raise self.given
        if self.given is not None:
            return self.given
        credentials = ClientCredentials(parse(ClientOptions, {"url": URL, **self.server.options}))
        return credentials.get_token(*scopes)


@pytest.fixture(autouse=True)
def own_names() -> Iterator[None]:
    yield
    REGISTERED.clear()


def options(**given: str) -> ClientOptions:
    return parse(ClientOptions, {"url": URL, "auth": "login", **given})


def test_a_producer_and_readers_share_the_tokens_of_a_source(token_server, guarded):
    """I register it once; everything in the process that names it has one token for each scope."""
    register_auth("login", lambda: Source(token_server))
    named = {"auth": "login", "auth.scope": "feeds"}
    with Producer(f"{guarded}/orders", "till-7", **named).batch() as batch:
        batch.add({"order": 17})
    for _ in range(2):
        transport = Transport(options(url=f"{guarded}/orders", **{"auth.scope": "feeds"}))
        transport.request("GET", query="n=1&cursor0=_first").close()

    assert token_server.asked == [{"grant_type": "client_credentials", "scope": "feeds"}]


def test_a_token_is_renewed_before_it_expires_and_after_a_refusal(token_server, raw_server):
    """As one of OAuth2 client credentials is: both are asked for by the same code."""
    register_auth("login", lambda: Source(token_server))
    now = [1000.0]
    tokens = Tokens(options(), clock=lambda: now[0])
    first = tokens.token()
    now[0] += 271
    assert first != tokens.token()

    raw_server.script(refused(401, "expired"), ok(BODY))
    assert read(client(raw_server, auth="login").page(ask())) == [1, 2]
    sent = [each.headers["authorization"] for each in raw_server.requests]
    assert len({*sent}) == 2


def test_a_task_asks_itself_when_the_drivers_token_is_refused(token_server, guarded):
    """The options of a task bring the factory along, pickled as Spark pickles them."""
    register_auth("login", lambda: Source(TokenServer(url=token_server.url)))
    sent = replace(options(url=f"{guarded}/orders"), token="expired-token")
    arrived = pickle.loads(cloudpickle.dumps(sent))

    Transport(arrived).request("GET", query="n=1&cursor0=_first").close()

    assert len(token_server.asked) == 1


def test_a_refused_token_leads_to_the_source_that_gave_it(token_server, raw_server):
    """I look at what I set, not at options that I never used."""
    register_auth("login", lambda: Source(token_server))
    raw_server.script(refused(401, "no"))
    for given, name in (({"auth": "login"}, "auth"), (token_server.options, "oauth.tokenUrl")):
        with pytest.raises(AccessError, match=rf"401: no .*; check '{name}', which gave the token"):
            read(client(raw_server, **given).page(ask()))


def test_a_text_is_a_token_without_an_end(raw_server):
    """It is kept until the publisher refuses it, and hidden as every token is."""
    register_auth("login", lambda: Source(TokenServer(), "a-token-that-never-ends"))
    raw_server.script(ok(BODY))

    assert read(client(raw_server, auth="login").page(ask())) == [1, 2]
    assert raw_server.requests[0].headers["authorization"] == "Bearer a-token-that-never-ends"
    assert "never" not in masked("401 for a-token-that-never-ends")


@each_case(
    ("given", "said"),
    [
        (RuntimeError("no identity here"), "RuntimeError: no identity here"),
        (SimpleNamespace(token="a\nb"), "ValueError"),
        (SimpleNamespace(token=None), "TypeError: get_token gave NoneType instead of a text"),
        (b"a-token", "TypeError: get_token gave bytes instead of a text"),
        (SimpleNamespace(token="a", expires_on="soon"), "ValueError"),
    ],
)
def test_a_source_without_a_token_is_named(given, said, raw_server):
    """I see its own reason, where to look, and no request was sent without a token."""
    register_auth("login", lambda: Source(TokenServer(), given))

    with pytest.raises(AccessError, match=rf"auth 'login' gives no token \({said}.*each executor"):
        read(client(raw_server, auth="login", retryTimeout="0s").page(ask()))
    assert raw_server.requests == []


@each_case(
    ("given", "said"),
    [
        ({"auth": "nobody"}, r"registered name \(registered: login\).*register_auth.*got 'nobody'"),
        ({"auth": "os.system"}, "must be a registered name"),
        ({"auth.scope": "feeds"}, "'auth.scope' needs 'auth'"),
        ({"auth": "login", "token": "a-token"}, "'token' and 'auth' exclude each other"),
        ({"auth": "login", "http.secret.header.Authorization": "Basic x"}, "exclude each other"),
        ({"auth": "login", "oauth.tokenUrl": "https://x/t", "oauth.clientId": "a",
          "oauth.clientSecret": "b"}, "'oauth.tokenUrl' and 'auth' exclude each other"),
    ],
)  # fmt: skip
def test_options_that_do_not_fit_are_refused(given, said):
    register_auth("login", lambda: Source(TokenServer()))

    with pytest.raises(OptionError, match=said):
        parse(ClientOptions, {"url": URL, **given})


def test_a_dead_letter_feed_elsewhere_gets_no_token_of_the_source():
    """Credentials are for an origin."""
    register_auth("login", lambda: Source(TokenServer()))
    named = {"auth": "login", "auth.scope": "feeds", "producerId": "p"}
    letters = parse(
        SinkOptions, {"url": URL, "deadLetterUrl": "https://other.example/dead", **named}
    ).dead_letters

    assert letters is not None
    assert (letters.auth, letters.auth_scope) == (None, None)


def test_a_factory_can_be_called():
    """A path is none."""
    with pytest.raises(OptionError, match="give a function instead"):
        register_auth("login", "os.system")  # type: ignore[arg-type]


def test_a_token_in_the_place_of_a_factory_is_not_shown():
    """I took the second argument for the token itself."""
    with pytest.raises(OptionError, match="instead of str") as raised:
        register_auth("login", "s3cret-t0ken")  # type: ignore[arg-type]

    assert "s3cret" not in str(raised.value)


def test_what_a_source_says_shows_no_secret_in_a_traceback(raw_server):
    """A secret of this process may stand in the error of the company's own code."""
    masked.add("s3cret-pass-phrase")
    register_auth("login", lambda: Source(TokenServer(), ValueError("not s3cret-pass-phrase")))

    with pytest.raises(AccessError, match=r"ValueError: not \(hidden\)") as raised:
        read(client(raw_server, auth="login", retryTimeout="0s").page(ask()))

    assert "s3cret" not in "".join(traceback.format_exception(raised.value))


def test_an_older_registration_that_arrives_late_does_not_replace_a_newer_one():
    """A task of a query that began before brings its own."""
    register_auth("login", dict)
    older = pickle.dumps(REGISTERED["login"])
    register_auth("login", list)
    newer = pickle.dumps(REGISTERED["login"])

    assert pickle.loads(older).factory is dict
    assert REGISTERED["login"].factory is list
    REGISTERED.clear()
    for each in (older, newer):
        pickle.loads(each)
    assert REGISTERED["login"].factory is list


def test_a_package_brings_a_source_by_an_entry_point(tmp_path, token_server, guarded):
    """It is found in each process that has the package, and in commands, by its name alone."""
    about = tmp_path / "company_login-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: company-login\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[zeh_spark.auth]\nlogin = company_login:Login\nbroken = company_login:Nothing\n"
        "failing = company_settings:Login\n"
    )
    (tmp_path / "company_settings.py").write_text("import os\nos.environ['COMPANY_LOGIN']\n")
    secret = token_server.options  # which the company keeps where it likes
    (tmp_path / "company_login.py").write_text(
        "from zeh_spark.client.http.tokens import ClientCredentials\n"
        "from zeh_spark.client.options.client_options import ClientOptions\n"
        "from zeh_spark.client.options.given import parse\n"
        f"OPTIONS = {{'url': {URL!r}, **{secret!r}}}\n"
        "def Login(): return ClientCredentials(parse(ClientOptions, OPTIONS))\n"
    )

    def tail(name: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "zeh_spark", "tail", f"{guarded}/orders", "--no-follow"]
        path = ":".join([str(tmp_path), *sys.path])
        environment = {"PYTHONPATH": path, "ZEH_AUTH": name, "ZEH_AUTH_SCOPE": "feeds"}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    assert tail("login").returncode == 0
    assert [each["scope"] for each in token_server.asked] == ["feeds"]
    for name, why in (
        ("broken", "company_login:Nothing (AttributeError: "),
        ("failing", "company_settings:Login (KeyError: 'COMPANY_LOGIN')"),
    ):
        failed = tail(name)
        assert failed.returncode == 2
        assert f"ZEH_AUTH cannot be loaded from {why}" in failed.stderr
