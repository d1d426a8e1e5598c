"""A service's own table as a feed: the transactional outbox pattern, without a copy of its rows.

`feed` is the feed, `table` and `cursors` are its pure rules. `postgresql` and `sqlite` inspect a
table, and make its statements (`queries`) from its settings and facts; `postgresql_check`,
`postgresql_ddl` and `sqlite_ddl` tell what it lacks (`faults`) and make that; `blockers` finds the
transactions that hold readers back.
"""
