"""A Python task of a Databricks job: a program in a process that has a session before it begins."""

import json
import runpy
import sys

job = json.loads(sys.argv[1])
runpy.run_path(job["startup"])
sys.argv = [job["program"], *job["words"]]
runpy.run_path(job["program"], run_name="__main__")
