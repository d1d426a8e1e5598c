"""A Python task of a Databricks job: a program in a process that has a session before it begins.

A notebook finds `spark` and `dbutils` as its globals, too.
"""

import json
import runpy
import sys

from databricks.sdk.runtime import dbutils

job = json.loads(sys.argv[1])
spark = runpy.run_path(job["startup"])["spark"]
sys.argv = [job["program"], *job["words"]]
runpy.run_path(job["program"], {"spark": spark, "dbutils": dbutils}, run_name="__main__")
