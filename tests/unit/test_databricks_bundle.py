"""The asset bundle `conf/databricks.yml`, which the docs tell to deploy."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from databricks.bundles.jobs import Job

from zeh_spark.demo.notebook import WIDGETS

CONF = Path(__file__).parents[2] / "conf"


@pytest.fixture(scope="module")
def bundle():
    return yaml.safe_load((CONF / "databricks.yml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def described(bundle):
    return bundle["resources"]["jobs"]["feed_to_lakehouse"]


@pytest.fixture(scope="module")
def job(described):
    return Job.from_dict(described)


def test_the_job_is_one_that_databricks_takes(described, job):
    """Checked with the types of `databricks-bundles`, which Databricks makes of the bundle's schema
    and publishes on PyPI: they refuse an unknown key, a missing one, and a value that is none of
    an enumeration. The schema itself comes with the CLI, which no package registry has.
    """
    assert Job.from_dict(job.as_dict()) == job
    with pytest.raises(ValueError, match="Unexpected field 'notebok'"):
        Job.from_dict({**described, "notebok": {}})
    assert {*re.findall(r"^(\w+):", (CONF / "databricks.yml").read_text(), re.MULTILINE)} == {
        *("bundle", "variables", "artifacts", "sync", "resources", "targets")
    }


def test_what_the_job_names_is_there(bundle, described, job):
    """The notebook, its widgets, the cluster and the variables."""
    (task,) = job.tasks
    text = (CONF / task.notebook_task.notebook_path).resolve().read_text(encoding="utf-8")

    assert task.job_cluster_key in [each.job_cluster_key for each in job.job_clusters]
    assert {*WIDGETS} == {*task.notebook_task.base_parameters}
    assert "here = notebook.start()" in text
    used = set(re.findall(r"\$\{var\.(\w+)\}", str(described)))
    assert used == {*bundle["variables"]}


def test_no_secret_is_in_the_bundle(bundle, described):
    """The job gets the names of the scope and of the key; the notebook reads the token there."""
    parameters = described["tasks"][0]["notebook_task"]["base_parameters"]

    assert (parameters["scope"], parameters["key"]) == ("${var.secret_scope}", "${var.secret_key}")
    assert "token" not in {*parameters}
