"""What every test can use: one file of fixtures for each concern, and what this machine has.

A part that is absent on a machine is named in the report's header, and the tests that need it skip
with the same words.
"""

import os
import platform
import shutil
import subprocess
from importlib import metadata

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = [
    "tests.postgresql",
    "tests.fix_proxy",
    "tests.fix_publisher",
    "tests.fix_publish",
    "tests.fix_shop",
    "tests.fix_gateway",
    "tests.fix_producer",
    "tests.fix_backup",
    "tests.fix_audit",
    "tests.fix_raw_server",
    "tests.fix_reference",
    "tests.fix_spark",
    "tests.fix_sink",
    "tests.fix_dead_letters",
    "tests.fix_cluster",
    "tests.fix_stream",
    "tests.fix_batch",
    "tests.fix_table",
    "tests.fix_lake",
    "tests.fix_sessions",
    "tests.fix_from_delta",
]

# No deadline: a shared machine pauses. `make test-all` looks 20 times as long.
settings.register_profile(
    "usual", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("campaign", settings.get_profile("usual"), max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "usual"))


@pytest.hookimpl(tryfirst=True)  # before xdist looks for groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give all tests of the shared Spark session to one process, so that there is one JVM."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.xdist_group("spark"))


def pytest_report_header() -> list[str]:
    from tests import (  # not before pytest has loaded its plugins
        fix_lake,
        fix_reference,
        postgresql,
    )

    header = [f"python {platform.python_version()}, spark {_spark()}, {_java()}"]
    reasons = [
        fix_reference.why_absent(),
        fix_lake.why_absent(),
        postgresql.why_absent(),
        postgresql.why_no_small_disk(),
    ]
    absent = [reason for reason in reasons if reason]
    if needed := [each for each in absent if each != postgresql.why_no_small_disk()]:
        if "ZEH_TESTS_COMPLETE" in os.environ:
            pytest.exit(f"ZEH_TESTS_COMPLETE is set, and there is no {'; no '.join(needed)}", 1)
    return header + [f"absent: {reason}" for reason in absent]


def _spark() -> str:
    try:
        return metadata.version("pyspark")
    except metadata.PackageNotFoundError:
        return "absent"


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java")
    if not java:
        return "java absent"
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    return said.partition("\n")[0].replace('"', "")
