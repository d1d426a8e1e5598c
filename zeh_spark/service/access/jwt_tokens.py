"""Tokens that an identity provider issues: JWTs (RFC 7519), checked with its keys (RFC 7517).

The claim `zeh` has the rights, as `zeh-spark token list` shows them. A JWT is valid if it is signed
with a key of the provider by one of three algorithms, names the issuer and the audience that are
configured, and has not expired. Its header does not choose the algorithm or the place of the keys:
the algorithm is that of the key.

The keys are kept in memory. They are read again with the first JWT after they are ten minutes old,
which waits for them if no JWT has come for a minute more, and when a JWT names one that is not
known, but then at most once a minute, because anybody can name any key. If that fails, the old ones
stay in use. So a key that the provider withdraws is valid for eleven minutes more at most, as long
as the provider answers.

Rule for editors: no log and no answer says why a JWT is refused, nor shows a part of it. Runs in
the publisher's event loop; keys are read in a thread.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio.to_thread
import jwt
import msgspec
import requests
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from zeh_spark.errors import StoreError
from zeh_spark.service.store.token_rights import ADMIN, Grant, Right, Token, parse_grant
from zeh_spark.wire.option_values import is_loopback

log = logging.getLogger("zeh_spark.publisher")

ALGORITHMS = ("RS256", "ES256", "EdDSA")
"""How a JWT may be signed. Those with a shared secret are not among them: each publisher could make
tokens then.
"""

CLAIM = "zeh"
LEEWAY_SECONDS = 30.0
"""Seconds by which the clocks of the provider and of the publisher may differ."""

FRESH_SECONDS, AGAIN_SECONDS = 600.0, 60.0
"""The age at which keys are read again, and the least seconds between two readings."""

_MOST_BYTES, _LONGEST_JWT, _LEAST_RSA_BITS = 1 << 20, 16 << 10, 2048
_MOST_CHECKED = 1024
_FETCH_SECONDS = 5.0


class JwtTokens:
    """Tells tokens of one issuer from others. Belongs to one event loop.

    Args:
        keys: A file with the issuer's keys (a JWK set), or its https URL.
    """

    def __init__(self, issuer: str, audience: str, keys: str) -> None:
        self._issuer, self._audience, self._source = issuer, audience, keys
        self._keys = read_keys(keys)
        self._read_at = time.monotonic()
        self._tried_at = float("-inf")
        self._reading: asyncio.Task[None] | None = None
        self._checked: dict[bytes, Token] = {}

    async def token(self, text: str) -> Token | None:
        """Return the token that a JWT stands for; None if it does not count.

        A JWT that counts is checked once for each reading of the keys: that takes up to 1 ms. Its
        end is for the caller to check, at each request.
        """
        now = time.monotonic()
        if now - max(self._read_at, self._tried_at) > FRESH_SECONDS + AGAIN_SECONDS:
            await self._refresh()  # nobody has asked for long
        elif now - self._read_at > FRESH_SECONDS:
            self._begin_to_refresh()  # the old ones do until it is done
        if len(text) > _LONGEST_JWT:
            return None
        digest = hashlib.sha256(text.encode()).digest()
        if known := self._checked.get(digest):
            return known
        try:
            key = await self._key(jwt.get_unverified_header(text).get("kid"))
            token = self._token(text, key) if key else None
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError):
            return None
        if token:
            if len(self._checked) >= _MOST_CHECKED:
                self._checked.pop(next(iter(self._checked)))
            self._checked[digest] = token
        return token

    def _token(self, text: str, key: jwt.PyJWK) -> Token:
        claims = jwt.decode(
            text,
            key,
            algorithms=[key.algorithm_name],
            issuer=self._issuer,
            audience=self._audience,
            leeway=LEEWAY_SECONDS,
            options={"require": ["exp", "iss", "aud"]},
        )
        subject = str(claims.get("sub", ""))[:100]
        name = f"jwt:{subject}" if subject else ""  # tokens that are issued here have no colon
        expires = int((claims["exp"] + LEEWAY_SECONDS) * 1000)
        return Token("", name, b"", tuple(grants_in(claims)), 0, expires)

    async def _key(self, name: object) -> jwt.PyJWK | None:
        """Return the key of a name; without a name, the only one; None if there is none."""
        if name is not None and name not in self._keys:
            await self._refresh()
        if name is None:
            return next(iter(self._keys.values())) if len(self._keys) == 1 else None
        return self._keys.get(name) if isinstance(name, str) else None

    async def _refresh(self) -> None:
        if reading := self._begin_to_refresh():
            await asyncio.wait({reading}, timeout=_FETCH_SECONDS)

    def _begin_to_refresh(self) -> asyncio.Task[None] | None:
        """Return the reading that is under way, or that begins; None if it is too early for one."""
        if self._reading is None and time.monotonic() - self._tried_at >= AGAIN_SECONDS:
            self._tried_at = time.monotonic()
            self._reading = asyncio.create_task(self._read())
        return self._reading

    async def _read(self) -> None:
        try:
            self._keys = await anyio.to_thread.run_sync(read_keys, self._source)
            self._checked.clear()
            self._read_at = time.monotonic()
        except StoreError as exc:
            log.error("the keys of JWTs stay as they were: %s", exc.what)
        finally:
            self._reading = None


def grants_in(claims: Mapping[str, Any]) -> Iterator[Grant]:
    """Yield the rights in the claim `zeh`. What is not a right gives none.

    It is a list of texts like `read:orders` and `publish:orders/till-*`, or one text with spaces
    between them. `admin` stands for all rights on all feeds.
    """
    told = claims.get(CLAIM)
    for each in told.split() if isinstance(told, str) else told if isinstance(told, list) else ():
        if each == "admin":
            yield from ADMIN
            continue
        right, _, what = str(each).partition(":")
        try:
            yield parse_grant(Right(right), what)
        except (ValueError, StoreError):
            log.debug("a JWT has a right that is not understood")


def read_keys(source: str) -> dict[str, jwt.PyJWK]:
    """Return the keys of a file or a URL by their names. It blocks.

    Keys for other purposes, and of other algorithms, are left out. Raises StoreError if there is no
    key that can be used, or one is private.
    """
    text = _fetched(source) if "://" in source else _read_file(source)
    try:
        listed = msgspec.json.decode(text)["keys"]
        if any("d" in each for each in listed):
            raise _unusable(source, "it has a private key, which only the issuer may have")
        keys = {each.get("kid", ""): key for each in listed for key in _usable(each)}
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError) as exc:
        raise _unusable(source, "it is not a JWK set") from exc
    if not keys:
        raise _unusable(source, f"it has no key to check signatures by {', '.join(ALGORITHMS)}")
    return keys


def _usable(described: Mapping[str, Any]) -> Iterator[jwt.PyJWK]:
    if described.get("use", "sig") != "sig" or described.get("kty") not in ("RSA", "EC", "OKP"):
        return
    try:
        key = jwt.PyJWK(dict(described))
    except (jwt.PyJWTError, ValueError):
        return
    small = isinstance(key.key, RSAPublicKey) and key.key.key_size < _LEAST_RSA_BITS
    if key.algorithm_name in ALGORITHMS and not small:
        yield key


def _read_file(file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as exc:
        raise _unusable(file, f"it cannot be read: {exc.strerror}") from exc


def _fetched(url: str) -> bytes:
    try:
        parts = urlsplit(requests.Request("GET", url).prepare().url or "")  # the host that is asked
    except ValueError:
        raise _unusable(url, "it is no file and no address") from None
    if parts.scheme != "https" and not (
        parts.scheme == "http" and is_loopback(parts.hostname or "")
    ):
        raise _unusable(url, "keys are fetched by https only")
    try:
        with requests.get(
            url, timeout=_FETCH_SECONDS, allow_redirects=False, stream=True
        ) as response:
            if response.status_code != 200:
                raise _unusable(url, f"it answered {response.status_code}")
            body = response.raw.read(_MOST_BYTES + 1, decode_content=True)
    except (requests.RequestException, OSError) as exc:
        raise _unusable(url, f"it does not answer ({type(exc).__name__})") from exc
    if len(body) > _MOST_BYTES:
        raise _unusable(url, "it is longer than 1 MiB")
    return bytes(body)


def _unusable(source: str, why: str) -> StoreError:
    shown = source.partition("?")[0]
    return StoreError(
        f"the keys of JWTs cannot be taken from {shown}: {why}. Give the file or the https URL of "
        f"the issuer's JWK set (jwks_uri) as --jwt-keys",
        anchor="the-keys-of-jwts-cannot-be-used",
    )
