"""The demonstration `make demo`: a year of real flights, through a feed into a table.

    six CSV files --Spark--> feed in SQLite, served by `zeh-spark serve` --Spark--> Parquet

Both Spark jobs are killed with SIGKILL half way and started again. `jobs` has the jobs, which are
ordinary ones: begin there. `notebooks.kit.flights` has the data, `__main__` runs and watches
everything, `page` draws what happened.

Rule for editors: only the compared data decides whether the demo succeeded.
"""
