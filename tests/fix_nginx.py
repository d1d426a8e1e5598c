"""A real nginx before a publisher, with the configuration `conf/nginx.conf`."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.patience import eventually
from tests.ports import free_port

_CONF = Path(__file__).parents[1] / "conf" / "nginx.conf"
_ASKS = "        auth_request /zeh-access;\n"


def why_absent() -> str | None:
    """In the words of the tests that skip."""
    return None if _program() else "nginx (Debian: apt-get install nginx)"


def _program() -> str | None:
    """Debian installs it where only root's shells look."""
    return shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")


def configuration(folder: Path, port: int, publisher: int, *, asks: bool = True) -> str:
    """The text of `conf/nginx.conf` with this folder and these ports.

    Without `asks`, nginx does not ask the publisher about each request.
    """
    text = _CONF.read_text(encoding="utf-8")
    for old, new in (
        ("/var/cache/nginx/zeh", str(folder / "cache")),
        ("127.0.0.1:8080", f"127.0.0.1:{publisher}"),
        ("listen 80;", f"listen 127.0.0.1:{port};"),
        (_ASKS, _ASKS if asks else ""),
    ):
        assert 1 == text.count(old)
        text = text.replace(old, new)
    return text


class Nginx:
    """An nginx in a folder of its own. `taken` changes the configuration."""

    def __init__(
        self,
        folder: Path,
        publisher: int,
        *,
        asks: bool = True,
        taken: Callable[[str], str] = lambda text: text,
        workers: int = 1,
    ) -> None:
        program = _program()
        assert program
        self.port = port = free_port()
        folder.mkdir()
        self.url = f"http://127.0.0.1:{port}"
        self._log = folder / "access.log"
        own = "\n".join(
            f"{each}_temp_path {folder}/{each};"
            for each in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        settings = folder / "nginx.conf"
        settings.write_text(
            f"{'user root; ' if os.geteuid() == 0 else ''}daemon off; worker_processes {workers};\n"
            f"pid {folder}/pid; error_log {folder}/error.log; events {{ }}\n"
            f"http {{ sendfile on; tcp_nopush on;\n"
            f"{own}\nlog_format kept $upstream_cache_status;\n"
            f"access_log {self._log} kept;\n"
            f"{taken(configuration(folder, port, publisher, asks=asks))}\n}}\n"
        )
        command = [program, "-e", f"{folder}/error.log", "-c", str(settings)]
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        eventually(lambda: self.process.poll() is not None or self._answers(port), 30)
        assert self.process.poll() is None, (folder / "error.log").read_text()

    def statuses(self, count: int) -> list[str]:
        """What the cache was for so many requests, or more: HIT, MISS, REVALIDATED, …

        nginx writes it after an answer.
        """
        eventually(lambda: len(self._log.read_text().split()) >= count)
        return self._log.read_text().split()

    def _answers(self, port: int) -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", port)) == 0

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(30)


@pytest.fixture
def start_nginx(tmp_path: Path) -> Iterator[Callable[..., Nginx]]:
    """`start_nginx(port)` puts nginx before the publisher at that port (see `Nginx`)."""
    if reason := why_absent():
        pytest.skip(reason)
    with contextlib.ExitStack() as stack:

        def start(publisher: int, **how: object) -> Nginx:
            folder = tmp_path / f"nginx-{publisher}"
            return stack.enter_context(
                contextlib.closing(Nginx(folder, publisher, **how))  # type: ignore[arg-type]
            )

        yield start
