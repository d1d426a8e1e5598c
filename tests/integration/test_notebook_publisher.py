"""The publisher that a notebook starts, and what a notebook does where it cannot run."""

import os
import sys
from pathlib import Path

import pytest
import requests

from notebooks.kit import notebook


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A notebook's folder on a laptop, without Spark."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    found = notebook.Notebook(None, tmp_path, "default")
    yield found
    if found.publisher:
        found.publisher.kill()


def test_a_feed_is_made_and_served_and_the_commands_are_shown(here, capfd):
    """I see what I would type myself."""
    feed = here.feed("flights", partitions=2)

    shown = capfd.readouterr().out.splitlines()
    base = feed["url"].removesuffix("/flights")
    assert shown == [
        "$ zeh-spark create flights --partitions 2",
        "Feed 'flights' with 2 partitions is in sqlite:///feeds.db.",
        "$ zeh-spark serve --port 0 &",
        f"Serving sqlite:///feeds.db at {base}",
    ]
    assert "flights" in requests.get(base, timeout=10).text


def test_a_publisher_starts_again_where_it_was(here):
    """After it was stopped or killed, readers find it at the same address."""
    here.feed("flights", partitions=2)
    health = f"{here.publisher.url}/healthz"

    for end in (here.publisher.stop, here.publisher.kill):
        end()
        with pytest.raises(requests.ConnectionError):
            requests.get(health, timeout=10)
        here.publisher.start()
        assert requests.get(health, timeout=10).ok


def test_a_publisher_that_does_not_start_says_so(here):
    """I look at its message, and wait for nothing."""
    with pytest.raises(RuntimeError, match=r"the publisher did not start.*missing\.toml"):
        notebook.Publisher("--config", "missing.toml")


def test_a_notebook_that_needs_a_laptop_says_so_on_databricks(monkeypatch):
    """It does not fail in the middle."""
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "17.3")

    with pytest.raises(
        RuntimeError, match=r"on a laptop only, because it kills a service\. Run it"
    ):
        notebook.start(laptop_because="it kills a service")
