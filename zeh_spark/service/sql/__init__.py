"""Feeds in a SQL database: `store.SqlStore`, and what SQLite and PostgreSQL have in common.

`schema` has the tables, `upgrades` their older versions. `store` has all roles of a store: the log,
`batches`, `cursor_sets` and `administration`. `packed_log` reads what is packed. `uploads`,
`commits` and `producers` hold what one transaction of a batch does. The databases are in `sqlite`
and `postgresql`; what each has to bring is in `execution`.

Rule for editors: nothing here decides what becomes of a batch. Runs in the publisher and in
commands that write.
"""
