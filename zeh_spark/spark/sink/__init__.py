"""Publishing a DataFrame: its rows become events of a feed, and each batch is published once.

A batch in its order: `options` (what the user asked for), `rows` (rows become lines, or are
refused), `letters` (refused rows become dead letters), `task_uploads` (a task stages its lines),
`writer` (the driver commits what the tasks staged), `dead_letter_client` (the dead-letter feed).
`spark_types` says which column types a Spark version hands over.
"""
