"""What people use in a terminal: the command line, and what it does with feeds and files.

`cli` is the command `zeh-spark`. `check` judges any publisher by the specification, `doctor` looks
at this machine and its Spark, `audit` proves that a feed has every published batch once, and
`loading` publishes files.
"""
