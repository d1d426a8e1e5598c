"""Feeds in this process, for tests and examples: `store.MemoryStore`. They end with it.

`log` has a feed's committed chunks, `staging` its uploads before the commit, `accounts` what is
known of a producer; `zeh_spark.store` decides.
"""
