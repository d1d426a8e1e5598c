"""What conf/ has to run a publisher: its commands, settings and files are those of the package."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
import yaml

from tests.cases import each_case
from zeh_spark.service.app.config import load_config
from zeh_spark.service.network.draining import CLOSE_SECONDS
from zeh_spark.tools.cli.main import zeh_spark
from zeh_spark.tools.cli.serve_command import serve

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "conf" / "docker"
IMAGES = ["Dockerfile", "job.Dockerfile"]
DOCKERFILE = (DOCKER / "Dockerfile").read_text(encoding="utf-8")
COMPOSE = yaml.safe_load((DOCKER / "compose.yaml").read_text(encoding="utf-8"))
JOB = (DOCKER / "job.Dockerfile").read_text(encoding="utf-8")
UNIT = ROOT / "conf" / "zeh-spark.service"
VARIABLES = {each.envvar for each in serve.params if isinstance(each, click.Option)}


def unit() -> configparser.SectionProxy:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment]  # as the names are written
    parser.read(UNIT, encoding="utf-8")
    return parser["Service"]


def parsed(words: list[str]) -> str:
    """The name of the command that these words call. Fails if it has not these options."""
    command = zeh_spark.get_command(click.Context(zeh_spark), words[0])
    assert command, words
    command.make_context(words[0], words[1:])
    return words[0]


def instruction(name: str, image: str = "Dockerfile") -> list[str]:
    """The words of the last such line of a Dockerfile, in JSON."""
    text = (DOCKER / image).read_text(encoding="utf-8")
    found = re.findall(rf"^\s*{name} (\[.+\])$", text, re.MULTILINE)
    return list(json.loads(found[-1]))


def test_image_and_unit_start_a_command_that_exists() -> None:
    assert ["zeh-spark"] == instruction("ENTRYPOINT")
    assert "serve" == parsed(instruction("CMD"))
    program, *words = shlex.split(unit()["ExecStart"])
    assert ("/opt/zeh-spark/bin/zeh-spark", "serve") == (program, parsed(words))


@each_case("image", IMAGES)
def test_the_image_copies_files_that_exist(image: str) -> None:
    """And its context lets them through, and no others. It does not run as root."""
    text = (DOCKER / image).read_text(encoding="utf-8")
    let_through = (DOCKER / f"{image}.dockerignore").read_text(encoding="utf-8").splitlines()
    copied = [
        name
        for line in re.findall(r"^COPY (.+)$", text, re.MULTILINE)
        for name in line.split()[:-1]
        if not name.startswith("--")
    ]
    assert "zeh_spark" in copied
    assert [] == [name for name in copied if not (ROOT / name).exists()]
    assert {f"!{name}" for name in copied} == {*let_through} - {"*", "**/__pycache__"}
    assert ["10001:10001"] == re.findall(r"^USER (.+)$", text, re.MULTILINE)


def test_the_job_documents_its_variables() -> None:
    """What it reads is what its docstring lists, and all that image and service set."""
    text = (DOCKER / "job.py").read_text(encoding="utf-8")
    documented = set(re.findall(r"^    ([A-Z_]+): ", text, re.MULTILINE))
    read = set(re.findall(r'environ(?:\.get\(|\[)"(?!PYSPARK)(\w+)"', text))
    given = {*COMPOSE["services"]["job"]["environment"], *re.findall(r"^ +([A-Z_]+)=", JOB, re.M)}

    assert {"FEED_URL", "FOLDER", "TOKEN_FILE", "TRIGGER"} == documented == read
    assert {"FEED_URL", "FOLDER", "TOKEN_FILE"} == {each for each in given if each in documented}
    assert ["python", "/usr/local/lib/zeh-spark/job.py"] == instruction(
        "ENTRYPOINT", "job.Dockerfile"
    )


def test_the_job_keeps_its_files_and_has_what_it_needs() -> None:
    """The folder is a volume, /tmp is not mounted noexec, and its Spark is that of the README."""
    (folder,) = re.findall(r"^ +FOLDER=(.+)$", JOB, re.M)
    job = COMPOSE["services"]["job"]

    assert [f"lake:{folder}"] == job["volumes"]
    assert {"lake", "data"} == set(COMPOSE["volumes"])
    assert (True, ["/tmp:exec"]) == (job["read_only"], job["tmpfs"])
    spark = re.search(r'pip install (?:--\S+ )*("pyspark\S+" "pandas\S+")', JOB)
    assert spark and spark[1] in (ROOT / "README.md").read_text(encoding="utf-8")


def test_variables_of_image_and_services_are_settings() -> None:
    named = set(re.findall(r"\bZEH_\w+(?==)", DOCKERFILE))
    for service in COMPOSE["services"].values():
        named |= {each for each in service["environment"] if each.startswith("ZEH_")}
    assert {"ZEH_HOST", "ZEH_PORT", "ZEH_STORE", "ZEH_DRAIN_DELAY"} == named
    assert named <= VARIABLES


@each_case("name", ["publisher", "owner"])
def test_services_run_commands_that_exist(name: str) -> None:
    service = COMPOSE["services"][name]
    parsed(service["command"])
    script = service["entrypoint"][2].replace("$$", "$")
    assert script.endswith('exec zeh-spark "$@"')


@each_case("name", COMPOSE["services"])
def test_services_get_passwords_from_files_that_are_secrets(name: str) -> None:
    """No password is in the file, in the environment of a container, or in a list of processes."""
    service = COMPOSE["services"][name]
    used = set(re.findall(r"/run/secrets/(\w+)", json.dumps(service)))
    assert used <= set(service["secrets"]) <= set(COMPOSE["secrets"])
    shown = [key for key in service["environment"] if "PASSWORD" in key]
    assert [] == [key for key in shown if not key.endswith("_FILE")]


def test_services_wait_longer_than_a_publisher_takes_to_stop() -> None:
    """Nothing kills it while it drains, as it is configured there."""
    grace = load_config(ROOT / "conf" / "publisher.toml").stop_times.grace
    publisher = COMPOSE["services"]["publisher"]
    delay = int(publisher["environment"]["ZEH_DRAIN_DELAY"].removesuffix("s"))
    least = delay + grace + CLOSE_SECONDS
    assert least < int(publisher["stop_grace_period"].removesuffix("s"))
    assert least < int(unit()["TimeoutStopSec"])


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    """And finds it hardened."""
    copy = tmp_path / UNIT.name
    text = UNIT.read_text(encoding="utf-8")
    copy.write_text(text.replace("/opt/zeh-spark/bin/zeh-spark", sys.executable))
    verified = subprocess.run(
        ["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, check=False
    )
    assert (0, "") == (verified.returncode, verified.stderr)
    secure = ["systemd-analyze", "security", "--offline=true", "--threshold=20", str(copy)]
    rated = subprocess.run(secure, capture_output=True, text=True, check=False)
    assert 0 == rated.returncode, rated.stdout[-300:]
