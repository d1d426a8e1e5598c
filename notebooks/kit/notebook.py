"""Where a notebook runs: on a laptop with what it needs, or on Databricks with what is there.

`start` gives a notebook its Spark session, a folder and the charts' style. `feed` gives it a feed.
On a laptop, that runs `zeh-spark create` and `zeh-spark serve`, and prints them as one would type
them. On Databricks, it takes the feed from widgets and a secret.

Rule for editors: hide what every notebook repeats, and nothing that a reader comes for. Databricks
has no extra of this package, so import at the top only what `pip install zeh-spark` brings. Never
print a token.
"""

from __future__ import annotations

import atexit
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import zeh_spark

from . import charts  # the folder is `kit` in a notebook, and `notebooks.kit` in the demo

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WIDGETS = {
    "url": "https://…/flights",
    "schema": "main.default",
    "volume": "/Volumes/…",
    "scope": "",  # of the secret, if the feed wants a token
    "key": "token",
}
"""The widgets of a notebook on Databricks, with their defaults."""


@dataclass
class Notebook:
    """A notebook that has started.

    Attributes:
        spark: the Spark session.
        work: a folder of this run, for files, checkpoints and staged batches.
        schema: where tables are, like main.default.
        on_databricks: whether it runs there.
        publisher: the publisher on this laptop, once there is a feed.
    """

    spark: SparkSession
    work: Path
    schema: str
    on_databricks: bool = False
    publisher: Publisher | None = None
    _given: dict[str, str] = field(default_factory=dict, repr=False)

    def feed(self, name: str, partitions: int) -> dict[str, str]:
        """Return the options with which Spark reads and publishes an empty feed.

        On a laptop the feed is made, and served until the kernel ends. On Databricks it is that of
        the widget `url`, with the token of the secret.

        Args:
            name: the feed's name on a laptop.
            partitions: the number of its partitions on a laptop.

        Returns:
            `url`, and `token` if the feed wants one.
        """
        if self.on_databricks:
            return self._given
        create = ["zeh-spark", "create", name, "--partitions", str(partitions)]
        print(f"$ {shlex.join(create)}")
        done = subprocess.run(create, check=True, stdout=subprocess.PIPE, text=True)
        print(done.stdout.rstrip())
        self.publisher = Publisher()
        return {"url": f"{self.publisher.url}/{name}"}


class Publisher:
    """`zeh-spark serve` in a process of its own on this machine, which ends with the kernel.

    It logs into the file publisher.log.

    Args:
        options: the options of `zeh-spark serve`, without the port.

    Attributes:
        url: its address.
    """

    def __init__(self, *options: str) -> None:
        self._options = options
        self.url = "http://127.0.0.1:0"  # a free port at the first start
        self._process: subprocess.Popen[str] | None = None
        atexit.register(self.kill)
        self.start()

    def start(self) -> None:
        """Start it on the same port as before, and wait until it answers.

        Raises:
            RuntimeError: it did not start.
        """
        port = self.url.rpartition(":")[2]
        command = ["zeh-spark", "serve", *self._options, "--port", port]
        print(f"$ {shlex.join(command)} &")
        log = Path("publisher.log")
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        assert self._process.stdout
        said = self._process.stdout.readline()
        if not said:
            raise RuntimeError(f"the publisher did not start. It printed: {log.read_text()}")
        said = said.partition(";")[0]  # without "Ctrl-C stops"
        self.url = said.rpartition(" ")[2]
        print(said)

    def stop(self) -> None:
        """Stop it as an operator does, and wait until it has ended."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it by SIGKILL, in the middle of whatever it does."""
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        if self._process:
            with self._process as process:
                process.send_signal(how)
            self._process = None


def start(*, laptop_because: str = "") -> Notebook:
    """Start a notebook: a Spark session, a folder, and the style of its charts.

    Args:
        laptop_because: why the notebook cannot run on Databricks, if it cannot: half a sentence.

    Raises:
        RuntimeError: it runs on Databricks and cannot.
    """
    with suppress(ImportError):  # a notebook without charts needs no matplotlib
        charts.use_style()
    if "DATABRICKS_RUNTIME_VERSION" not in os.environ:
        return _on_a_laptop()
    if laptop_because:
        raise RuntimeError(
            f"this notebook runs on a laptop only, because {laptop_because}. Run it there; the "
            f"other notebooks are made for Databricks, too."
        )
    return _on_databricks()


def _on_databricks() -> Notebook:
    from databricks.sdk.runtime import dbutils
    from pyspark.sql import SparkSession

    for name, default in WIDGETS.items():
        dbutils.widgets.text(name, default)
    url, schema, volume, scope, key = map(dbutils.widgets.get, WIDGETS)
    feed = {"url": url, "token": dbutils.secrets.get(scope, key)} if scope else {"url": url}
    spark = SparkSession.builder.getOrCreate()
    zeh_spark.register(spark)
    print(f"Spark {spark.version} on Databricks; the feed is {url}")
    work = Path(tempfile.mkdtemp(dir=volume))
    return Notebook(spark, work, schema, on_databricks=True, _given=feed)


def _on_a_laptop() -> Notebook:
    from pyspark.sql import SparkSession

    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # for `zeh-spark`
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    kit = str(Path(charts.__file__).parents[1])  # for the programs that a notebook starts
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (kit, os.environ.get("PYTHONPATH"))))
    folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    atexit.register(folder.cleanup)
    os.chdir(folder.name)
    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.log.level", "OFF")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
    )
    spark = zeh_spark.configure(builder).getOrCreate()
    parts = [f"Spark {spark.version}"]
    with suppress(metadata.PackageNotFoundError):
        parts.append(f"Delta {metadata.version('delta-spark')}")
    print(f"{' with '.join(parts)}, on two cores of this machine")
    return Notebook(spark, Path.cwd(), "default")
