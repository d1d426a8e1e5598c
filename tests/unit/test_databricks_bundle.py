"""The asset bundle `conf/databricks.yml`, which the docs tell to deploy."""

import re
from pathlib import Path

import pytest
import yaml

CONF = Path(__file__).parents[2] / "conf"


@pytest.fixture(scope="module")
def bundle():
    return yaml.safe_load((CONF / "databricks.yml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module", params=["dev", "prod", "serverless"])
def described(bundle, request):
    """The job, as a target completes it."""
    parts = (bundle, bundle["targets"][request.param])
    job, more = (part["resources"]["jobs"]["flights"] for part in parts)
    (task,), (there,) = job["tasks"], more["tasks"]
    assert task["task_key"] == there["task_key"]
    return {**job, **more, "tasks": [{**task, **there}]}


@pytest.fixture(scope="module")
def job(described):
    from databricks.bundles.jobs import Job  # slow to import

    return Job.from_dict(described)


def test_the_job_is_one_that_databricks_takes(described, job):
    """Checked with the types of `databricks-bundles`, which Databricks makes of the bundle's schema
    and publishes on PyPI: they refuse an unknown key, a missing one, and a value that is none of
    an enumeration. The schema itself comes with the CLI, which no package registry has.
    """
    assert type(job).from_dict(job.as_dict()) == job
    with pytest.raises(ValueError, match="Unexpected field 'notebok'"):
        type(job).from_dict({**described, "notebok": {}})
    assert {*re.findall(r"^(\w+):", (CONF / "databricks.yml").read_text(), re.MULTILINE)} == {
        *("bundle", "variables", "artifacts", "resources", "targets")
    }


def test_what_the_job_names_is_there(bundle, described, job):
    """The program, its parameters, the cluster and the variables."""
    (task,) = job.tasks
    text = (CONF / task.spark_python_task.python_file).read_text(encoding="utf-8")
    given = {each.partition("=")[0].lstrip("-") for each in task.spark_python_task.parameters}

    clusters = [each.job_cluster_key for each in job.job_clusters]
    environments = [each.environment_key for each in job.environments]
    assert [task.job_cluster_key or task.environment_key] == clusters + environments
    assert given == {"publisher", "table", "volume", "scope", "key", "max-seconds-behind"}
    assert all(f'"{name}"' in text or f'"--{name}"' in text for name in given)
    used = set(re.findall(r"\$\{var\.(\w+)\}", str(bundle)))
    assert used == {*bundle["variables"]}
    # no secret is in the bundle: the program reads the token where scope and key tell
    parameters = described["tasks"][0]["spark_python_task"]["parameters"]
    assert {"--scope=${var.secret_scope}", "--key=${var.secret_key}"} <= {*parameters}
    assert not [each for each in parameters if "token" in each]


def test_somebody_is_told_when_a_run_fails_or_takes_too_long(described):
    """Whoever has deployed it."""
    notified, (rule,) = described["email_notifications"], described["health"]["rules"]

    assert notified["on_failure"] == ["${workspace.current_user.userName}"]
    assert notified["on_duration_warning_threshold_exceeded"] == notified["on_failure"]
    assert rule["metric"] == "RUN_DURATION_SECONDS"


def test_the_pipeline_is_one_that_databricks_takes(bundle):
    """On serverless compute, with the wheel and its program; the secret is named, and not in it."""
    from databricks.bundles.pipelines import Pipeline

    described = bundle["resources"]["pipelines"]["flights_pipeline"]
    pipeline = Pipeline.from_dict(described)

    assert Pipeline.from_dict(pipeline.as_dict()) == pipeline
    (library,) = pipeline.libraries
    text = (CONF / library.file.path).read_text(encoding="utf-8")
    assert pipeline.serverless and pipeline.environment.dependencies == ["../dist/*.whl"]
    assert {*re.findall(r'told\("([\w.]+)"\)', text)} == {*pipeline.configuration}
