"""Feeds in a SQL database: `store.SqlStore`, and SQLite and PostgreSQL beneath it.

`schema` has the tables. `uploads`, `commits`, `producers` and `epochs` are what one transaction
does; they are the same for both databases, and decide as `zeh_spark.store` says. `sqlite` and
`postgresql` open a database; `sqlite_writer` and `postgresql_writer` serialize its writes and
commit in groups (`group_commit`). `commit_listener` wakes readers.
"""
