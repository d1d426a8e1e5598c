"""The command `zeh-spark`. Commands that work on a store need the extra `publisher`.

`main` is its entry point and lists the commands, `parameters` has their shared options, `output`
what they print. Each of the other modules holds commands: for feeds, retention, dead letters.

Rule for editors: a docstring of a command is its help, and `docs/reference/command-line.md` is
generated from it. Commands run in a terminal, beside publishers or on their machine.
"""
