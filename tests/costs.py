"""What tests cost: seconds and CPU seconds of each phase, with all processes that it started.

`pytest -p tests.costs --costs FILE` writes one JSON file for all processes of xdist.
`python -m tests.costs FILE [OLDER]` prints it by group, folder, file and fixture.
CPU is that of the whole tree of processes below pytest's: JVMs, Spark's Python workers, databases.
It is read from /proc, so that this needs Linux. What runs between two phases counts for the later.
"""

import ctypes
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

TICKS = os.sysconf("SC_CLK_TCK")
A_SHORT_PHASE = 0.005  # seconds; below, the other processes are not looked at
PR_SET_CHILD_SUBREAPER = 36


class Meter:
    """Reads how much CPU this process and all below it have used."""

    def __init__(self) -> None:
        # Processes whose parent has ended, as databases' and Spark's daemons, become our children.
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.jvms: set[tuple[int, str]] = set()
        self.counted = 0
        self.seen = self._of_tree()
        self.own = time.process_time()

    def since_last(self, seconds: float) -> float:
        """Return the CPU seconds since the last call, which was about `seconds` ago."""
        own = time.process_time()
        if seconds < A_SHORT_PHASE:
            used = own - self.own
            self.seen += used
        else:
            seen = self._of_tree()
            used = max(seen - self.seen, 0.0)
            self.seen = seen
        self.own = own
        return used

    def new_jvms(self) -> int:
        """Return how many JVMs have been seen since the last call."""
        new, self.counted = len(self.jvms) - self.counted, len(self.jvms)
        return new

    def _of_tree(self) -> float:
        below, used = defaultdict(list), {}
        for folder in Path("/proc").iterdir():
            if not folder.name.isdigit():
                continue
            try:
                text = (folder / "stat").read_text()
            except OSError:  # it has ended
                continue
            name, rest = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2 :]
            fields = rest.split()
            pid = int(folder.name)
            below[int(fields[1])].append(pid)
            used[pid] = (sum(map(int, fields[11:15])) / TICKS, name, fields[19])
        total, left = 0.0, [os.getpid()]
        while left:
            pid = left.pop()
            seconds, name, started = used.get(pid, (0.0, "", ""))
            total += seconds
            if name == "java":
                self.jvms.add((pid, started))
            left += below[pid]
        return total


class Costs:
    """Measures in each process of xdist, and gathers in the first."""

    def __init__(self, config: pytest.Config, path: str) -> None:
        self.config = config
        self.path = Path(path)
        self.meter = Meter()
        self.began = time.monotonic()
        self.fixtures: list[tuple[str, float, float]] = []
        self.tests: dict[str, dict[str, object]] = {}
        self.totals: dict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0.0])

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[object]) -> Iterator[None]:
        began = time.monotonic()
        try:
            return (yield)
        finally:
            seconds = time.monotonic() - began
            if seconds >= A_SHORT_PHASE:
                self.fixtures.append((fixturedef.argname, seconds, self.meter.since_last(seconds)))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Iterator[None]:
        report = yield
        cpu = self.meter.since_last(call.duration) + sum(cpu for _, _, cpu in self.fixtures)
        groups = [mark.args[0] for mark in item.iter_markers("xdist_group")]
        marks = [
            mark for mark in ("spark", "postgresql", "browser") if item.get_closest_marker(mark)
        ]
        report.costs = {
            "group": groups[0].split()[0] if groups else (marks[0] if marks else "other"),
            "process": os.environ.get("PYTEST_XDIST_WORKER", "main"),
            "cpu": cpu,
            "fixtures": self.fixtures,
            "jvms": self.meter.new_jvms(),
        }
        self.fixtures = []
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        costs = getattr(report, "costs", None)
        if hasattr(self.config, "workerinput") or costs is None:
            return
        test = self.tests.setdefault(report.nodeid, {"group": costs["group"]})
        test["process"] = costs["process"]
        test[report.when] = [round(report.duration, 4), round(costs["cpu"], 4)]
        test["jvms"] = test.get("jvms", 0) + costs["jvms"]
        for name, seconds, cpu in costs["fixtures"]:
            for each, more in enumerate((1, seconds, cpu)):
                self.totals[name][each] += more

    def pytest_sessionfinish(self) -> None:
        if not hasattr(self.config, "workerinput"):
            seconds = time.monotonic() - self.began
            found = {"seconds": seconds, "tests": self.tests, "totals": self.totals}
            self.path.write_text(json.dumps(found))


def table(found: dict[str, object], key: str) -> dict[str, list[float]]:
    """Return tests, seconds, CPU seconds and JVMs by `group`, `folder`, `file` or `fixture`."""
    if key == "fixture":
        return {name: [*values, 0] for name, values in found["totals"].items()}
    rows: dict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0.0, 0])
    for name, test in found["tests"].items():
        path = name.partition("::")[0]
        names = {"group": test["group"], "file": path, "folder": str(Path(path).parent)}
        row = rows[names[key]]
        phases = [test[when] for when in ("setup", "call", "teardown") if when in test]
        row[0] += 1
        row[1] += sum(seconds for seconds, _ in phases)
        row[2] += sum(cpu for _, cpu in phases)
        row[3] += test["jvms"]
    return rows


def show(path: str, older: str | None) -> None:
    """Print the tables of one run, beside an older one's CPU seconds."""
    found = json.loads(Path(path).read_text())
    before = json.loads(Path(older).read_text()) if older else None
    for key in ("group", "folder", "file", "fixture"):
        old = table(before, key) if before else {}
        rows = sorted(table(found, key).items(), key=lambda row: -row[1][2])
        print(f"\n{key:60} {'tests':>6} {'wall s':>8} {'CPU s':>8} {'JVMs':>5} {'CPU s then':>11}")
        for name, (count, seconds, cpu, jvms) in rows[:60]:
            then = f"{old[name][2]:11.1f}" if name in old else ""
            print(f"{name:60} {count:6} {seconds:8.1f} {cpu:8.1f} {jvms:5} {then}")
        print(
            f"{'all':60} {sum(r[0] for _, r in rows):6} {sum(r[1] for _, r in rows):8.1f} "
            f"{sum(r[2] for _, r in rows):8.1f} {sum(r[3] for _, r in rows):5}"
        )
    by_process: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for test in found["tests"].values():
        for when in ("setup", "call", "teardown"):
            for each, value in enumerate(test.get(when, (0.0, 0.0))):
                by_process[test["process"]][each] += value
    for name, (seconds, cpu) in sorted(by_process.items()):
        print(f"{name}: {seconds:.0f} s, {cpu:.0f} CPU s")
    print(f"whole run: {found['seconds']:.0f} s")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--costs", metavar="FILE", help="write what each test costs to this file")


def pytest_configure(config: pytest.Config) -> None:
    if path := config.getoption("--costs"):
        config.pluginmanager.register(Costs(config, path), "costs of tests")


if __name__ == "__main__":
    show(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None)
