"""Feeds in a SQLite file, on the tables and transactions of `sql`. `store` opens it.

`writer` has the only connection that writes. `copies` makes backups and restores them.
"""
