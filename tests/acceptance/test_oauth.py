"""Spark reads and publishes with OAuth2 client credentials, and shows no secret."""

import pytest

from tests.fix_oauth import SECRET

pytestmark = pytest.mark.spark


def test_source_and_sink_use_the_credentials(
    spark, stream, collected, token_server, guarded, capfd
):
    """On the driver and on executors, in batches and streams; each process keeps its token."""
    url = f"{guarded}/orders"
    rows = spark.range(8).selectExpr("to_json(struct(id)) AS data")
    sink = rows.write.format("zeroeventhub").mode("append").options(**token_server.options)
    sink.options(url=url, producerId="job", batchId="1").save()

    for fetch in ("driver", "executors"):
        read = spark.read.format("zeroeventhub").options(**token_server.options, fetch=fetch)
        frame = read.load(url)
        assert frame.count() == 8
        frame.explain(extended=True)
    collected(stream(**token_server.options, url=url).load()).processAllAvailable()

    assert len(collected.rows) == 8
    assert len(token_server.asked) < 10
    assert SECRET not in capfd.readouterr().out


def test_spark_hides_the_options_in_plans(spark):
    """Spark knows secrets by their names."""
    given = {"oauth.clientSecret": SECRET, "oauth.tokenUrl": "https://x/t", "oauth.clientId": "job"}
    spark_side = spark._jvm.org.apache.spark
    options = spark_side.api.python.PythonUtils.toScalaMap(given)

    shown = spark_side.sql.internal.SQLConf.get().redactOptions(options).toString()

    assert SECRET not in shown and "https://x/t" not in shown
    assert "job" in shown
