"""The command `zeh-spark`, which needs the extra `publisher`.

`main` is its entry point, `commands` the list of commands, `parameters` their shared options. Each
of the other modules holds a group of commands: feeds, retention, dead letters, outbox tables.

Rule for editors: a docstring of a command is its help, and `docs/reference/command-line.md` is
generated from it. Commands run in a terminal, beside publishers or on their machine.
"""
