"""The command `zeh-spark`. Needs the extra `publisher`.

`main` is its entry point, `commands` the list of commands, `parameters` their shared options. The
others hold a group of commands each: feeds, retention, dead letters, outbox tables.
"""
