"""Feeds in a SQL database: `store.SqlStore`, and its dialects for SQLite and PostgreSQL.

`schema` has the tables. `uploads`, `commits`, `producers` and `epochs` hold what one transaction
does. They are the same for both databases, and `zeh_spark.store` decides for them. `sqlite` and
`postgresql` open a database; `sqlite_writer` and `postgresql_writer` serialize its writes and
commit in groups (`group_commit`). `chores` cleans up. `commit_listener` wakes readers.

Rule for editors: nothing here decides what becomes of a batch. Runs in the publisher and in
commands that write.
"""
