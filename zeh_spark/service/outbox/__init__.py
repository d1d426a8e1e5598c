"""A service's own table as a feed: the transactional outbox pattern, without a copy of its rows.

`feed` is the feed; `pages`, `cursors`, `rows` and `table` hold its rules. `connection` asks the
database. `postgresql` and `sqlite` inspect a table and make the statements about it (`queries`)
from its settings and facts.
`postgresql_check`, `postgresql_ddl` and `sqlite_ddl` find what a table lacks and print the
statements that add it. `blockers` finds the transactions that hold readers back, `lag` tells how
far readers are behind, and `cursor_sets` keeps cursors for readers that ask for it.

Rule for editors: reading never writes to the service's database, and holds no lock and no
transaction between two statements. Only `cursor_sets` writes, into a table of our own. Runs in the
publisher and in the commands `ddl` and `new-history`.
"""
