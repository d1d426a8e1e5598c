"""Declare and parse options; and the options that source and sink share.

`option_metadata` has what a class of options is made of, `client_options` the options of both
sides, `reading_options` those of all readers, and `given` parses what a user gave;
`wire.option_values` parses texts.

Rule for editors: a new option is a field of such a class. `python docs/generate.py` then writes the
tables of the docs. Runs wherever a DataSource is made: on the driver, and in the Python process in
which Spark plans a query.
"""
