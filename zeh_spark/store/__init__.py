"""Where a publisher keeps feeds: the interface of every store, its rules, and three stores.

`interface` is what a store offers. Pure rules, the same for every store: `commit_decision` (is a
batch new, a repetition, or refused?), `commit_plan` (which chunks it adds), `refusals`, `feed`
(what a page holds), `retention`, `epochs`. `memory` keeps feeds in this process. `sql_store` and
the modules `sql_*` keep them in a database: `sqlite` and `postgresql`, each with its writer.

To add a store, implement `interface.Store` and run `zeh_spark.testing.store_contract` against it.
"""
