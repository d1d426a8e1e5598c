"""Where a publisher keeps feeds: the interface of every store, their rules, and a store in memory.

`interface` is what a store offers. The rules have no side effects and are the same for every store:
`commit_decision` (is a batch new, a repetition, or refused?), `commit_plan` (which chunks it adds),
`refusals`, `feed` (what a page holds), `retention`, `epochs`. `memory` keeps feeds in this process.
SQLite and PostgreSQL are in the package `sql_store`.

To add a store, implement `interface.Store` and run `zeh_spark.testing.store_contract` against it.
"""
