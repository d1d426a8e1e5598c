"""Run `zeh-spark` as `python -m zeh_spark.cli`."""

from zeh_spark.cli.main import main

main()
