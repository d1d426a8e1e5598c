"""A Spark Connect server in a process of its own, and clients of it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import zeh_spark
from tests.class_archive import SHARED
from tests.fix_spark import kill_program
from tests.patience import eventually
from tests.ports import free_port

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROOT = Path(__file__).parents[1]
_REMOTE = "SPARK_CONNECT_MODE_ENABLED"


def why_absent() -> str | None:
    """Why the tests of Spark Connect cannot run here."""
    missing = [each for each in ("grpc", "grpc_status", "zstandard") if not find_spec(each)]
    return f"{', '.join(missing)} of pyspark[connect] not installed" if missing else None


@dataclass
class ConnectServer:
    """Spark's own server, as its start-connect-server.sh starts it."""

    folder: Path
    environment: dict[str, str]
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"sc://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    def start(self) -> None:
        import pyspark
        from pyspark.sql import SparkSession

        home = Path(pyspark.__file__).parent
        builder = SparkSession.Builder()
        settings = {
            "spark.master": "local[2]",
            "spark.ui.enabled": "false",
            "spark.connect.grpc.binding.port": str(self.port),
            "spark.sql.warehouse.dir": str(self.folder / "warehouse"),
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            **zeh_spark.configure(builder, parallelism=2)._options,  # type: ignore[attr-defined]
        }
        main = "org.apache.spark.sql.connect.service.SparkConnectServer"
        given = [word for each in settings.items() for word in ("--conf", "=".join(each))]
        java = ["--driver-java-options", SHARED]
        path = os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")]).strip(os.pathsep)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [home / "bin" / "spark-submit", "--class", main, *java, *given, "spark-internal"],
                env={
                    **os.environ,
                    **self.environment,
                    "SPARK_HOME": str(home),
                    "PYSPARK_SUBMIT_ARGS": "",
                    "PYTHONPATH": path,
                },
                start_new_session=True,
                stdout=log,
                stderr=log,
            )
        begin = self.log.stat().st_size
        eventually(lambda: self._is_ready(begin))

    def _is_ready(self, begin: int) -> bool:
        assert self.process is not None
        text = self.log.read_bytes()
        assert self.process.poll() is None, text.decode(errors="replace")[-4000:]
        return b"Spark Connect server started at" in text[begin:]

    def kill(self) -> None:
        if self.process is not None:
            kill_program(self.process)
            self.process.wait()
            self.process = None


@contextmanager
def client(url: str) -> Iterator[SparkSession]:
    """Give a session of Spark Connect; PySpark's functions are those of a client meanwhile."""
    from pyspark.sql.connect.session import SparkSession

    before = os.environ.get(_REMOTE)
    default, active = SparkSession._default_session, SparkSession.getActiveSession()
    os.environ[_REMOTE] = "1"
    session = SparkSession.builder.remote(url).create()
    try:
        yield session  # type: ignore[misc]  # PySpark's two classes have one interface
    finally:
        # Not stop(), which asks the server, and a test may have killed it.
        session.client.close()  # type: ignore[attr-defined]
        SparkSession._default_session = default
        SparkSession._active_session.session = active
        os.environ.pop(_REMOTE)
        if before is not None:
            os.environ[_REMOTE] = before


@pytest.fixture(scope="module")
def connect_server(
    tmp_path_factory: pytest.TempPathFactory, warm: dict[str, str]
) -> Iterator[ConnectServer]:
    server = ConnectServer(tmp_path_factory.mktemp("connect"), warm)
    try:
        server.start()
        yield server
    finally:
        server.kill()
