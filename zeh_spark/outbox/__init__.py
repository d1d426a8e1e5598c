"""A service's own table as a feed: the transactional outbox pattern, without a copy of its rows.

`feed` is the feed, `table` and `cursors` are its pure rules. `postgresql` and `sqlite` read a
table; `postgresql_check`, `postgresql_ddl` and `sqlite_ddl` check and make the triggers that it
needs; `blockers` finds the transactions that hold readers back.
"""
