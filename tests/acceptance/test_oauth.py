"""Spark reads and publishes with tokens of a server or another source, and shows no secret."""

import time
from types import SimpleNamespace
from urllib.parse import quote

import pytest
import requests
from pyspark import TaskContext
from pyspark.errors import AnalysisException

import zeh_spark
from tests.fix_oauth import CLIENT, SECRET
from tests.patience import PATIENCE
from zeh_spark.client.options.auth import REGISTERED

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


@pytest.fixture
def registered(spark, token_server, tmp_path):
    """Registers the source of tokens `login`, whose secret is in a file that its processes read."""
    if spark.version.startswith("4.0"):
        pytest.skip("Spark 4.0 does not take a data source in place of one that it has found")
    secret, server = tmp_path / "secret", token_server.url
    secret.write_text(SECRET)

    class Login:
        def get_token(self, scope: str) -> SimpleNamespace:
            where = "executor" if TaskContext.get() else "driver"
            form = {"grant_type": "client_credentials", "scope": f"{scope} {where}"}
            client = quote(CLIENT, safe=""), quote(secret.read_text(), safe="")
            given = requests.post(server, data=form, auth=client, timeout=PATIENCE).json()
            ends = time.time() + given["expires_in"]
            return SimpleNamespace(token=given["access_token"], expires_on=ends)

    zeh_spark.register_auth("login", Login)
    zeh_spark.register(spark)
    yield secret
    REGISTERED.clear()
    zeh_spark.register(spark)


def test_a_registered_source_gives_tokens_to_driver_and_executors(
    spark, stream, collected, token_server, guarded, registered, tmp_path, capfd
):
    """I register it once, and options name it. Plans and checkpoints have neither secret nor token;
    a token that ends is renewed where it is used.
    """
    token_server.lifetime = 1
    by_name = {"auth": "login", "auth.scope": "feeds", "url": f"{guarded}/orders"}
    rows = spark.range(8).selectExpr("to_json(struct(id AS i)) AS data")
    sink = rows.write.format("zeroeventhub").mode("append").options(**by_name)
    sink.options(producerId="job", batchId="1").save()

    frame = spark.read.format("zeroeventhub").options(**by_name, fetch="executors").load()
    assert frame.count() == 8
    frame.explain(extended=True)
    collected(stream(**by_name).load()).processAllAvailable()

    assert collected.numbers() == dict.fromkeys(range(8), 1)
    assert {each["scope"] for each in token_server.asked} == {"feeds driver", "feeds executor"}
    shown = capfd.readouterr().out
    assert "BatchScan zeroeventhub" in shown
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path != registered]
    kept = b"".join(path.read_bytes() for path in files) + shown.encode()
    assert SECRET.encode() not in kept and b"eyJ" not in kept  # as every JWT begins


def test_a_name_that_nobody_registered_is_told(spark, guarded):
    """I see what to call, also if the name is registered elsewhere."""
    frame = spark.read.format("zeroeventhub").options(auth="nobody", url=f"{guarded}/orders")

    with pytest.raises(AnalysisException, match=r"'auth' must be a registered name.*got 'nobody'"):
        frame.load()
