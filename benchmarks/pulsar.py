"""A broker of Apache Pulsar, as a peer: standalone, with deduplication, jars from Maven.

Needs `mvn`. What it fetches is kept in `.cache/pulsar`.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from benchmarks.kafka import CACHE, fetched_jars, pom
from tests.ports import free_port

VERSION = "3.2.3"
IDLE_MINUTES = 1
"""After how long the broker may forget a producer, and the least that it can be told."""

_OPENED = ("java.lang", "java.nio", "sun.net", "jdk.internal.misc", "jdk.internal.platform")


@contextlib.contextmanager
def broker(work: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A running broker; gives its address and its process.

    If the folder has data of an earlier broker, this one keeps it.
    """
    # without io.etcd: not all of its jars are to be had, and RocksDB has the metadata here
    wanted = pom(
        {"org.apache.pulsar:pulsar-broker": VERSION},
        "io.etcd",
        f"org.apache.pulsar:pulsar:{VERSION}",
    )
    jars = fetched_jars(CACHE.parent / "pulsar", wanted)
    port, web, bookie = free_port(), free_port(), free_port()
    work.mkdir(exist_ok=True)
    settings = work / "standalone.conf"
    settings.write_text(
        f"""clusterName=standalone
brokerServicePort={port}
webServicePort={web}
bindAddress=127.0.0.1
advertisedAddress=127.0.0.1
allowLoopback=true
brokerDeduplicationEnabled=true
brokerDeduplicationProducerInactivityTimeoutMinutes={IDLE_MINUTES}
brokerDeduplicationSnapshotFrequencyInSeconds=5
managedLedgerDefaultEnsembleSize=1
managedLedgerDefaultWriteQuorum=1
managedLedgerDefaultAckQuorum=1
systemTopicEnabled=false
topicLevelPoliciesEnabled=false
loadBalancerEnabled=false
"""
    )
    opened = [f"--add-opens=java.base/{each}=ALL-UNNAMED" for each in _OPENED]
    opened.append("--add-opens=java.management/sun.management=ALL-UNNAMED")
    words = f"""--config {settings} --bookkeeper-dir {work}/bookkeeper --bookkeeper-port {bookie}
        --metadata-dir {work}/metadata --no-functions-worker --no-stream-storage -a 127.0.0.1"""
    command = ["java", "-Xmx1g", *opened, "-cp", ":".join(map(str, jars))]
    command += ["org.apache.pulsar.PulsarStandaloneStarter", *words.split()]
    with (work / "pulsar.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=work)
        try:
            _wait_for(f"http://127.0.0.1:{web}/admin/v2/namespaces/public/default", process)
            yield f"pulsar://127.0.0.1:{port}", process
        finally:
            process.terminate()
            process.wait(60)


def _wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(URLError, ConnectionError):
            urlopen(url, timeout=5).close()
            return
        time.sleep(0.2)
    raise RuntimeError("Pulsar did not start: see pulsar.log")
