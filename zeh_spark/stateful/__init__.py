"""What sessions and deduplication share: rows in Spark's state, and sets of numbers.

`requirements` refuses a session that Spark's state could not run in, `state_buckets` and
`row_codec` bring rows into Spark's state and back. `ranges` and `seen` are sets of sequence
numbers, `dedup_state` is what deduplication keeps of them; these three are pure.
"""
