"""Certificates of an authority that nobody knows, in files that `serve` and clients take."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key


@dataclass(frozen=True)
class Pair:
    """Files with a certificate and its key."""

    cert: Path
    key: Path

    @property
    def serial(self) -> int:
        return x509.load_pem_x509_certificate(self.cert.read_bytes()).serial_number


class TlsFolder:
    """An authority, and a folder for what it issues."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ca = trustme.CA()
        self.ca = folder / "ca.pem"
        self._ca.cert_pem.write_to_path(self.ca)

    def issue(self, name: str, *hosts: str) -> Pair:
        """Write a certificate; as tools do, the files of an older one are replaced, not changed."""
        made = self._ca.issue_cert(*(hosts or ("127.0.0.1", "localhost")))
        pair = Pair(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        chain = b"".join(each.bytes() for each in made.cert_chain_pems)
        for file, text in ((pair.cert, chain), (pair.key, made.private_key_pem.bytes())):
            self.replace(file, text)
        return pair

    @property
    def ca_file(self) -> str:
        return str(self.ca)

    def server_context(
        self, *, host: str = "localhost", ask_client: bool = False
    ) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._ca.issue_cert(host).configure_cert(context)
        if ask_client:
            self._ca.configure_trust(context)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def revoked(self, *pairs: Pair) -> bytes:
        """The authority's list of the certificates that it has revoked, as PEM."""
        now = datetime.now(timezone.utc)
        made = x509.CertificateRevocationListBuilder(
            issuer_name=x509.load_pem_x509_certificate(self.ca.read_bytes()).subject,
            last_update=now - timedelta(days=1),
            next_update=now + timedelta(days=1),
            revoked_certificates=[
                x509.RevokedCertificateBuilder(each.serial, now - timedelta(days=1)).build()
                for each in pairs
            ],
        )
        key = load_pem_private_key(self._ca.private_key_pem.bytes(), None)
        return made.sign(key, SHA256()).public_bytes(Encoding.PEM)

    def replace(self, file: Path, text: bytes) -> None:
        new = file.with_suffix(".new")
        new.write_bytes(text)
        os.replace(new, file)


@pytest.fixture
def tls(tmp_path: Path) -> TlsFolder:
    folder = tmp_path / "tls"
    folder.mkdir()
    return TlsFolder(folder)


@pytest.fixture
def authority(tls: TlsFolder) -> TlsFolder:
    """The one that a test's raw servers are of."""
    return tls
