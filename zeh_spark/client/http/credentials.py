"""Tokens, the files of TLS, and the mask that hides secrets.

Rule for editors: no error and no log shows a secret. Runs wherever a client runs.
"""

from __future__ import annotations

import logging
import os
import ssl
from itertools import takewhile

from zeh_spark.errors import OptionError
from zeh_spark.wire.option_values import parse_token

_SHORTEST_SECRET = 6
"""Shorter secrets are not masked: the same characters would be found everywhere."""

_SHORTEST_PIECE = 12
"""A secret's beginning is masked from this length on: a text may have been cut within a secret."""


class _Mask(logging.Filter):
    """Hides the secrets of this process's transports.

    A publisher's error may quote them, and so may a log line of urllib3.
    """

    def __init__(self) -> None:
        super().__init__()
        self._secrets: set[str] = set()

    def add(self, *secrets: str | None) -> None:
        """Hide these texts from now on."""
        self._secrets.update(each for each in secrets if each and len(each) >= _SHORTEST_SECRET)

    def forget(self, secret: str) -> None:
        """Hide this text no longer, because nobody sends it any more."""
        self._secrets.discard(secret)

    def __call__(self, text: str) -> str:
        for secret in sorted(self._secrets, key=len, reverse=True):
            text = text.replace(secret, "(hidden)")
            while len(secret) > _SHORTEST_PIECE and (piece := _beginning(secret, text)):
                text = text.replace(piece, "(hidden)")
        return text

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = self(record.getMessage()), None
        return True


def _beginning(secret: str, text: str) -> str:
    """Return as much of a secret's beginning as is in a text; empty if that is short."""
    at = text.find(secret[:_SHORTEST_PIECE])
    same = takewhile(lambda pair: pair[0] == pair[1], zip(secret, text[max(at, 0) :], strict=False))
    return "" if at < 0 else "".join(each for each, _ in same)


masked = _Mask()
for _name in ("urllib3.connection", "urllib3.connectionpool"):
    logging.getLogger(_name).addFilter(masked)


def check_tls_files(ca: str | None, cert: str | None, key: str | None) -> None:
    """Raise OptionError if a file of TLS cannot be used: authorities, certificate, or its key.

    Without this check, requests fails as if the publisher did not answer.
    """
    for name, path in (("caFile", ca), ("clientCertFile", cert), ("clientKeyFile", key)):
        if path and not os.access(path, os.R_OK):
            raise OptionError(
                f"option {name!r}: cannot read {path!r}. Check the path and its rights",
                option=name,
                anchor="tls",
            )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    name, files = "caFile", repr(ca)
    try:
        if ca and os.path.isdir(ca):
            context.load_verify_locations(capath=ca)
        elif ca:
            context.load_verify_locations(ca)
        name, files = "clientCertFile", f"{cert!r} and its key {key!r}" if key else repr(cert)
        if cert:
            context.load_cert_chain(cert, key, password=lambda: b"")
    except OSError as exc:  # ssl.SSLError is one
        raise OptionError(
            f"option {name!r}: cannot use {files} ({exc.strerror or exc}). It has to be PEM, and a "
            f"key must not be encrypted and has to be that of its certificate",
            option=name,
            anchor="tls",
        ) from exc


def read_token(path: str, option: str = "tokenFile") -> str:
    """Return the token that a file holds.

    Raises OptionError, about the option that gave the path, if there is no valid token.
    """
    try:
        with open(path, encoding="ascii") as file:
            token = file.read().strip()
    except UnicodeDecodeError:
        token = ""
    except OSError as exc:
        raise OptionError(
            f"option {option!r}: cannot read a token from {path!r}: {exc}",
            option=option,
            anchor="401-and-403",
        ) from exc
    try:
        return parse_token(token)
    except ValueError as exc:
        raise OptionError(
            f"option {option!r}: the token in {path!r} {exc}", option=option, anchor="401-and-403"
        ) from None
