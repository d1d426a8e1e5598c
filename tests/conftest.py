"""What every test can use: one file of fixtures for each concern, and what this machine has.

A part that is absent on a machine is named in the report's header, and the tests that need it skip
with the same words.
"""

import gc
import os
import platform
import re
import shutil
import signal
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests import scratch_store

pytest_plugins = [
    "tests.postgresql",
    "tests.fix_upgrades",
    "tests.fix_publisher",
    "tests.fix_publish",
    "tests.fix_crashes",
    "tests.fix_cli",
    "tests.fix_shop",
    "tests.fix_raw_server",
    "tests.fix_middlemen",
    "tests.fix_nginx",
    "tests.fix_producer",
    "tests.fix_backup",
    "tests.fix_audit",
    "tests.fix_tls",
    "tests.fix_reference",
    "tests.fix_spark",
    "tests.fix_connect",
    "tests.fix_sink",
    "tests.fix_dead_letters",
    "tests.fix_cluster",
    "tests.fix_stream",
    "tests.fix_direct",
    "tests.fix_relay",
    "tests.fix_batch",
    "tests.fix_table",
    "tests.fix_lake",
    "tests.fix_sessions",
    "tests.fix_processing",
    "tests.fix_from_delta",
    "tests.fix_console",
    "tests.fix_oauth",
    "tests.fix_object_stores",
    "tests.fix_databricks",
]

# No deadline: a shared machine pauses. `make test-all` tries 50 times as many examples.
settings.register_profile(
    "usual",
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=40,
)
settings.register_profile("campaign", settings.get_profile("usual"), max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "usual"))


# A test is marked with what the fixtures that it uses start. A test that starts something by other
# means is marked by hand.
STARTS = {
    "spark": {"spark", "program", "cluster", "connect_server"},
    "cluster": {"cluster"},
    "browser": {"browser"},
    "postgresql": {"postgresql_server", "own_server", "server", "shop", "postgresql_database"},
}


def pytest_configure() -> None:
    """Let Ctrl-C reach the tests, and the processes that they start: a shell without job control
    starts what is in the background with SIGINT ignored, and children inherit that.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests with what they start, and with the group that runs in one process."""
    from tests import lanes  # not before pytest has loaded its plugins

    for item in items:
        used = set(getattr(item, "fixturenames", ()))
        for mark, fixtures in STARTS.items():
            if used & fixtures or mark in _parameters(item):
                item.add_marker(mark)
        if group := lanes.group_of(item):
            item.add_marker(pytest.mark.xdist_group(group))


def pytest_collection_finish() -> None:
    """Have Python not look at thousands of collected tests whenever it looks for garbage."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Have `--dist loadgroup` begin with the tests that need Spark."""
    from tests import lanes

    return lanes.Lanes(config, log) if config.getoption("dist") == "loadgroup" else None


def _parameters(item: pytest.Item) -> list[str]:
    """Return the ids of a test's parameters: a fixture for each database names it there."""
    return item.callspec.id.split("-") if hasattr(item, "callspec") else []


def pytest_runtest_setup(item: pytest.Item) -> None:
    from tests import postgresql  # not before pytest has loaded its plugins

    postgresql.marked = item.get_closest_marker("postgresql") is not None


@pytest.fixture(autouse=True)
def scratch_stores() -> Iterator[None]:
    """Close the stores that a test has opened; not those of fixtures of its module."""
    before = scratch_store.count_open()
    yield
    scratch_store.close_those_after(before)


def pytest_sessionfinish() -> None:
    scratch_store.close_those_after(0)


def pytest_report_header() -> list[str]:
    from benchmarks import kafka  # not before pytest has loaded its plugins
    from tests import (
        fix_connect,
        fix_console,
        fix_lake,
        fix_nginx,
        fix_object_stores,
        fix_reference,
        postgresql,
        standalone,
    )
    from tests.faults import disks

    header = [f"python {platform.python_version()}, spark {_spark()}, {_java()}"]
    reasons = [
        fix_reference.why_absent(),
        fix_lake.why_absent(),
        fix_connect.why_absent(),
        fix_console.why_absent(),
        postgresql.why_absent(),
        postgresql.why_no_pooler(),
        fix_nginx.why_absent(),
        postgresql.why_no_small_disk(),
        standalone.why_not_apart(),
        kafka.why_absent(),
        disks.why_no_compiler(),
    ]
    absent = [reason for reason in reasons if reason]
    if needed := [each for each in absent if each != postgresql.why_no_small_disk()]:
        if "ZEH_TESTS_COMPLETE" in os.environ:
            pytest.exit(f"ZEH_TESTS_COMPLETE is set, and there is no {'; no '.join(needed)}", 1)
    if emulators := fix_object_stores.why_absent():  # of campaigns, which CI does not run
        absent.append(emulators)
    return header + [f"absent: {reason}" for reason in absent]


def _spark() -> str:
    try:
        return metadata.version("pyspark")
    except metadata.PackageNotFoundError:
        return "absent"


def _java() -> str:
    """Return the version that Java's folder tells: no JVM is started for it."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin" if home else None)
    if not java:
        return "java absent"
    release = Path(java).resolve().parents[1] / "release"
    text = release.read_text() if release.exists() else ""
    found = re.search(r'^JAVA_VERSION="(.*)"', text, re.MULTILINE)
    return f"java {found[1] if found else 'of unknown version'}"
