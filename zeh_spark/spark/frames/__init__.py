"""Columns of a feed's DataFrame: stamps, parsed data, and what Spark's versions do differently.

`stamping` reads an event's stamps and puts them into columns, `parsing` makes columns of `data`,
`exact_json` makes the text by which rows are compared, and `compat` has what older versions of
Spark lack. Runs on the driver.
"""
