"""Run the demo: serve a feed, run the jobs, kill each half way, and show how far everything is."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import warnings
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType

import click

from examples.demo import page
from examples.demo.jobs import JOBS
from examples.demo.record import Batch, Record
from notebooks.kit import flights

BATCHES_BEFORE_THE_KILL = 2
"""A driver is killed in the batch after these. Publishing and reading have six batches each."""

_SECONDS_BETWEEN_LOOKS = 0.05
_SECONDS_BETWEEN_LINES = 4
_LINES_OF_LOG = 30

_PLAN = """
    A year of real flights goes from six files to a feed, and from the feed to a table. Everything
    runs on this machine, and takes about a minute.

      1. get the flights{download}
      2. publish them with Spark, and kill that job half way (SIGKILL)
      3. stream the feed into a table with Spark, and kill that job half way, too
      4. compare feed and table with the files: each flight has to be there once
"""


class Job:
    """A job of `jobs`, in a process group of its own, which ends with the demo.

    Args:
        name: The job's name in `JOBS`.
        arguments: Its arguments.
        work: The folder for the files that take what it prints, and what Spark prints.
    """

    def __init__(self, name: str, arguments: Sequence[str], work: Path) -> None:
        self._command = [sys.executable, "-m", "examples.demo", name, *arguments]
        self._said, self._log = work / f"{name}.txt", work / f"{name}.log"

    def run(self, look: Callable[[], object]) -> str:
        """Run the job to its end, calling `look` meanwhile and once afterwards.

        Returns:
            What it printed on standard output.
        """
        with self._started() as process:
            while not self._ends(process):
                look()
            if process.returncode:
                self._fail()
        look()
        return self._said.read_text()

    def run_until(self, enough: Callable[[], bool]) -> None:
        """Run the job, and kill driver and JVM as soon as `enough` returns true."""
        with self._started() as process:
            while not enough():
                if self._ends(process):
                    self._fail()
            os.killpg(process.pid, signal.SIGKILL)

    def _ends(self, process: subprocess.Popen[bytes]) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_SECONDS_BETWEEN_LOOKS)
            return True
        return False

    def _fail(self) -> None:
        lines = self._log.read_text(errors="replace").splitlines()[-_LINES_OF_LOG:]
        said = self._said.read_text().splitlines()
        raise SystemExit("\n".join(("\nThe job failed. It printed:", *lines, *said)))

    @contextlib.contextmanager
    def _started(self) -> Iterator[subprocess.Popen[bytes]]:
        with (
            self._said.open("wb") as said,
            self._log.open("ab") as log,
            subprocess.Popen(
                self._command, stdout=said, stderr=log, start_new_session=True
            ) as process,
        ):
            try:
                yield process
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)


def run(*, opened: bool) -> None:
    """Run the demo.

    Args:
        opened: Whether to open the page at the end.

    Raises:
        SystemExit: Something failed, or a flight is not there exactly once.
    """
    download = "" if flights.is_downloaded() else " (a download of 9 MB, once)"
    click.echo(textwrap.dedent(_PLAN).strip().format(download=download) + "\n")
    with tempfile.TemporaryDirectory(prefix="zeh-spark-demo-") as folder:
        work = Path(folder)
        files = str(flights.by_month(flights.flights_csv(work), work / "months", months=2))
        record = Record()
        with serving(f"sqlite:///{work}/feeds.db", work / "serve.log") as url:
            publish = Job("publish", (url, files, str(work / "publishing")), work)
            twice("Publishing", publish, record, lambda: record.look_at_feed(url))
            checkpoint = work / "reading"
            read = Job("read", (url, str(work / "table"), str(checkpoint), files), work)
            compared = twice("Reading", read, record, lambda: record.look_at_checkpoint(checkpoint))
        click.echo(f"\n{compared}")
        picture = flights.cache() / "demo.html"
        picture.write_text(page.rendered(record), encoding="utf-8")
    click.echo(f"Done in {record.seconds:.0f} s. What happened, as a picture: {picture.as_uri()}")
    if opened:
        webbrowser.open(picture.as_uri())


def twice(label: str, job: Job, record: Record, look: Callable[[], list[Batch]]) -> str:
    """Run a job, kill it after some batches, and run it again to its end, showing how far it is.

    Args:
        label: What the job does.
        job: The job.
        record: Notes the crash.
        look: Adds the batches that are new to the record, and returns them.

    Returns:
        What the job printed at its end.
    """
    with click.progressbar(length=flights.FLIGHTS, label=label, show_pos=True) as bar:
        seen: list[Batch] = []
        state, told = "starts", 0.0

        def tell(text: str) -> None:
            """Show it beside the bar; as a line where no terminal shows a bar."""
            nonlocal told
            told = record.seconds
            if sys.stdout.isatty():
                bar.label = f"{label:10} ({text})"
                bar.render_progress()
            else:
                click.echo(f"{label}: {text}")

        def advance() -> bool:
            nonlocal state
            for batch in (new := look()):
                state = "runs"
                bar.update(batch.events)
                tell(f"batch {batch.number}, {batch.events:,} flights")
            seen.extend(new)
            if record.seconds > told + _SECONDS_BETWEEN_LINES:
                tell(f"{state}, {record.seconds:.0f} s")
            return len(seen) >= BATCHES_BEFORE_THE_KILL

        tell(state)
        job.run_until(advance)
        record.crashes.append(record.seconds)
        state = f"killed after batch {seen[-1].number}, started again"
        tell(state)
        return job.run(advance)


@contextlib.contextmanager
def serving(store: str, log: Path) -> Iterator[str]:
    """Create the feed, and run `zeh-spark serve` on a free port; yield the feed's URL.

    Args:
        store: The store's URL.
        log: The file that takes what the publisher prints on standard error.

    Raises:
        SystemExit: The publisher did not start.
    """
    command = [sys.executable, "-m", "zeh_spark.cli"]
    subprocess.run(
        [*command, "create", "flights", "--partitions", "4", "--store", store],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            [*command, "serve", "--store", store, "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as server,
    ):
        assert server.stdout
        try:
            for line in server.stdout:
                if found := re.search(r"http://\S+/flights", line):
                    yield found[0]
                    break
            else:
                raise SystemExit(f"The publisher did not start. It printed:\n{log.read_text()}")
        finally:
            server.terminate()


def stop(number: int, _frame: FrameType | None) -> None:
    """End the demo on a signal, and all processes that it started with it."""
    raise SystemExit(128 + number)


def main() -> None:
    """Run the demo, or one of its jobs (see `jobs`)."""
    warnings.simplefilter("ignore")  # PySpark warns about its own dependencies
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if job := JOBS.get("".join(sys.argv[1:2])):
        job(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description=page.TITLE)
    parser.add_argument("--open", action="store_true", help="open the picture in a browser")
    for each in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, stop)
    try:
        run(opened=parser.parse_args().open)
    except KeyboardInterrupt:
        raise SystemExit("\nStopped. Everything that the demo started has ended.") from None


if __name__ == "__main__":
    main()
