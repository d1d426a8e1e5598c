"""What sessions and deduplication share: rows in Spark's state, and sets of numbers.

`requirements` refuses a Spark session in which state could not work. `state_buckets` keeps the
values of buckets in Spark's state, and `row_codec` brings rows there and back.

`dedup` is what users call. It goes by numbers (`dedup_numbers`) or by ids (`dedup_ids`). `ranges`
and `seen` are sets of sequence numbers, `dedup_state` is what is kept of them, and `seen_ids` of
ids; these have no side effects.
"""
