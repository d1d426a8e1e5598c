"""What `zeh-spark doctor` looks at: this machine, its Spark, and a feed as this machine reaches it.

`checks` has the values, `machine` looks at Python and Java, `installed_spark` at PySpark and what
belongs to it, `peer` at a publisher. Only `trial` starts Spark, and only if that was asked for.
Runs on the driver's machine.
"""
