"""JWTs of an identity provider: which count, what they may do, and how keys change."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jwt
import pytest
import requests
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from starlette.requests import Request

from tests.cases import each_case
from tests.fix_cli import call
from tests.fix_oauth import AUDIENCE, ISSUER
from tests.fix_publisher import new_feed, served, token_of
from tests.fix_raw_server import RawServer, ok
from tests.patience import eventually
from tests.scratch_store import ScratchStore
from zeh_spark.errors import StoreError
from zeh_spark.publisher import create_app
from zeh_spark.service.access import gate as access
from zeh_spark.service.access import jwt_tokens
from zeh_spark.service.access.gate import Gate, client_of, note_token
from zeh_spark.service.access.jwt_tokens import JwtTokens, grants_in, read_keys
from zeh_spark.service.store.interface import now_ms
from zeh_spark.service.store.token_rights import ADMIN, Grant, Right, Token
from zeh_spark.testing import running_publisher

KEYS: dict[str, Any] = {
    "RS256": rsa.generate_private_key(public_exponent=65537, key_size=2048),
    "ES256": ec.generate_private_key(ec.SECP256R1()),
    "EdDSA": ed25519.Ed25519PrivateKey.generate(),
}
READ = "/orders?n=1&cursor0=_first"


def jwk(algorithm: str, key: Any = None, **more: object) -> dict[str, Any]:
    """The public key of the provider for an algorithm, as its name."""
    made = jwt.get_algorithm_by_name(algorithm)
    public = (key or KEYS[algorithm]).public_key()
    return {**made.to_jwk(public, as_dict=True), "kid": algorithm, **more}


def key_set(*keys: dict[str, Any]) -> bytes:
    return json.dumps({"keys": list(keys) or [jwk(each) for each in KEYS]}).encode()


def signed(algorithm: str = "ES256", key: Any = None, kid: str | None = "", **claims: Any) -> str:
    """A JWT; a claim that is None is left out."""
    usual = {"iss": ISSUER, "aud": AUDIENCE, "exp": time.time() + 60, "zeh": ["read:orders"]}
    given = {name: value for name, value in {**usual, **claims}.items() if value is not None}
    headers = None if kid is None else {"kid": kid or algorithm}
    return jwt.encode(given, key or KEYS[algorithm], algorithm, headers)


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    file = tmp_path / "keys.json"
    file.write_bytes(key_set())
    return file


@contextmanager
def asked(
    source: str, store: ScratchStore | None = None
) -> Iterator[Callable[..., requests.Response]]:
    """What asks a publisher with a JWT."""
    store = store or ScratchStore(orders=1, other=1)
    gate = Gate(store, is_open=True, issued=JwtTokens(ISSUER, AUDIENCE, source))
    with running_publisher(store, create_app(store, gate=gate)) as base:

        def ask(token: str, path: str = READ) -> requests.Response:
            headers = {"Authorization": f"Bearer {token}"}
            return requests.get(f"{base}{path}", headers=headers, timeout=30)

        yield ask


@pytest.mark.parametrize("algorithm", KEYS)
def test_a_jwt_may_do_what_its_claim_says(keys: Path, algorithm: str) -> None:
    with asked(str(keys)) as ask:
        token = signed(algorithm)
        found = [ask(token, path).status_code for path in (READ, READ.replace("orders", "other"))]
        audits = ask(token, "/orders/producers").status_code
        admin = ask(signed(algorithm, zeh="admin"), "/orders/producers").status_code
    assert ([200, 403], 403, 200) == (found, audits, admin)


def unsigned(algorithm: str) -> str:
    def part(value: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    claims = {"iss": ISSUER, "aud": AUDIENCE, "exp": time.time() + 60, "zeh": "admin"}
    return f"{part({'alg': algorithm, 'kid': 'RS256'})}.{part(claims)}."


def signed_with_the_public_key() -> str:
    """With HMAC, whose secret would be what everybody can see."""
    pem = (
        KEYS["RS256"]
        .public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    head, claims, _ = unsigned("HS256").split(".")
    sum_of = hmac.digest(pem, f"{head}.{claims}".encode(), hashlib.sha256)
    return f"{head}.{claims}.{base64.urlsafe_b64encode(sum_of).rstrip(b'=').decode()}"


def signed_of_several_issuers() -> str:
    """As no provider would sign it, and PyJWT neither."""
    payload = {"iss": [ISSUER], "aud": AUDIENCE, "exp": time.time() + 60, "zeh": ["read:orders"]}
    text = json.dumps(payload).encode()
    return jwt.api_jws.encode(text, KEYS["ES256"], "ES256", {"kid": "ES256"})


def altered() -> str:
    """With the signature of another one."""
    head, _, signature = signed().split(".")
    return f"{head}.{signed(zeh='admin').split('.')[1]}.{signature}"


REFUSED: dict[str, Callable[[], str]] = {
    "expired": lambda: signed(exp=time.time() - 40),
    "for ever": lambda: signed(exp=None),
    "not yet": lambda: signed(nbf=time.time() + 90),
    "another issuer": lambda: signed(iss="https://other.example/"),
    "a part of the issuer": lambda: signed(iss=ISSUER.removesuffix("/")),
    "several issuers": lambda: signed_of_several_issuers(),
    "no issuer": lambda: signed(iss=None),
    "another audience": lambda: signed(aud="others"),
    "no audience": lambda: signed(aud=None),
    "another key": lambda: signed(key=ec.generate_private_key(ec.SECP256R1())),
    "another algorithm of the key": lambda: signed("PS256", KEYS["RS256"], "RS256"),
    "an unknown key": lambda: signed(kid="unknown"),
    "no key among several": lambda: signed(kid=None),
    "no signature": lambda: unsigned("none"),
    "the public key as a secret": signed_with_the_public_key,
    "altered": altered,
    "too long": lambda: signed(more="x" * (16 << 10)),
    "no JWT": lambda: "a.b.c",
    "nested": lambda: base64.urlsafe_b64encode(b"[" * 9000).decode() + ".e30.e30",
}


@pytest.fixture
def store() -> ScratchStore:
    return ScratchStore(orders=1, other=1)


@pytest.fixture
def ask(keys: Path, store: ScratchStore) -> Iterator[Callable[..., requests.Response]]:
    with asked(str(keys), store) as found:
        yield found


@each_case("why", REFUSED)
def test_what_does_not_count_is_an_unknown_token(
    ask: Callable[..., requests.Response], caplog: pytest.LogCaptureFixture, why: str
) -> None:
    """Neither the answer nor the log helps those who try."""
    caplog.set_level("DEBUG", "zeh_spark")
    token = REFUSED[why]()
    answer, unknown = ask(token), ask("zeh_00000000_unknown")
    said = [{**each.json(), "requestId": ""} for each in (unknown, answer)]
    assert (401, said[0]) == (answer.status_code, said[1])
    assert token.split(".")[1] not in caplog.text or token == "a.b.c"
    assert "Traceback" not in caplog.text


def test_a_jwt_that_was_used_expires_all_the_same(keys: Path) -> None:
    """It is not checked again at each request, but its end is."""
    ahead, token = [0], signed(exp=time.time() + 600)
    store = ScratchStore(clock=lambda: now_ms() + ahead[0], orders=1, other=1)
    with asked(str(keys), store) as ask:
        assert [200, 200] == [ask(token).status_code for _ in range(2)]
        ahead[0] = 700_000
        assert 401 == ask(token).status_code


def test_a_client_is_the_subject_of_its_jwts(
    ask: Callable[..., requests.Response], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of them behind one proxy have a share each; one that renews its JWT has one."""
    found = []

    def noted(request: Request, token: Token) -> None:
        note_token(request, token)
        found.append(client_of(request))

    monkeypatch.setattr(access, "note_token", noted)
    for name, expires in (("till-7", 100), ("till-7", 200), ("till-8", 100)):
        assert 200 == ask(signed(sub=name, exp=time.time() + expires)).status_code
    assert ["token of jwt:till-7", "token of jwt:till-7", "token of jwt:till-8"] == found


def test_tokens_of_the_store_count_beside_them(
    ask: Callable[..., requests.Response], store: ScratchStore
) -> None:
    """Clocks may differ by half a minute. Nothing is open, also where the store has no token."""
    assert [401, 200] == [ask(text).status_code for text in ("", signed())]
    assert 200 == ask(signed(exp=time.time() - 10)).status_code
    assert 200 == ask(signed(nbf=time.time() + 20)).status_code
    text = token_of(store, Grant(Right.READ, "orders"))
    eventually(lambda: ask(text).status_code == 200)


@each_case(
    ("claim", "granted"),
    [
        (["read:orders", "publish:orders/till-*"], "read:orders publish:orders/till-*"),
        ("read:* consume:orders/warehouse", "read:* consume:orders/warehouse"),
        ("audit:orders", "audit:orders"),
        ("admin", " ".join(map(str, ADMIN))),
        (["read:o*s", "read:", "write:orders", "read", 7, None, ["admin"]], ""),
        ({"read": "orders"}, ""),
        (None, ""),
    ],
)
def test_rights_are_written_as_token_list_shows_them(claim: object, granted: str) -> None:
    """What is not understood gives no right."""
    assert granted == " ".join(map(str, grants_in({"zeh": claim})))


# Keys


@pytest.fixture
def provider(raw_server: RawServer) -> RawServer:
    """Serves keys; each request is a fetch of them."""
    raw_server.script(ok(key_set(jwk("ES256"))))
    return raw_server


def test_a_new_key_counts_at_once_and_strangers_cause_no_fetches(provider: RawServer) -> None:
    """My provider changes its keys without a word, and nobody has my publisher attack it."""
    with asked(provider.address) as ask:
        provider.script(ok(key_set(jwk("RS256"))))
        assert 200 == ask(signed("RS256")).status_code
        assert 401 == ask(signed("ES256")).status_code  # the provider has withdrawn it
        for number in range(20):
            assert 401 == ask(signed(kid=f"{number}")).status_code
        assert 2 == len(provider.requests)  # the minute is not over


def test_keys_are_read_again_after_a_while(
    provider: RawServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key that is withdrawn does not count for ever."""
    monkeypatch.setattr(jwt_tokens, "FRESH_SECONDS", 0.0)
    monkeypatch.setattr(jwt_tokens, "AGAIN_SECONDS", 0.0)
    with asked(provider.address) as ask:
        assert 200 == ask(signed()).status_code
        provider.script(ok(key_set(jwk("RS256"))))
        eventually(lambda: ask(signed()).status_code != 200, 30)


def not_asked_for_hours(source: str) -> JwtTokens:
    tokens = JwtTokens(ISSUER, AUDIENCE, source)
    tokens._read_at -= 12 * 3600
    return tokens


def test_the_first_jwt_after_a_quiet_night_waits_for_the_keys(provider: RawServer) -> None:
    """The provider withdrew a stolen key when nobody used my publisher."""
    tokens = not_asked_for_hours(provider.address)
    provider.script(ok(key_set(jwk("RS256"))))
    assert asyncio.run(tokens.token(signed())) is None
    assert 2 == len(provider.requests)


def test_a_provider_that_is_away_since_a_quiet_night_changes_nothing(
    provider: RawServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Only the first JWT waits for it."""
    tokens = not_asked_for_hours(provider.address)
    provider.stop()
    assert asyncio.run(tokens.token(signed()))
    assert "the keys of JWTs stay as they were" in caplog.text
    provider.start()
    assert asyncio.run(tokens.token(signed()))
    assert 1 == len(provider.requests)


def test_a_provider_that_is_away_changes_nothing(
    provider: RawServer, caplog: pytest.LogCaptureFixture
) -> None:
    """And the log says so."""
    with asked(provider.address) as ask:
        provider.stop()
        assert 401 == ask(signed("RS256")).status_code
        assert 200 == ask(signed()).status_code
    assert "the keys of JWTs stay as they were" in caplog.text


SMALL = rsa.generate_private_key(public_exponent=65537, key_size=1024)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"<html>", "not a JWK set"),
        (b'{"keys": 7}', "not a JWK set"),
        (key_set({"kty": "oct", "k": "c2VjcmV0", "kid": "a"}), "no key"),
        (key_set(jwk("RS256", SMALL)), "no key"),
        (key_set(jwk("ES256", use="enc")), "no key"),
        (key_set(jwk("RS256", alg="RS512")), "no key"),
        (key_set({**jwk("ES256"), "d": "AA"}), "a private key"),
    ],
    ids=["HTML", "no list", "symmetric", "small", "for encryption", "RS512", "private"],
)
def test_keys_that_cannot_be_used_are_refused(tmp_path: Path, content: bytes, said: str) -> None:
    """I learn at the start what is wrong with them."""
    file = tmp_path / "keys.json"
    file.write_bytes(content)
    with pytest.raises(StoreError, match=said) as raised:
        read_keys(str(file))
    assert str(file) in raised.value.what


@each_case(
    ("source", "said"),
    [
        ("http://login.example/keys", "https only"),
        ("http://login.example\\@localhost/keys", "https only"),  # requests asks login.example
        ("http://*/keys", "no address"),
        ("/nowhere/keys.json", "cannot be read"),
    ],
)
def test_keys_are_fetched_by_https_only(source: str, said: str) -> None:
    """Whoever can change them can make tokens."""
    with pytest.raises(StoreError, match=said):
        read_keys(source)


def test_serve_takes_jwts(tmp_path: Path, keys: Path) -> None:
    """A person with a token of my identity provider reads a feed."""
    url, token = new_feed(tmp_path / "feeds.db", "first"), tmp_path / "token"
    token.write_text(signed())
    words = ["--jwt-issuer", ISSUER, "--jwt-audience", AUDIENCE, "--jwt-keys", str(keys)]
    with served(url, *words) as (base, _):
        tail = ["tail", f"{base}/orders", "--from", "first", "--no-follow"]
        read = call(*tail, "--token-file", str(token))
        refused = call(*tail)
    assert (0, '"first"\n') == (read.returncode, read.stdout)
    assert 5 == refused.returncode and "unauthorized" in refused.stderr
