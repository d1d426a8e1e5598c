"""Make the pictures of real programs in the docs: `make pictures`.

`console` is the publisher's console, `spark` Spark's page of a query, `terminal` commands with what
they print, and `demo` a recording of `make demo`, which is played faster than it was. Each shows
what a real run printed or drew. Without arguments, all are made.

A recording is an asciicast, which termtosvg-ng draws as SVG. It is installed in an environment of
its own, `.venv-pictures`.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.fix_console import Shop, opened_browser, site
from tests.scratch_store import ScratchStore
from zeh_spark.service.store.token_rights import ADMIN
from zeh_spark.testing import publish, running_publisher

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

ROOT = Path(__file__).parents[1]
TERMTOSVG = ROOT / ".venv-pictures" / "bin" / "termtosvg"
PICTURES = ROOT / "docs" / "pictures"
MOST_BYTES = 500_000
"""The largest size of a picture: a page of the docs has to be there at once."""

SHOTS = (
    ("console-feeds", "", "light", 1100, 700),
    ("console-feed", "/feeds/orders", "dark", 1100, 800),
    ("console-phone", "/refusals", "light", 390, 780),
)
"""For each picture of the console its name, the page, light or dark, and the size of the window."""

WARM_BATCHES, BATCHES, EVENTS, PAUSE = 8, 40, 400, 0.25
"""How many micro-batches of Spark are not shown and shown, and how many events are published how
often, with pauses in seconds.
"""

FASTER, LONGEST = 6, 2.0
"""How much faster the recording of the demo is played, and the longest pause in it, in seconds."""

PROMPT = "\x1b[32m$\x1b[0m "
FIRST_FEED = (
    "zeh-spark create flights --partitions 4",
    "zeh-spark load flights flights.ndjson --key carrier",
    "FLIGHTS=http://127.0.0.1:8080/flights",
    "zeh-spark tail $FLIGHTS --from first --no-follow",
    "zeh-spark publish $FLIGHTS --producer gate-12 --batch 2013-01-01 < more.ndjson",
    "zeh-spark publish $FLIGHTS --producer gate-12 --batch 2013-01-01 < more.ndjson",
    "zeh-spark producers $FLIGHTS",
    "zeh-spark audit $FLIGHTS",
)
MISTAKES = (
    "FLIGHTS=http://127.0.0.1:8080/flights",
    "zeh-spark publish $FLIGHTS --producer gate-12 --batch 2013-01-01 < other.ndjson",
    "zeh-spark tail http://127.0.0.1:8080/flihgts",
    "zeh-spark publish $FLIGHTS --producer gate-12 < /dev/null",
)
FLIGHTS = """\
{"carrier": "UA", "flight": 1545, "dep_delay": 2.0, "origin": "EWR"}
{"carrier": "EV", "flight": 5708, "dep_delay": -3.0, "origin": "LGA"}
{"carrier": "UA", "flight": 1714, "dep_delay": 34.0, "origin": "LGA"}
"""


def console() -> None:
    """Draw the publisher's console after an hour of a shop's events."""
    with site() as publisher, opened_browser() as browser:
        shop = Shop(publisher, publisher.token(*ADMIN, name="ada"))
        shop.run()
        for name, path, scheme, width, height in SHOTS:
            context = browser.new_context(
                color_scheme=scheme, viewport={"width": width, "height": height}
            )
            page = context.new_page()
            page.goto(f"{publisher.console}/sign-in")
            page.get_by_label("Token").fill(shop.token)
            page.get_by_role("button", name="Sign in").click()
            page.goto(publisher.console + path)
            page.screenshot(path=PICTURES / f"{name}.png")
            context.close()


# Spark


def spark() -> None:
    """Draw Spark's page of a query that reads a feed while events are published to it."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    store = ScratchStore(orders=4)
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.port", "0")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    with (
        tempfile.TemporaryDirectory() as folder,
        running_publisher(store) as base,
        _publishing(store),
        opened_browser() as browser,
    ):
        feed = session.readStream.format("zeroeventhub").option("startingCursors", "last")

        def start(name: str) -> StreamingQuery:
            return (
                feed.load(f"{base}/orders")
                .writeStream.format("parquet")
                .queryName(name)
                .option("path", f"{folder}/{name}")
                .option("checkpointLocation", f"{folder}/checkpoint of {name}")
                .start()
            )

        warm = start("warm up")  # the first batches of a JVM take seconds
        _until(warm, WARM_BATCHES)
        warm.stop()
        query = start("orders to files")
        _until(query, BATCHES)
        page = browser.new_page(viewport={"width": 1080, "height": 1240})
        address = session.sparkContext.uiWebUrl
        page.goto(f"{address}/StreamingQuery/statistics/?id={query.runId}")
        page.wait_for_selector("svg")
        page.add_style_tag(content="[class*=scroll], [id*=scroll] { display: none !important }")
        page.screenshot(path=PICTURES / "spark-streaming.png")
        query.stop()
    session.stop()


def _until(query: StreamingQuery, batches: int) -> None:
    """Wait until a query has ended so many batches."""
    while not query.lastProgress or query.lastProgress["batchId"] < batches:
        assert query.isActive, query.exception()
        time.sleep(0.2)


@contextmanager
def _publishing(store: ScratchStore) -> Iterator[None]:
    """Publish events of a shop until the block ends."""
    ended = threading.Event()

    def run() -> None:
        number = 0
        while not ended.wait(PAUSE):
            orders = range(number, number + EVENTS)
            publish(store, "orders", [{"order": each, "amount": each % 90} for each in orders])
            number += EVENTS

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


# The terminal


def terminal() -> None:
    """Draw commands with what they print."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "flights.ndjson").write_text(FLIGHTS)
        (folder / "more.ndjson").write_text('{"carrier": "DL", "dep_delay": 7.0}\n')
        (folder / "other.ndjson").write_text('{"carrier": "DL", "dep_delay": 8.0}\n')
        command = ["zeh-spark", "create", "orders", "-q"]  # `serve` needs a store
        subprocess.run(command, cwd=folder, env=_environment(), check=True)
        with _serving(folder):
            _still("terminal-commands", FIRST_FEED, folder, (92, 25))
            _still("terminal-errors", MISTAKES, folder, (92, 18))


@contextmanager
def _serving(folder: Path) -> Iterator[None]:
    """Serve the store of a folder at port 8080, as the docs do."""
    command = ["zeh-spark", "serve", "--port", "8080", "--log-level", "error"]
    with subprocess.Popen(command, cwd=folder, env=_environment(), stdout=subprocess.PIPE) as run:
        try:
            assert run.stdout and run.stdout.readline(), "the publisher did not start"
            yield
        finally:
            run.terminate()


def _still(name: str, commands: Sequence[str], folder: Path, size: tuple[int, int]) -> None:
    """Draw the last screen of a session in a terminal."""
    script = "".join(f"printf '%s\\n' {shlex.quote(PROMPT + each)}\n{each}\n" for each in commands)
    (folder / "session.sh").write_text(script)
    cast, frames = folder / "session.cast", folder / f"{name}-frames"
    _record("bash session.sh", cast, folder, size)
    frames.mkdir()
    _termtosvg("render", str(cast), str(frames), "-s", "-t", "window_frame", folder=folder)
    last = max(frames.iterdir(), key=lambda each: each.name)
    _write(f"{name}.svg", last.read_text(encoding="utf-8"))


def demo() -> None:
    """Draw a recording of `make demo`."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cast, drawn = folder / "demo.cast", folder / "demo.svg"
        script = f"printf '%s\\n' {shlex.quote(PROMPT + 'make demo')}; make -s demo ARGS="
        (folder / "session.sh").write_text(script)
        _record(f"bash {folder}/session.sh", cast, ROOT, (120, 26))
        recorded = cast.read_text(encoding="utf-8")
        assert "Done in" in recorded, recorded
        cast.write_text(faster(recorded, FASTER, LONGEST))
        _termtosvg(
            "render", str(cast), str(drawn), "-t", "window_frame", "-m", "120", "-D", "5000",
            folder=folder,
        )  # fmt: skip
        _write("demo.svg", drawn.read_text(encoding="utf-8"))


def faster(cast: str, factor: float, longest: float) -> str:
    """Return a recording in which time runs faster, and no pause is longer than some seconds.

    It is an asciicast of version 2: a header, and then lines [seconds, kind, text].
    """
    header, *lines = cast.splitlines()
    told, before, now = [header], 0.0, 0.0
    for line in lines:
        at, *rest = json.loads(line)
        now += min((at - before) / factor, longest)
        before = at
        told.append(json.dumps([round(now, 3), *rest]))
    return "\n".join(told) + "\n"


def _record(command: str, cast: Path, folder: Path, size: tuple[int, int]) -> None:
    geometry = f"{size[0]}x{size[1]}"
    _termtosvg("record", str(cast), "-c", command, "-g", geometry, folder=folder)


def _termtosvg(*words: str, folder: Path) -> None:
    # Its standard input stays open: at its end a recording ends, too.
    with subprocess.Popen(
        [TERMTOSVG, *words], cwd=folder, env=_environment(), stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as drawing:  # fmt: skip
        assert drawing.wait() == 0, words


def _environment() -> dict[str, str]:
    """Return an environment in which `zeh-spark` is that of this Python, on a terminal."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "TERM": "xterm-256color"}


def _write(name: str, drawn: str) -> None:
    assert len(drawn) < MOST_BYTES, f"{name} has {len(drawn):,} bytes, of {MOST_BYTES:,} at most"
    (PICTURES / name).write_text(drawn, encoding="utf-8")


KINDS: dict[str, Callable[[], None]] = {
    "console": console, "spark": spark, "terminal": terminal, "demo": demo,
}  # fmt: skip


def main() -> None:
    """Make the pictures that are named, or all."""
    for kind in sys.argv[1:] or KINDS:
        KINDS[kind]()
        print(f"made: {kind}", flush=True)  # noqa: T201  # a program


if __name__ == "__main__":
    main()
