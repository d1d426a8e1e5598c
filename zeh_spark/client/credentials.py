"""What a request may carry, and what nothing may show: tokens, the files of TLS, secrets.

Runs in the driver and in tasks.
"""

from __future__ import annotations

import logging
import os
import ssl

from zeh_spark.errors import OptionError
from zeh_spark.options import ClientOptions, parse_token

_SHORTEST_SECRET = 6
"""What is shorter would be found everywhere."""


class _Mask(logging.Filter):
    """The secrets of this process's transports, which nothing that is shown may hold: not what a
    publisher says in its errors, nor what urllib3 logs.
    """

    def __init__(self) -> None:
        super().__init__()
        self._secrets: set[str] = set()

    def add(self, *secrets: str | None) -> None:
        self._secrets.update(each for each in secrets if each and len(each) >= _SHORTEST_SECRET)

    def __call__(self, text: str) -> str:
        for secret in sorted(self._secrets, key=len, reverse=True):
            text = text.replace(secret, "(hidden)")
        return text

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = self(record.getMessage()), None
        return True


masked = _Mask()
for _name in ("urllib3.connection", "urllib3.connectionpool"):
    logging.getLogger(_name).addFilter(masked)


def check_tls_files(options: ClientOptions) -> None:
    """Raises OptionError for what requests would take for a publisher that does not answer."""
    ca, cert, key = options.ca_file, options.client_cert_file, options.client_key_file
    for name, path in (("caFile", ca), ("clientCertFile", cert), ("clientKeyFile", key)):
        if path and not os.access(path, os.R_OK):
            raise OptionError(f"option {name!r}: cannot read {path!r}", option=name)
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
            f"option {name!r}: cannot use {files} ({exc.strerror or exc}); it has to be PEM, a key "
            f"not encrypted and that of its certificate",
            option=name,
        ) from exc


def read_token(path: str, option: str = "tokenFile") -> str:
    """Return the token that a file holds.

    Raises OptionError, which names the option that gave the path.
    """
    try:
        with open(path, encoding="ascii") as file:
            token = file.read().strip()
    except UnicodeDecodeError:
        token = ""
    except OSError as exc:
        raise OptionError(
            f"option {option!r}: cannot read a token from {path!r}: {exc}", option=option
        ) from exc
    try:
        return parse_token(token)
    except ValueError as exc:
        raise OptionError(f"option {option!r}: what {path!r} holds {exc}", option=option) from None
