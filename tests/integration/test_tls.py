"""TLS that the publisher serves itself: who trusts whom, and files that are replaced."""

from __future__ import annotations

import re
import signal
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import requests
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from tests.fix_cli import call
from tests.fix_publisher import connected, new_feed, served, serving_app
from tests.fix_tls import Pair, TlsFolder
from tests.patience import eventually
from tests.scratch_store import ScratchStore
from zeh_spark.client.http.transport import Transport
from zeh_spark.client.options.client_options import ClientOptions
from zeh_spark.client.options.given import parse
from zeh_spark.errors import PublisherError, StoreError
from zeh_spark.publish import Producer
from zeh_spark.publisher import create_app
from zeh_spark.service.app.config import Config
from zeh_spark.service.app.reload import Hangups, Reload
from zeh_spark.service.app.server import Running, listen
from zeh_spark.service.network import certificates, http_protocol
from zeh_spark.service.network.certificates import Certificates, TlsFiles


@contextmanager
def serving(folder: Path, *words: str) -> Iterator[tuple[str, subprocess.Popen[str], Path]]:
    """`serve` with a feed `orders` that has one event: its base URL, its process and its log."""
    url, log = new_feed(folder / "feeds.db", "first"), folder / "log"
    with served(url, *words, log=log) as (base, process):
        yield base, process, log


def words_of(pair: Pair) -> list[str]:
    return ["--tls-cert", str(pair.cert), "--tls-key", str(pair.key)]


def files_of(pair: Pair, client_ca: Path | None = None) -> TlsFiles:
    return TlsFiles(str(pair.cert), str(pair.key), client_ca and str(client_ca))


def shown(base: str, context: ssl.SSLContext | None = None) -> ssl.SSLSocket:
    """A connection, after its handshake."""
    if context is None:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(connected(base))


def serial(base: str) -> int:
    """The number of the certificate that a new connection gets."""
    with shown(base) as connection:
        found = connection.getpeercert(binary_form=True)
    assert found
    return x509.load_der_x509_certificate(found).serial_number


def test_producers_and_commands_use_tls(tmp_path: Path, tls: TlsFolder) -> None:
    """I need no proxy for TLS, and only who knows my authority trusts my publisher."""
    pair = tls.issue("server")
    with serving(tmp_path, *words_of(pair)) as (base, _, _):
        assert base.startswith("https://127.0.0.1:")
        with Producer(f"{base}/orders", "till-7", caFile=str(tls.ca)).batch() as batch:
            batch.add({"order": 17})
        tail = ["tail", f"{base}/orders", "--from", "first", "--no-follow"]
        read = call(*tail, "--ca-file", str(tls.ca))
        distrusting = call(*tail)
        page = f"{base}/console/sign-in"
        shown = requests.get(page, timeout=30, verify=str(tls.ca)).text
        form = {**dict(re.findall(r'name="(form_key)" value="(\w+)"', shown)), "token": "any"}
        signed_in = requests.post(page, form, timeout=30, verify=str(tls.ca), allow_redirects=False)
    assert ['"first"', '{"order":17}'] == read.stdout.replace(": ", ":").splitlines()
    assert 1 == distrusting.returncode and "certificate" in distrusting.stderr.lower()
    assert "; Secure" in signed_in.headers["Set-Cookie"]  # a browser sends it over TLS alone


def test_older_tls_is_refused(tmp_path: Path, tls: TlsFolder) -> None:
    with serving(tmp_path, *words_of(tls.issue("server"))) as (base, _, _):
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
        old.set_ciphers("ALL:@SECLEVEL=0")
        with pytest.warns(DeprecationWarning):
            old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises(ssl.SSLError, match=r"EOF|ALERT"):  # not a refusal of its own
            shown(base, old)
        with shown(base) as connection:
            assert "TLSv1.3" == connection.version()


def test_only_clients_of_the_authority_are_served(tmp_path: Path, tls: TlsFolder) -> None:
    """Mutual TLS: a client without a certificate of my authority learns at once what is missing."""
    client, stranger = tls.issue("client", "c@example.org"), TlsFolder(tmp_path)
    words = [*words_of(tls.issue("server")), "--tls-client-ca", str(tls.ca)]
    with serving(tmp_path, *words) as (base, _, log):
        url, ca = f"{base}/orders", str(tls.ca)
        shows = {"clientCertFile": str(client.cert), "clientKeyFile": str(client.key)}
        with Producer(url, "till-7", caFile=ca, **shows).batch() as batch:
            batch.add('"second"')
        tail = ["tail", url, "--from", "first", "--no-follow", "--ca-file", ca]
        files = ["--client-cert", str(client.cert), "--client-key", str(client.key)]
        assert ['"first"', '"second"'] == call(*tail, *files).stdout.splitlines()
        other = stranger.issue("other", "o@example.org")
        strange = {"clientCertFile": str(other.cert), "clientKeyFile": str(other.key)}
        for pair, why in (({}, "asks for a certificate"), (strange, "UNKNOWN_CA")):
            with pytest.raises(PublisherError, match=rf"TLS: .*{why}.*'clientCertFile'"):
                _ = Producer(url, "till-8", caFile=ca, retryTimeout="1h", **pair).last
        transport = Transport(parse(ClientOptions, {"url": url, "caFile": ca}))
        with pytest.raises(PublisherError, match="asks for a certificate"):
            transport.request("PUT", "/producers/p/batches/0/uploads/r.0.0.0", "", b"x" * 500_000)
        assert "Traceback" not in log.read_text()


def test_a_certificate_that_is_revoked_is_refused_from_the_next_look_on(tls: TlsFolder) -> None:
    """The list stands in the file of the authorities, and is read again when it changes."""
    mine, stolen = tls.issue("mine", "a@example.org"), tls.issue("stolen", "b@example.org")
    ca, server = tls.ca.read_bytes(), tls.issue("server")
    made = Certificates(files_of(server, tls.ca))

    def refused(pair: Pair) -> str:
        """Return why the publisher's side refuses a client; empty if it does not."""
        client = ssl.create_default_context(cadata=ca.decode())
        client.load_cert_chain(pair.cert, pair.key)
        there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
        publisher = made.wrap_bio(there, back, server_side=True)
        other = client.wrap_bio(back, there, server_hostname="localhost")
        for _ in range(6):
            for side in (other, publisher):
                with suppress(ssl.SSLWantReadError):
                    side.do_handshake()
        try:
            with suppress(ssl.SSLWantReadError):
                other.read(1)  # the alert, which comes after the client's end of the handshake
        except ssl.SSLError as exc:
            return str(exc)
        return ""

    assert ["", ""] == [refused(each) for each in (mine, stolen)]
    tls.replace(tls.ca, ca + tls.revoked(stolen))
    made.look(now=True)
    assert "" == refused(mine)
    assert "revoked" in refused(stolen).lower()


@pytest.mark.parametrize("piece", [1 << 10, 64 << 10])
def test_the_pieces_that_a_refused_client_sends_do_not_matter(tls: TlsFolder, piece: int) -> None:
    """It may send a whole upload before it reads the alert, and not much more."""
    files = files_of(tls.issue("server"), tls.ca)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = Certificates(files).wrap_bio(to_server, to_client, server_side=True)
    trusting = ssl.create_default_context(cafile=str(tls.ca))
    client = trusting.wrap_bio(to_client, to_server, server_hostname="127.0.0.1")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    with pytest.raises(ssl.SSLWantReadError):
        server.do_handshake()
    client.do_handshake()

    for _ in range((4 << 20) // piece):
        client.write(b"x" * piece)
        with pytest.raises(ssl.SSLWantReadError):
            server.do_handshake()
    with pytest.raises(ssl.SSLError, match="CERTIFICATE_REQUIRED"):
        client.read()
    to_server.write(b"x" * (8 << 20))
    with pytest.raises(ssl.SSLError, match="PEER_DID_NOT_RETURN_A_CERTIFICATE"):
        server.do_handshake()


def test_certificates_are_renewed_without_closing_connections(
    tmp_path: Path, tls: TlsFolder
) -> None:
    """Two files and a SIGHUP: nobody notices. One that goes wrong is logged and changes nothing."""
    pair = tls.issue("server")
    old, key = pair.serial, pair.key.read_bytes()
    with serving(tmp_path, *words_of(pair)) as (base, process, log):
        assert old == serial(base)
        tls.issue("server")
        tls.replace(pair.key, key)  # it does not fit the new certificate
        process.send_signal(signal.SIGHUP)
        eventually(lambda: "stay as they were" in log.read_text())
        assert old == serial(base)
        told = log.read_text()
        with shown(base) as connection:
            new = tls.issue("server").serial
            process.send_signal(signal.SIGHUP)
            eventually(lambda: "certificates were read" in log.read_text())
            assert new == serial(base) != old
            connection.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.1 200 ")
    assert f"{pair.cert} and its key {pair.key} cannot be used" in told
    assert "PRIVATE" not in told


@contextmanager
def in_thread(pair: Pair) -> Iterator[str]:
    app, running = create_app(ScratchStore()), Running(certificates=Certificates(files_of(pair)))
    with serving_app(app, app.state.stop, listen("127.0.0.1", 0), running) as port:
        yield f"https://127.0.0.1:{port}"


def test_changed_files_are_noticed_without_a_signal(
    tls: TlsFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What renews my certificates need not know the publisher."""
    monkeypatch.setattr(certificates, "LOOK_SECONDS", 0.0)
    pair = tls.issue("server")
    with in_thread(pair) as base:
        assert pair.serial == serial(base)
        new = tls.issue("server").serial
        eventually(lambda: new == serial(base))


def test_a_slow_handshake_is_cut(tls: TlsFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that never says hello holds no connection."""
    monkeypatch.setattr(http_protocol, "HEAD_SECONDS", 0.2)
    with in_thread(tls.issue("server")) as base:
        with connected(base) as silent:
            with suppress(ConnectionResetError):
                assert b"" == silent.recv(1)


def test_files_are_checked_at_the_start(tmp_path: Path, tls: TlsFolder) -> None:
    """I learn at once which file is wrong, and nothing asks me for a password."""
    good, other = tls.issue("good"), tls.issue("other")
    secret = tmp_path / "secret.key"
    key = load_pem_private_key(good.key.read_bytes(), None)
    locked = BestAvailableEncryption(b"hunter2")
    secret.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, locked))
    missing = str(tmp_path / "missing.pem")
    for files, named in [
        (TlsFiles(missing), missing),
        (TlsFiles(str(good.cert), str(other.key)), str(other.key)),
        (TlsFiles(str(good.cert), str(secret)), str(secret)),
        (TlsFiles(str(good.cert), str(good.key), str(good.key)), str(good.key)),
    ]:
        with pytest.raises(StoreError) as raised:
            Certificates(files)
        assert named in raised.value.what
        assert "a-file-of-tls-cannot-be-used" in raised.value.help


# Other settings that are read again


def test_settings_are_read_again(tmp_path: Path) -> None:
    """I change who may ask without a restart, and learn what needs one."""
    file = tmp_path / "publisher.toml"
    file.write_text('allowed_hosts = ["old.example"]\n')
    with serving(tmp_path, "--config", str(file)) as (base, process, log):

        def status(host: str) -> int:
            url = f"{base}/orders?n=1&cursor0=_first"
            return requests.get(url, headers={"Host": host}, timeout=30).status_code

        assert (200, 403) == (status("old.example"), status("new.example"))
        file.write_text('allowed_hosts = ["new.example"]\ngrace = "7s"\nport = 1\n')
        process.send_signal(signal.SIGHUP)
        eventually(lambda: status("new.example") == 200)
        assert 403 == status("old.example")
        eventually(lambda: "need a restart of the publisher: grace" in log.read_text())
        file.write_text('allowed_hosts = ["new.example"\n')
        process.send_signal(signal.SIGHUP)
        eventually(lambda: "the settings stay as they were" in log.read_text())
        assert 200 == status("new.example")
        file.write_text(f"feeds = {'[' * 5000}{']' * 5000}\n")
        process.send_signal(signal.SIGHUP)
        eventually(lambda: log.read_text().count("the settings stay as they were") == 2)
        assert 200 == status("new.example")
    assert f"{file} is not TOML" in log.read_text()
    assert "Traceback" not in log.read_text()


def test_a_signal_while_the_publisher_starts_is_not_lost() -> None:
    """`systemctl reload` right after `start` ends nothing: it is done once the publisher runs."""
    before = signal.getsignal(signal.SIGHUP)
    try:
        hangups, read = Hangups(), []

        def load() -> Config:
            read.append(1)
            return Config()

        signal.raise_signal(signal.SIGHUP)
        reload = Reload(Config(), load, {}, is_asked=hangups.take)
        for _ in range(2):
            reload.look()
    finally:
        signal.signal(signal.SIGHUP, before)
    assert [1] == read


def test_files_of_tls_can_get_other_names(tmp_path: Path, tls: TlsFolder) -> None:
    """TLS itself stays: nobody switches it off by a line that is missing."""
    old, new = tls.issue("old"), tls.issue("new")
    file = tmp_path / "publisher.toml"
    file.write_text(f'tls_cert = "{old.cert}"\ntls_key = "{old.key}"\n')
    with serving(tmp_path, "--config", str(file)) as (base, process, log):
        assert old.serial == serial(base)
        file.write_text(f'tls_cert = "{new.cert}"\ntls_key = "{new.key}"\n')
        process.send_signal(signal.SIGHUP)
        eventually(lambda: "changed: tls_cert, tls_key" in log.read_text())
        assert new.serial == serial(base)
        file.write_text("")
        process.send_signal(signal.SIGHUP)
        eventually(lambda: "TLS is not switched off" in log.read_text())
        assert new.serial == serial(base)


def test_forwarded_addresses_count_from_named_proxies_only(tls: TlsFolder) -> None:
    """Nobody can pretend to be somebody else, and behind my proxy I see who asks."""
    seen = []

    async def app(scope, receive, send) -> None:
        seen.append((scope["client"][0], scope["scheme"]))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    sent = {"X-Forwarded-For": "9.9.9.9, 203.0.113.7, 127.0.0.2", "X-Forwarded-Proto": "https"}
    for trusted in ([], ["127.0.0.0/8"], ["10.0.0.1"]):
        running = Running(forwarded_allow_ips=trusted)
        with serving_app(app, lambda: None, listen("127.0.0.1", 0), running) as port:
            requests.get(f"http://127.0.0.1:{port}/", headers=sent, timeout=30)
    assert [("127.0.0.1", "http"), ("203.0.113.7", "https"), ("127.0.0.1", "http")] == seen
