"""A token server (OAuth2 client credentials) and a publisher that takes its tokens, JWTs."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, unquote

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from tests.fix_raw_server import Answer, RawServer, Request, ok
from tests.scratch_store import ScratchStore
from zeh_spark.publisher import create_app
from zeh_spark.service.access.gate import Gate
from zeh_spark.service.access.jwt_tokens import JwtTokens
from zeh_spark.testing import running_publisher

ISSUER, AUDIENCE = "https://login.example/", "feeds"
CLIENT, SECRET = "job:1", "canary%of+a/client-secret"
_KEY = ec.generate_private_key(ec.SECP256R1())


@dataclass
class TokenServer:
    """Gives JWTs with these rights to who knows CLIENT and SECRET.

    `script`: answers to give first, as (status, document); `asked`: the forms that came;
    `silence`: an event for which its answers wait.
    """

    url: str = ""
    rights: str = "read:* publish:*"
    lifetime: float | None = 300
    script: list[tuple[int, object]] = field(default_factory=list)
    asked: list[dict[str, str]] = field(default_factory=list)
    silence: threading.Event | None = None

    @property
    def options(self) -> dict[str, str]:
        """The options of a client."""
        return {
            "oauth.tokenUrl": self.url,
            "oauth.clientId": CLIENT,
            "oauth.clientSecret": SECRET,
        }

    def answer(self, authorization: str, form: dict[str, str]) -> tuple[int, object]:
        self.asked.append(form)
        if self.silence:
            assert self.silence.wait(60)
        if self.script:
            return self.script.pop(0)
        name, _, secret = base64.b64decode(authorization.removeprefix("Basic ")).partition(b":")
        if (unquote(name.decode()), unquote(secret.decode())) != (CLIENT, SECRET):
            return 401, {"error": "invalid_client", "error_description": "who are you?"}
        if form.get("grant_type") != "client_credentials":
            return 400, {"error": "unsupported_grant_type"}
        claims = {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "exp": time.time() + 300,
            "zeh": self.rights,
            "jti": str(len(self.asked)),
        }
        token = jwt.encode(claims, _KEY, "ES256", {"kid": "1"})
        lifetime = {} if self.lifetime is None else {"expires_in": self.lifetime}
        return 200, {"access_token": token, "token_type": "Bearer", **lifetime}


@pytest.fixture
def token_server(start_raw_server: Callable[..., RawServer]) -> TokenServer:
    """A token server."""
    listening, server = start_raw_server(), TokenServer()

    def respond(request: Request) -> Answer:
        form = {name: value for name, [value] in parse_qs(request.body.decode()).items()}
        status, document = server.answer(request.headers.get("authorization", ""), form)
        sent = document if isinstance(document, bytes) else json.dumps(document).encode()
        return ok(sent, status, content_type="application/json")

    listening.respond, server.url = respond, f"{listening.address}/token"
    return server


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[str]:
    """The base URL of a publisher of the feed `orders` that takes the JWTs of `token_server`."""
    made = jwt.get_algorithm_by_name("ES256")
    public = {**made.to_jwk(_KEY.public_key(), as_dict=True), "kid": "1"}
    (tmp_path / "keys.json").write_text(json.dumps({"keys": [public]}))
    store = ScratchStore(orders=2)
    issued = JwtTokens(ISSUER, AUDIENCE, str(tmp_path / "keys.json"))
    gate = Gate(store, is_open=False, issued=issued)
    with running_publisher(store, create_app(store, gate=gate)) as base:
        yield base
