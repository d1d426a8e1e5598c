"""TLS of the listening socket: its certificate, and the authorities of clients.

The files can be replaced while the publisher runs. They are checked every few seconds, and read
again if they have changed; open connections keep the old certificate. If new files cannot be used,
the old ones stay in use, and the log names the file.

Rejected: load new files into the context that is in use, because a certificate and a key that do
not fit would leave it without either, and an authority that was removed would stay trusted.

Runs in the publisher's event loop.
"""

from __future__ import annotations

import logging
import os
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from zeh_spark.errors import StoreError

log = logging.getLogger("zeh_spark.publisher")

LOOK_SECONDS = 5.0
"""Seconds between two looks whether the files have changed."""

_CRL = b"-----BEGIN X509 CRL-----"
"""What a PEM file has that holds a list of revoked certificates."""

_BYTES_AFTER_ALERT = 8 << 20
"""Bytes that a client that was refused may still send until it is cut off: twice an upload.

Closing while it sends would take the alert back.
"""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The files of TLS, all PEM.

    Attributes:
        cert: The certificate, and those between it and its authority.
        key: Its key, not encrypted; None if it is in `cert`.
        client_ca: The authorities one of which has to have issued the certificate of a client, and
            the lists of the certificates that they have revoked (CRLs), if there are any; None if
            clients need no certificate.
    """

    cert: str
    key: str | None = None
    client_ca: str | None = None

    def __iter__(self) -> Iterator[str]:
        yield from filter(None, (self.cert, self.key, self.client_ca))


class _Refusing(ssl.SSLObject):
    """One connection's TLS, which tells the client why its certificate is refused.

    Servers on asyncio close the connection when a handshake fails, and drop the alert that OpenSSL
    has made for the client. Here the handshake goes on for them until the client has closed, or
    has sent too much, or the time for handshakes is over: they send what is there meanwhile.
    """

    incoming: ssl.MemoryBIO
    """What the client has sent, and TLS has not read."""
    _failed: ssl.SSLError | None = None
    _ignored = 0

    def do_handshake(self) -> None:
        if self._failed is None:
            try:
                super().do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise
            except ssl.SSLError as exc:
                self._failed = exc
            else:
                return
        self._ignored += len(self.incoming.read())
        if self._ignored > _BYTES_AFTER_ALERT:
            raise self._failed
        raise ssl.SSLWantReadError(ssl.SSL_ERROR_WANT_READ, "an alert is sent")


class Certificates(ssl.SSLContext):
    """The context of TLS for a socket that listens. Its files are read again when they change.

    Guarantee: each connection gets a certificate with its key, and the authorities beside it.
    """

    _context: ssl.SSLContext
    _files: TlsFiles
    _seen: object
    _looked: float

    def __new__(cls, files: TlsFiles) -> Certificates:
        """Return a context that only passes on to another one, which holds the files."""
        made = super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)
        made._seen, made._looked = _state(files), time.monotonic()
        made._context, made._files = _context(files), files
        return made

    def __init__(self, files: TlsFiles) -> None:
        """Do nothing: the context was made with the object."""

    def wrap_bio(
        self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *given: Any, **named: Any
    ) -> ssl.SSLObject:
        """Begin TLS on a new connection (see `ssl.SSLContext.wrap_bio`, which asyncio calls)."""
        made = self._context.wrap_bio(incoming, outgoing, *given, **named)
        cast("_Refusing", made).incoming = incoming
        return made

    def look(self, *, now: bool = False) -> None:
        """Read the files again if they have changed.

        It looks at most every few seconds, unless it has to look `now`.
        """
        if not now and time.monotonic() - self._looked < LOOK_SECONDS:
            return
        self._looked = time.monotonic()
        if _state(self._files) != self._seen:
            self.read(self._files)

    def read(self, files: TlsFiles) -> bool:
        """Use these files for new connections; return whether they can be used.

        If they cannot, the log says why, and everything stays as it is.
        """
        self._seen = _state(files)
        try:
            self._context = _context(files)
        except StoreError as exc:
            log.error("the certificates stay as they were: %s", exc.what)
            return False
        self._files = files
        log.info("certificates were read from %s", ", ".join(files))
        return True


def _context(files: TlsFiles) -> ssl.SSLContext:
    """Return a context with these files. Raises StoreError, with the name of a file."""
    for each in files:
        try:
            with open(each, "rb"):
                pass
        except OSError as exc:
            raise StoreError(
                f"{each} cannot be read: {exc.strerror}. Check the path and its rights",
                anchor="a-file-of-tls-cannot-be-used",
            ) from exc
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sslobject_class = _Refusing
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    used = f"{files.cert} and its key {files.key}" if files.key else f"{files.cert}, with its key,"
    try:
        context.load_cert_chain(files.cert, files.key, password=lambda: b"")
        if files.client_ca:
            used = files.client_ca
            context.load_verify_locations(files.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
            if _CRL in Path(files.client_ca).read_bytes():
                context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    except (OSError, ValueError) as exc:  # ssl.SSLError is an OSError
        raise StoreError(
            f"{used} cannot be used ({exc}). Give PEM files: the certificate, and its own "
            f"key, which must not be encrypted",
            anchor="a-file-of-tls-cannot-be-used",
        ) from exc
    return context


def _state(files: TlsFiles) -> object:
    """Return what differs once a file was written or replaced."""
    return [_stat(each) for each in files]


def _stat(file: str) -> tuple[int, ...] | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
