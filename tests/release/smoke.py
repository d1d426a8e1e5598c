"""Install the files of `dist/` as users do, and try them: `python -m tests.release.smoke [NAME …]`.

Each name is an environment that is made for it and removed at the end:

- `4.0`, `4.1`, `4.2`, `4.3`: that Spark and the wheel with the extra `publisher`, which serves;
- `plain`: the newest of the Sparks that the README names and the wheel without extras, which reads,
  publishes and checks. The publisher is in an environment of its own, without Spark;
- `sdist`: the same as `4.2`, from the sdist.

In each, `first_jobs.py` runs against the publisher, and the commands do what the README shows.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.ports import free_port
from tests.release.artifacts import ROOT, sdist, version, wheel

SPARKS = ("4.0", "4.1", "4.2", "4.3")
NAMES = (*SPARKS, "plain", "sdist")
EVENTS = [
    {"id": n, "carrier": "UA DL AA B6 EV".split()[n % 5], "delay": n / 4 - 50} for n in range(5000)
]
SECONDS = 1800
"""For what hangs, not for what is slow: pip fetches 450 MB."""

SLOW_MS = 300
"""What `import zeh_spark` and `zeh-spark --help` must not take, with the start of Python."""


class BrokenError(Exception):
    """Something does not work in an environment as users expect it."""


@dataclass(frozen=True)
class Environment:
    """An environment of Python in `folder`, and a working directory beside it."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "venv" / "bin" / "python"

    def run(self, *words: object, stdin: str = "", code: int = 0) -> str:
        """Return what a command of the environment prints. Fails if it ends with another code."""
        command = [str(word) for word in words]
        command[0] = str(self.python.with_name(command[0]))
        done = subprocess.run(
            command, cwd=self.folder, env=self.variables, input=stdin, timeout=SECONDS,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        if done.returncode != code:
            said = "\n".join(done.stdout.splitlines()[-40:])
            raise BrokenError(f"{command} ended with {done.returncode}:\n{said}")
        return done.stdout

    @property
    def variables(self) -> dict[str, str]:
        """The variables of a user's shell: nothing of the checkout, no site of the user's own."""
        left_out = re.compile(r"PYTHON|PYSPARK|SPARK_HOME|ZEH_|VIRTUAL_ENV")
        kept = {name: each for name, each in os.environ.items() if not left_out.match(name)}
        path = f"{self.python.parent}{os.pathsep}{os.environ['PATH']}"
        ours = {"PATH": path, "PYSPARK_PYTHON": str(self.python), "SPARK_LOCAL_IP": "127.0.0.1"}
        return {**kept, **ours, "PYTHONNOUSERSITE": "1"}


@contextmanager
def environment(name: str, base_python: str, *requirements: str) -> Iterator[Environment]:
    """Make an empty environment, and install requirements in one go, as a user does."""
    made = Environment(Path(tempfile.mkdtemp(prefix=f"zeh-release-{name}-")))
    try:
        subprocess.run([base_python, "-m", "venv", made.folder / "venv"], check=True)
        if requirements:
            made.run("pip", "install", "--quiet", "--disable-pip-version-check", *requirements)
            made.run("pip", "check")
        yield made
    finally:
        shutil.rmtree(made.folder)


def spark_of(name: str) -> list[str]:
    """Return what the README installs beside the package, for a Spark."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    named = re.search(r'pip install ("pyspark\[sql\]==(\d+\.\d+)\S*") ("pandas\S+")', text)
    assert named, "README.md installs no PySpark"
    if name in SPARKS and name != named[2]:
        return [f"pyspark[sql]=={name}.*", named[3].strip('"')]
    return [named[1].strip('"'), named[3].strip('"')]


@contextmanager
def served(env: Environment) -> Iterator[str]:
    """Make the feeds `flights` and `delays`, load the events, and serve them; gives the address."""
    lines = "".join(json.dumps(event) + "\n" for event in EVENTS)
    (env.folder / "flights.ndjson").write_text(lines, encoding="utf-8")
    env.run("zeh-spark", "create", "flights", "--partitions", 4)
    env.run("zeh-spark", "create", "delays", "--partitions", 4)
    env.run("zeh-spark", "load", "flights", "flights.ndjson", "--key", "carrier")
    port = free_port()
    command = [str(env.python.with_name("zeh-spark")), "serve", "--port", str(port)]
    with subprocess.Popen(
        command, cwd=env.folder, env=env.variables, stdout=subprocess.DEVNULL
    ) as process:
        try:
            _await(f"http://127.0.0.1:{port}/healthz", process)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def _await(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise BrokenError(f"the publisher does not answer at {url}") from None
            time.sleep(0.1)


def cpu_ms(env: Environment, *words: str) -> int:
    """Return the median of ten runs of a command: milliseconds of CPU, whatever else runs here."""
    times = []
    for _ in range(10):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        env.run(*words)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return round(1000 * statistics.median(times))


def try_commands(env: Environment, base: str) -> None:
    """Run the commands that talk to a publisher, and compare what `tail` prints with the events."""
    assert f"version {version()}" in env.run("zeh-spark", "--version")
    assert "flights" in env.run("zeh-spark", "feeds", base)
    read = env.run("zeh-spark", "tail", f"{base}/flights", "--from", "first", "--no-follow")
    rows = sorted((json.loads(line) for line in read.splitlines()), key=lambda row: row["id"])
    assert rows == EVENTS, f"tail printed {len(rows)} events, or other ones"
    more = json.dumps({"id": -1, "carrier": "UA", "delay": 0.0}) + "\n"
    env.run("zeh-spark", "publish", f"{base}/delays", "--producer", "shell", stdin=more)
    assert "shell" in env.run("zeh-spark", "producers", f"{base}/delays")
    env.run("zeh-spark", "audit", f"{base}/delays")
    env.run("zeh-spark", "check", f"{base}/flights")
    env.run("zeh-spark", "doctor", f"{base}/flights")


HEADS = ("environment", "installed", "Python", "Spark", "import", "--help", "took")
"""The columns of the table: what was tried, with which versions, and what it took."""


def tried(name: str, base_python: str) -> tuple[str, ...]:
    """Make the environment `name`, and run the first jobs and the commands in it.

    Returns a row of the table.
    """
    began = time.monotonic()
    package = sdist() if name == "sdist" else wheel()
    extra = "" if name == "plain" else "[publisher]"
    with ExitStack() as stack:
        env = stack.enter_context(
            environment(name, base_python, *spark_of(name), f"{package}{extra}")
        )
        server = env
        if name == "plain":
            server = stack.enter_context(
                environment("publisher", base_python, f"{wheel()}[publisher]")
            )
            refused = env.run("zeh-spark", "serve", code=1)
            assert 'pip install "zeh-spark[publisher]"' in refused, refused
        base = stack.enter_context(served(server))
        (env.folder / "expected.json").write_text(json.dumps(EVENTS), encoding="utf-8")
        program = env.folder / "first_jobs.py"
        shutil.copy(Path(__file__).with_name(program.name), program)
        said = env.run(
            "python", program, f"{base}/flights", f"{base}/delays", env.folder, "expected.json"
        )
        found = json.loads(said.splitlines()[-1])
        try_commands(env, base)
        import_ms = cpu_ms(env, "python", "-c", "import zeh_spark")
        help_ms = cpu_ms(env, "zeh-spark", "--help")
        assert max(import_ms, help_ms) < SLOW_MS, f"{name}: {import_ms} ms, {help_ms} ms"
    installed = f"{package.suffix.removeprefix('.')}{extra}"
    return (
        name, installed, found["python"], found["spark"], f"{import_ms} ms", f"{help_ms} ms",
        f"{round(time.monotonic() - began)} s",
    )  # fmt: skip


def table(rows: Sequence[tuple[str, ...]]) -> str:
    """Return the results as a table."""
    widths = [max(map(len, column)) for column in zip(HEADS, *rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (HEADS, *rows)
    )


def main() -> None:
    """Try what is named, and print a table. Ends with an error if anything does not work."""
    parser = argparse.ArgumentParser(description="Install the files of dist/, and try them.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--python", default=sys.executable, help="makes the environments")
    given = parser.parse_args()
    if unknown := sorted(set(given.names) - set(NAMES)):
        parser.error(f"{unknown[0]} is none of {', '.join(NAMES)}")
    rows, broken = [], []
    for name in given.names or NAMES:
        print(f"trying {name} …", flush=True)
        try:
            rows.append(tried(name, given.python))
        except (AssertionError, BrokenError, subprocess.SubprocessError) as exc:
            print(f"{name} does not work: {exc}", file=sys.stderr)
            broken.append(name)
    print(f"\nzeh-spark {version()}: installed, served, read, published and compared\n")
    print(table(rows))
    if broken:
        sys.exit(f"\nBROKEN: {', '.join(broken)}")


if __name__ == "__main__":
    main()
