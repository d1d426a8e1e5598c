"""Servers of object stores on the loopback interface, for `stagingLocation`.

S3 is moto, Google Cloud Storage is gcp-storage-emulator, and Azure Blob Storage is Azurite, which
npm has: `make .venv-azurite/.installed`.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pyarrow import fs

from tests.ports import free_port
from zeh_spark._locations import delete_folder, opened
from zeh_spark.wire.option_values import parse_location

_AZURITE = Path(__file__).parents[1] / ".venv-azurite/node_modules/azurite/dist/src/blob/main.js"
_AZURE_ACCOUNT = "devstoreaccount1"  # with its key, it is in Azurite's documentation
_AZURE_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)


def why_absent() -> str | None:
    """Why the tests of Azure's protocol cannot run here."""
    if not _AZURITE.exists() or not shutil.which("node"):
        return "Azurite (make .venv-azurite/.installed, which needs npm)"
    return None


@dataclass(frozen=True)
class ObjectStore:
    """An object store with a bucket, and the credentials that its users have.

    Args:
        uri: the address of a folder; {bucket} and {address} are to be filled in.
        address: host and port.
        environment: the credentials.
        secrets: the texts among them that must not be shown.
        lock: lets the server refuse all credentials; None if it cannot.
    """

    uri: str
    address: str
    environment: dict[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    lock: Callable[[bool], None] | None = None

    def location(self, bucket: str = "bucket", address: str = "") -> str:
        return self.uri.format(bucket=bucket, address=address or self.address)

    def names(self) -> list[str]:
        """Return the objects that have content, below the folder."""
        filesystem, path = opened(parse_location(self.location()))
        selector = fs.FileSelector(path, recursive=True, allow_not_found=True)
        found = filesystem.get_file_info(selector)
        return sorted(each.path.removeprefix(f"{path}/") for each in found if each.is_file)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[ObjectStore]:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    base = f"http://{host}:{port}"

    def lock(on: bool) -> None:
        _send("POST", f"{base}/moto-api/reset-auth", b"0" if on else b"inf")

    _send("PUT", f"{base}/bucket")
    yield ObjectStore(
        "s3://{bucket}/a%20folder/staging?endpoint_override={address}&scheme=http&region=us-east-1",
        f"{host}:{port}",
        {"AWS_ACCESS_KEY_ID": "AKIACANARYOFAKEY", "AWS_SECRET_ACCESS_KEY": "canary-of-a-secret"},
        ("AKIACANARYOFAKEY", "canary-of-a-secret"),
        lock,
    )
    server.stop()


@pytest.fixture(scope="session")
def gcs_server() -> Iterator[ObjectStore]:
    from gcp_storage_emulator.server import create_server

    port = free_port()
    with create_server("127.0.0.1", port, in_memory=True, default_bucket="bucket"):
        yield ObjectStore(
            "gs://anonymous@{bucket}/a%20folder/staging?endpoint_override={address}&scheme=http"
            "&retry_limit_seconds=1",
            f"127.0.0.1:{port}",
        )


@pytest.fixture(scope="session")
def azure_server() -> Iterator[ObjectStore]:
    if reason := why_absent():
        pytest.skip(f"absent: {reason}")
    words = ["--blobHost", "127.0.0.1", "--blobPort", "0", "--inMemoryPersistence"]
    with subprocess.Popen(
        ["node", str(_AZURITE), *words, "--skipApiVersionCheck", "--disableTelemetry"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        yield _azure_store(process)
        process.terminate()


def _azure_store(process: subprocess.Popen[str]) -> ObjectStore:
    assert process.stdout
    found = (re.search(r"listens on http://(\S+)", line) for line in process.stdout)
    address = next(each[1] for each in found if each)
    account = fs.AzureFileSystem(
        _AZURE_ACCOUNT,
        account_key=_AZURE_KEY,
        blob_storage_authority=address,
        dfs_storage_authority=address,
        blob_storage_scheme="http",
        dfs_storage_scheme="http",
    )
    account.create_dir("bucket")
    return ObjectStore(
        "abfs://{bucket}@devstoreaccount1.dfs.core.windows.net/a%20folder/staging?enable_tls=false"
        "&blob_storage_authority={address}&dfs_storage_authority={address}",
        address,
        {"AZURE_STORAGE_KEY": _AZURE_KEY},
        (_AZURE_KEY,),
    )


@pytest.fixture
def object_store(request: pytest.FixtureRequest) -> Iterator[ObjectStore]:
    """One of the servers above, whose name is the parameter; S3 without one."""
    with used(request.getfixturevalue(f"{getattr(request, 'param', 's3')}_server")) as store:
        yield store


@contextmanager
def used(store: ObjectStore) -> Iterator[ObjectStore]:
    """Give a server whose bucket is empty, with its credentials in the environment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        for name, value in store.environment.items():
            patch.setenv(name, value)
        yield store
        delete_folder(*opened(parse_location(store.location())))


def _send(method: str, url: str, body: bytes | None = None) -> None:
    plain = {"Content-Type": "text/plain"}  # a form's content would be taken apart
    urllib.request.urlopen(urllib.request.Request(url, body, plain, method=method)).close()
