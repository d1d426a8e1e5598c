"""The settings of `serve`: the same by option, by environment variable and by file."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from tests.cases import each_case
from zeh_spark.errors import OptionError
from zeh_spark.service.app.config import Config, FeedConfig, opened_tables
from zeh_spark.tools.cli.serve_command import serve, takes_settings, with_given

OPTIONS = {each.name: each for each in serve.params if isinstance(each, click.Option)}
NAMES = [name for name in Config.__struct_fields__ if name not in ("store", "feeds")]


def settings(words: list[str], config: Config, environment: dict[str, str]) -> Config:
    """The settings that a call of the command has."""
    found = []

    @click.command()
    @takes_settings
    def command(given: dict[str, object]) -> None:
        found.append(with_given(config, given))

    CliRunner(env=environment).invoke(command, words, catch_exceptions=False)
    return found[0]


@each_case("name", NAMES)
def test_each_setting_of_the_file_has_an_option_and_a_variable(name: str) -> None:
    """I configure a container without a file, and a machine without variables."""
    assert f"ZEH_{name.upper()}" == OPTIONS[name].envvar


def test_an_option_precedes_a_variable_and_a_variable_precedes_the_file() -> None:
    """A list has those of the file too."""
    config = Config(host="file", port=1, grace="1s", allowed_hosts=["file"])
    variables = {"ZEH_HOST": "variable", "ZEH_PORT": "2", "ZEH_ALLOW_ANYONE": "true"}

    found = settings(["--port", "0", "--allowed-host", "option"], config, variables)
    listed = settings([], config, {"ZEH_ALLOWED_HOSTS": "a b"}).allowed_hosts

    assert ("variable", 0, "1s", True, ["option", "file"], ["a", "b", "file"]) == (
        found.host, found.port, found.grace, found.allow_anyone, found.allowed_hosts, listed
    )  # fmt: skip


@each_case(
    ("words", "environment", "found"),
    [
        ([], {}, True),
        ([], {"ZEH_CONSOLE": "false"}, False),
        (["--no-console"], {"ZEH_CONSOLE": "true"}, False),
        (["--console"], {"ZEH_CONSOLE": "false"}, True),
    ],
)
def test_the_console_can_be_switched_off_where_the_file_has_it(words, environment, found) -> None:
    assert found is settings(words, Config(console=True), environment).console


def test_settings_that_contradict_each_other_are_wrong_usage() -> None:
    with pytest.raises(OptionError, match="tls_cert is not"):
        with_given(Config(), {"tls_client_ca": "ca.pem"})


@each_case("name", ["readyz", "docs", "a/b", "ä", "-a", "", "x" * 101])
def test_a_table_cannot_have_a_name_that_no_feed_may_have(name: str) -> None:
    """Its address would be another's; I am told so before anything is opened."""
    table = FeedConfig(url="sqlite:////nowhere/shop.db", table="outbox", data="body")

    with pytest.raises(OptionError) as refused, opened_tables(Config(feeds={name: table})):
        pass

    assert f"[feeds.{name}] a feed cannot be called {name!r}" in str(refused.value)
    assert "Rename the section" in str(refused.value)
