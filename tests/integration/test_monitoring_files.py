"""The dashboard and the alert rules in conf/ name what a publisher exports, and nothing else."""

import json
import re
from contextlib import closing
from pathlib import Path

import pytest
import requests
import yaml

from tests.fix_metrics import Scrape
from tests.fix_publish import Caller, Who
from tests.fix_publisher import new_feed, served
from tests.fix_table import SqliteDatabase
from tests.patience import eventually

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "conf" / "grafana-dashboard.json"
ALERTS = ROOT / "conf" / "prometheus-alerts.yml"
PAGE = ROOT / "docs" / "operate" / "monitor-publisher.md"
OWN = re.compile(r"\b((?:zeh|process)_[a-z_]+)\b")
LABELS = re.compile(r"\b((?:zeh|process)_[a-z_]+)\{([^}]*)\}")
OF_PROMETHEUS = {"instance", "job", "le"}


def rules():
    groups = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def expressions():
    """All expressions of the dashboard and of the alerts."""
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    variables = [each.get("definition", "") for each in dashboard["templating"]["list"]]
    return [*asked, *variables, *(rule["expr"] for rule in rules())]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """What a publisher exports that has served events, a table too, and refused something."""
    folder = tmp_path_factory.mktemp("monitoring")
    file, config = folder / "feeds.db", folder / "publisher.toml"
    with closing(SqliteDatabase(folder / "shop.db")) as shop:
        shop.served("data TEXT")
        config.write_text(f"[feeds.shop]\nurl = {json.dumps(shop.url)}\ntable = 'outbox'\n")
    cold = str(folder / "cold")
    with served(new_feed(file), "--config", str(config), "--segments", cold) as (base, _):
        caller = Caller(f"{base}/orders")
        who = Who(n=1)
        caller.publish(who, 1, 2, 3)
        caller.publish(who, 1, 2, 3)
        caller.publish(who.but(batch=1, run="r2"), 4)
        assert (403, "fenced") == caller.commit(who.but(batch=2)).short
        requests.get(f"{base}/orders?n=1&cursor0=_first&cursorset=warehouse", timeout=30)
        eventually(lambda: Scrape(base)("zeh_consumer_lag_events") == 4)
        return Scrape(base)


def test_everything_that_is_asked_for_is_exported(exported):
    """No panel is empty, and no alert silent, because a name is wrong."""
    named = {name for each in expressions() for name in OWN.findall(each)}

    assert len(named) > 15
    assert set() == named - exported.names


def test_labels_that_are_asked_for_are_exported(exported):
    """A filter on a label that does not exist finds nothing, without an error."""
    asked = {
        (name, label)
        for each in expressions()
        for name, filters in LABELS.findall(each)
        for label in re.findall(r"(\w+)\s*[=!]~?", filters)
    }
    there = {(name, label) for name, own in exported.samples for label, _ in own}

    assert len(asked) > 5
    assert set() == {each for each in asked if each[1] not in OF_PROMETHEUS} - there


def test_every_metric_of_ours_is_described(exported):
    """The page has each of them, and no other."""
    suffix = re.compile(r"_(bucket|count|sum)$")
    ours = {suffix.sub("", each) for each in exported.names if each.startswith("zeh_")}
    table = [
        line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `zeh_")
    ]
    described = {name for line in table for name in re.findall(r"`(zeh_[a-z_]+)`", line)}

    assert ours == described


def test_every_alert_says_what_to_do():
    """It has a row in the page, and words for whoever is woken."""
    text = PAGE.read_text(encoding="utf-8")
    names = [each["alert"] for each in rules()]

    assert names == sorted(set(names), key=names.index)
    assert [] == [each for each in names if f"| `{each}` |" not in text]
    for each in rules():
        assert each["labels"]["severity"] in ("warning", "critical")
        assert {"summary", "description"} == each["annotations"].keys()


def test_readers_that_are_far_behind_are_found_without_a_number():
    """Rows of a table are counted up to a limit, and with many partitions to less than that."""
    (rule,) = [each for each in rules() if each["alert"] == "ZehTableReaderFarBehind"]

    assert "max by (feed, cursorset, n) (zeh_consumer_lag_at_least) == 1" == rule["expr"]
