"""Feeds in PostgreSQL, on the tables and transactions of `sql`. `store` opens it.

`writer` serializes commits of all publishers by a lock and commits in groups (`group_commit`).
`transactions` bounds how long a read may take. `commit_listener` wakes readers, `database_clock`
asks the database for the time, `errors` says what a failure means.
"""
