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

from zeh_spark.cli.main import zeh_spark
from zeh_spark.cli.serve_command import serve
from zeh_spark.network.draining import CLOSE_SECONDS
from zeh_spark.publisher.config import load_config

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "conf" / "docker"
DOCKERFILE = (DOCKER / "Dockerfile").read_text(encoding="utf-8")
COMPOSE = yaml.safe_load((DOCKER / "compose.yaml").read_text(encoding="utf-8"))
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


def instruction(name: str) -> list[str]:
    """The words of the last such line of the Dockerfile, in JSON."""
    found = re.findall(rf"^\s*{name} (\[.+\])$", DOCKERFILE, re.MULTILINE)
    return list(json.loads(found[-1]))


def test_the_image_runs_a_command_that_exists() -> None:
    assert ["zeh-spark"] == instruction("ENTRYPOINT")
    assert "serve" == parsed(instruction("CMD"))


def test_the_image_copies_files_that_exist() -> None:
    """And its context lets them through."""
    let_through = (DOCKER / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    copied = [
        name
        for line in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.MULTILINE)
        for name in line.split()[:-1]
        if not name.startswith("--")
    ]
    assert "zeh_spark" in copied
    assert [] == [name for name in copied if not (ROOT / name).exists()]
    assert [] == [name for name in copied if f"!{name}" not in let_through]


def test_the_image_does_not_run_as_root() -> None:
    assert ["10001:10001"] == re.findall(r"^USER (.+)$", DOCKERFILE, re.MULTILINE)


def test_variables_of_image_and_services_are_settings() -> None:
    named = set(re.findall(r"\bZEH_\w+(?==)", DOCKERFILE))
    for service in COMPOSE["services"].values():
        named |= {each for each in service["environment"] if each.startswith("ZEH_")}
    assert {"ZEH_HOST", "ZEH_PORT", "ZEH_STORE", "ZEH_DRAIN_DELAY"} == named
    assert named <= VARIABLES


@pytest.mark.parametrize("name", ["publisher", "owner"])
def test_services_run_commands_that_exist(name: str) -> None:
    service = COMPOSE["services"][name]
    parsed(service["command"])
    script = service["entrypoint"][2].replace("$$", "$")
    assert script.endswith('exec zeh-spark "$@"')


@pytest.mark.parametrize("name", COMPOSE["services"])
def test_services_get_passwords_from_files_that_are_secrets(name: str) -> None:
    """No password is in the file, in the environment of a container, or in a list of processes."""
    service = COMPOSE["services"][name]
    used = set(re.findall(r"/run/secrets/(\w+)", json.dumps(service)))
    assert used <= set(service["secrets"]) <= set(COMPOSE["secrets"])
    shown = [key for key in service["environment"] if "PASSWORD" in key]
    assert [] == [key for key in shown if not key.endswith("_FILE")]


def test_the_unit_starts_a_command_that_exists() -> None:
    program, *words = shlex.split(unit()["ExecStart"])
    assert "/opt/zeh-spark/bin/zeh-spark" == program
    assert "serve" == parsed(words)


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
