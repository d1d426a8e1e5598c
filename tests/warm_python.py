"""A Python for Spark's processes that need not import anything: `with started(folder) as python`.

Each query starts a process for its source, each kind of worker a daemon, and each one takes one to
two CPU seconds to import the same libraries. `python` is a program that hands its arguments, its
environment and its standard streams to one process that has them loaded, which forks. What is not
a module to run (`-m`) is left to a plain Python. Beside it lies a `zeh-spark` that does the same.

What is forked is in no group of processes that could be killed with a driver. It is ended when the
program that asked for it ends.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

# Without site-packages Python starts in 15 ms.
_PROGRAM = """#!{python} -IS
import json, os, socket, sys
if sys.argv[1] != "-m":
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    asked = json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]).encode()
    socket.send_fds(server, [len(asked).to_bytes(4, "big")], [0, 1, 2])
    server.sendall(asked)
    os._exit(int(server.makefile().read() or 1))
"""
_LIBRARIES = {
    "pyspark.sql.connect.streaming.worker.foreach_batch_worker": ["pyspark.sql.connect.session"],
    "zeh_spark": [
        "zeh_spark.tools.cli.main",
        "zeh_spark.tools.loading.load",
        "zeh_spark.publisher",
    ],
}
"""What some modules need beside the libraries of all: loaded when one is asked for."""


@contextlib.contextmanager
def started(folder: Path) -> Iterator[Path]:
    """Start the process that forks, and give the path of the program that asks it."""
    address, program = folder / "socket", folder / "python"
    program.write_text(_PROGRAM.format(python=sys.executable, address=str(address)))
    command = folder / "zeh-spark"
    command.write_text(f'#!/bin/sh\nexec {program} -m zeh_spark "$@"\n')
    for each in (program, command):
        each.chmod(0o700)
    # It ends with its standard input. Spark's workers expect this hash seed of their parents.
    with subprocess.Popen(
        [sys.executable, "-m", "tests.warm_python", str(address)],
        env={**os.environ, "PYTHONHASHSEED": "0"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as server:
        assert server.stdin and server.stdout
        assert server.stdout.readline() == b"ready\n"
        yield program
        server.stdin.close()


def _serve(address: str) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(100)
        os.write(1, b"ready\n")
        while select.select([listener, sys.stdin], [], [])[0] == [listener]:
            asker, _ = listener.accept()
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass  # one that has ended; what it used counts for this process: `costs`
            with asker:
                try:
                    size, streams, *_ = socket.recv_fds(asker, 4, 3)
                    with asker.makefile("rb") as line:
                        asked = json.loads(line.read(int.from_bytes(size, "big")))
                except (OSError, ValueError):
                    continue  # the asker was killed
                for library in _LIBRARIES.get(asked[0][1], ()):
                    importlib.import_module(library)
                if os.fork() == 0:
                    listener.close()
                    _answer(asker, streams, *asked)
                for each in streams:
                    os.close(each)


def _answer(
    asker: socket.socket,
    streams: list[int],
    arguments: list[str],
    environment: dict[str, str],
    folder: str,
) -> NoReturn:
    """Run what is asked for in a child, and tell the asker how it ended."""
    if child := os.fork():
        for each in streams:  # whoever reads them waits until all have closed them
            os.close(each)
        threading.Thread(target=_end_with, args=(asker, child), daemon=True).start()
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        with contextlib.suppress(BrokenPipeError):
            asker.sendall(str(code % 256).encode())
        os._exit(0)
    asker.close()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.path += environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.argv = arguments[1:]  # after -m
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    sys.exit()


def _end_with(asker: socket.socket, child: int) -> None:
    asker.recv(1)
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGTERM)


if __name__ == "__main__":
    import pandas  # noqa: F401
    import pyarrow.compute
    import pyarrow.dataset  # noqa: F401
    import pyspark.daemon
    import pyspark.sql.pandas.serializers
    import pyspark.sql.pandas.types
    import pyspark.sql.streaming.python_streaming_source_runner
    import pyspark.worker  # noqa: F401

    import zeh_spark.spark.datasource
    import zeh_spark.spark.sink.writer
    import zeh_spark.spark.source.batch
    import zeh_spark.spark.source.stream  # noqa: F401

    _serve(*sys.argv[1:])
