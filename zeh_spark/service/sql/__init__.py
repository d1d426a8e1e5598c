"""Feeds in a SQL database: `store.SqlStore`, and what SQLite and PostgreSQL have in common.

`schema` has the tables, `upgrades` their older versions. `uploads`, `commits`, `producers` and
`epochs` hold what one transaction does; `store` decides for them. The databases are in `sqlite` and
`postgresql`.

Rule for editors: nothing here decides what becomes of a batch. Runs in the publisher and in
commands that write.
"""
