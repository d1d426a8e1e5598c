"""A user's program whose options have secrets, with all that Spark logs switched on. Not a test.

Usage: with_secrets.py JOB, as JSON: `url` of the feed, `folder`, and `secrets`, a file with the
token and the value of a header; `clientSecret` of OAuth2. It publishes, reads what it published as
a stream, shows plans, and has queries that fail.
"""

import json
import logging
import sys
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

job = json.loads(sys.argv[1])
folder = Path(job["folder"])
token, header = Path(job["secrets"]).read_text().split()
secret = {"token": token, "http.secret.header.X-Api-Key": header}

logging.basicConfig(level=logging.DEBUG)
logging.getLogger("py4j").setLevel(logging.INFO)  # at DEBUG it logs each call, with its arguments
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.log.level", "DEBUG")
    .config("spark.eventLog.enabled", "true")
    .config("spark.eventLog.compress", "false")
    .config("spark.eventLog.dir", (folder / "events").as_uri())
    .getOrCreate()
)

rows = spark.range(100).selectExpr("to_json(struct(id AS i)) AS data")
sink = rows.write.format("zeroeventhub").mode("append").options(**secret, url=job["url"])
sink.options(producerId="job", batchId="1").save()

for fetch, staging in (("executors", {}), ("driver", {"stagingLocation": str(folder / "staged")})):
    frame = spark.readStream.format("zeroeventhub").options(**secret, **staging, fetch=fetch)
    query = (
        frame.load(job["url"])
        .writeStream.format("parquet")
        .option("checkpointLocation", str(folder / f"checkpoint-{fetch}"))
        .option("path", str(folder / f"table-{fetch}"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    query.explain(extended=True)
    print(query.lastProgress)

batch = spark.read.format("zeroeventhub").options(**secret).load(job["url"])
batch.explain(mode="formatted")
batch.createOrReplaceTempView("events")
spark.sql("EXPLAIN EXTENDED SELECT count(*) FROM events").show(truncate=False)
try:
    spark.read.format("zeroeventhub").options(**secret).load(f"{job['url']}-nowhere").show()
except PySparkException as exc:
    print("refused:", exc)
else:
    raise SystemExit("nothing was refused")
oauth = {
    "oauth.tokenUrl": "http://127.0.0.1:9/token",
    "oauth.clientId": "job",
    "oauth.clientSecret": job["clientSecret"],
    "retryTimeout": "0s",
}
refused = spark.read.format("zeroeventhub").options(**oauth).load(job["url"])
try:
    refused.show()
except PySparkException as exc:
    print("no token:", exc)
else:
    raise SystemExit("nothing was refused")
spark.stop()
