"""Events in the order of their sessions, and dead letters for those that cannot be ordered.

A batch on its way: `ordering` builds the query, `reading` reads what events say, `operator` is
Spark's operator for a bucket of sessions, `bucket` takes the rows of a bucket, `session_decision`
decides for each session (with the words of `model`, over its `held_runs`), `state` keeps sessions
from batch to batch. `steps` gives names of steps their numbers, `sources` is the clock of several
feeds, `routing` gives the result to two writers, `letters` brings dead letters to a feed and back,
`inspecting` looks at sessions from outside. `processing` calls a handler for each ordered event,
and keeps the verdicts in a table, which `verdicts` reads; `handling` is what its tasks do, and
`calling` is one call of a handler.
"""
