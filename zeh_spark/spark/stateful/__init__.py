"""What sessions and deduplication share: rows in Spark's state, and sets of numbers.

`requirements` refuses a Spark session in which state could not work. `state_buckets` and
`row_codec` bring rows into Spark's state and back. `ranges` and `seen` are sets of sequence
numbers, and `dedup_state` is what deduplication keeps of them; these three have no side effects.
`processors` keeps a bucket's value in Spark's state.
"""
