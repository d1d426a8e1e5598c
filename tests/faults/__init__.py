"""The whole pipeline in real processes, which are killed at random moments: `make test-faults`.

A program with a `Producer` publishes numbers to the feed `in`. A query copies them to the feed
`mid`, and another one puts them in the order of sessions, into a Delta table. Everything goes
through a proxy to one publisher. At the end, each number is once on both feeds and in the table.
"""
