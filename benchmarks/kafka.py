"""Spark's own Kafka source on the same events, as a peer: a broker of one node, jars from Maven.

Needs `mvn`. What it fetches is kept in `.cache/kafka`.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from tests.ports import free_port

CACHE = Path(__file__).parents[1] / ".cache" / "kafka"
BROKER = {
    "org.apache.kafka:kafka_2.13": "3.9.1",
    "org.apache.kafka:kafka-tools": "3.9.1",
    "org.slf4j:slf4j-simple": "1.7.36",
}
CONNECTOR = {
    "org.apache.spark:spark-sql-kafka-0-10_2.13": "4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13": "4.0.0",  # 4.2.0 is not to be had
    "org.apache.kafka:kafka-clients": "3.9.1",
    "org.apache.commons:commons-pool2": "2.12.1",
}


def why_absent() -> str | None:
    """Return what is missing to fetch Kafka; None if nothing is."""
    return None if shutil.which("mvn") else "Maven (Debian: apt-get install maven)"


def connector_jars() -> str:
    """For `spark.jars`."""
    return ",".join(str(jar) for jar in _jars("connector", CONNECTOR, transitive=False))


def broker_jars() -> str:
    """For Java's class path."""
    return ":".join(str(jar) for jar in _jars("broker", BROKER, transitive=True))


@contextlib.contextmanager
def broker(
    work: Path, port: int | None = None, advertised: int | None = None, *, settings: str = ""
) -> Iterator[tuple[str, int]]:
    """A running broker with the topic `flights`; gives its address and its process id.

    Clients are told the port `advertised`, where a proxy of `port` has to be. If the
    folder has data of an earlier broker, this one keeps it. `settings` are more lines of its
    server.properties.
    """
    classpath = broker_jars()
    client, controller = port or free_port(), free_port()
    work.mkdir(exist_ok=True)
    file = work / "server.properties"
    file.write_text(
        f"""process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{client},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{advertised or client}
controller.listener.names=CONTROLLER
log.dirs={work}/kafka
num.partitions=4
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
{settings}
"""
    )

    def java(*arguments: str) -> list[str]:
        return ["java", "-Xmx1g", "-cp", classpath, *arguments]

    if not (work / "kafka").exists():
        tool = java("kafka.tools.StorageTool")
        made = subprocess.run([*tool, "random-uuid"], check=True, capture_output=True, text=True)
        form = ["format", "-t", made.stdout.strip().splitlines()[-1], "-c", str(file)]
        subprocess.run([*tool, *form], check=True, capture_output=True)
    address = f"127.0.0.1:{client}"
    with (work / "kafka.log").open("w") as log:
        process = subprocess.Popen(java("kafka.Kafka", str(file)), stdout=log, stderr=log)
        try:
            subprocess.run(  # waits until the broker answers
                java(
                    "org.apache.kafka.tools.TopicCommand",
                    "--bootstrap-server",
                    address,
                    "--create",
                    "--if-not-exists",
                    "--topic",
                    "flights",
                    "--partitions",
                    "4",
                ),
                check=True,
                capture_output=True,
            )
            yield address, process.pid
        finally:
            process.terminate()
            process.wait(60)


def fill(frame: DataFrame, address: str) -> None:
    """Put a feed's events into the topic, each into its partition, headers and all."""
    headers = "transform(map_entries(headers), e -> struct(e.key AS key, binary(e.value) AS value))"
    (
        frame.selectExpr("partition", "data AS value", f"{headers} AS headers")
        .write.format("kafka")
        .option("kafka.bootstrap.servers", address)
        .option("includeHeaders", "true")
        .option("topic", "flights")
        .save()
    )


def stream(spark: SparkSession, address: str, **options: object) -> DataFrame:
    """As the ones who compare would write it: the value as a string."""
    return _columns(spark.readStream.format("kafka").options(**_options(address), **options).load())


def batch(spark: SparkSession, address: str) -> DataFrame:
    return _columns(spark.read.format("kafka").options(**_options(address)).load())


def _options(address: str) -> dict[str, object]:
    return {
        "kafka.bootstrap.servers": address,
        "subscribe": "flights",
        "startingOffsets": "earliest",
    }


def _columns(frame: DataFrame) -> DataFrame:
    return frame.selectExpr("partition", "CAST(value AS STRING) AS data")


def _jars(name: str, artifacts: dict[str, str], *, transitive: bool) -> list[Path]:
    return fetched_jars(CACHE / name, pom(artifacts, "" if transitive else "*"))


def fetched_jars(folder: Path, pom: str) -> list[Path]:
    """Return the jars that the folder keeps, of the dependencies of this pom."""
    if not list(folder.glob("*.jar")):
        folder.mkdir(parents=True, exist_ok=True)
        file, fetched = folder / "pom.xml", folder / "fetched"
        file.write_text(pom)
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={fetched}"]
        subprocess.run(["mvn", "-q", "-B", "-f", str(file), *goal], check=True, timeout=600)
        for jar in fetched.glob("*.jar"):  # all of them have come
            jar.rename(folder / jar.name)
    return sorted(folder.glob("*.jar"))


def pom(artifacts: dict[str, str], without: str = "", managed: str = "") -> str:
    """Return one with these artifacts, without their dependencies in the group `without`.

    The versions of other dependencies are those of the artifact `managed`.
    """
    exclusion = f"<exclusion><groupId>{without}</groupId><artifactId>*</artifactId></exclusion>"
    more = f"<exclusions>{exclusion}</exclusions>" if without else ""
    wanted = "".join(
        f"<dependency>{_named(*each)}{more}</dependency>" for each in artifacts.items()
    )
    boms = ""
    if managed:
        bom = f"{_named(*managed.rsplit(':', 1))}<type>pom</type><scope>import</scope>"
        boms = f"<dependencies><dependency>{bom}</dependency></dependencies>"
    return (
        f"<project><modelVersion>4.0.0</modelVersion>{_named('zeh:bench', '1')}"
        f"<dependencyManagement>{boms}</dependencyManagement>"
        f"<dependencies>{wanted}</dependencies></project>"
    )


def _named(artifact: str, version: str) -> str:
    group, name = artifact.split(":")
    return f"<groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version>"
