"""Run `zeh-spark` as `python -m zeh_spark`."""

from zeh_spark.tools.cli.main import main

main()
